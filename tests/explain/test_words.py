"""The tokenizer of words. Method: the same cuts as a regular expression makes, and the same word the same token."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.explain.words import encode_words

CUTS = re.compile(r" ?[\w\x80-\U0010ffff]+|[ \t\n\r\v\f\x1c-\x1f]+|[^\w]", re.ASCII)


@given(st.text(alphabet=st.sampled_from('ab_9 \n\t.,{"é\u2028漢\U0001f600\x00'), max_size=40))
def test_cuts_are_those_of_a_regular_expression(text: str) -> None:
    encoded = encode_words(text)
    assert encoded.offsets.tolist() == [list(match.span()) for match in CUTS.finditer(text)]
    assert encoded.tokens.dtype == np.int32
    assert (encoded.tokens >= 0).all()
    pieces = [text[start:stop] for start, stop in encoded.offsets]
    by_piece = dict(zip(pieces, encoded.tokens.tolist(), strict=True))
    assert len(set(by_piece.values())) == len(by_piece), "different words are different tokens"


@given(st.text(max_size=20), st.text(max_size=20))
def test_equal_words_are_equal_tokens_wherever_they_stand(one: str, other: str) -> None:
    words = encode_words(f"{one}\n{other}").tokens.tolist()
    alone = encode_words(other).tokens.tolist()
    assert not alone[1:] or words[-len(alone) + 1 :] == alone[1:]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [("It is  9 m.", ["It", " is", "  ", "9", " m", "."]), ("a\n b", ["a", "\n ", "b"]), (" a", [" a"]), (" ", [" "])],
)
def test_a_space_goes_with_the_word_behind_it(text: str, pieces: list[str]) -> None:
    assert [text[start:stop] for start, stop in encode_words(text).offsets] == pieces
