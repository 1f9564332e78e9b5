"""Detokenising token by token gives the text that decoding everything at once gives.

Method: random texts and random token ids over a byte-level tokenizer, where equality must hold for every
sequence; and texts over a sentencepiece-style tokenizer made here, whose text depends on neighbours.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from anaphora.engine.detokenise import Detokeniser, TokenTexts
from anaphora.testing.random_models import byte_tokenizer

VOCAB_SIZE = 384
BYTE_LEVEL = byte_tokenizer(VOCAB_SIZE)


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """Llama-2's shape: spaces are marked in front, unknown characters fall back to bytes, one space is stripped."""
    words = ["▁", "a", "b", "c", "▁a", "▁b", "ab", "▁ab", "é"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *words]
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁", "ab")]
    ids = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


SENTENCEPIECE = sentencepiece_tokenizer()


def decode(tokenizer: PreTrainedTokenizerFast, token_ids: list[int]) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def pieces(tokenizer: PreTrainedTokenizerFast, token_ids: list[int], prompt: list[int] | None = None) -> list[str]:
    detokeniser = Detokeniser(tokenizer, prompt or [])
    return [*(detokeniser.push(token_id) for token_id in token_ids), detokeniser.flush()]


@given(st.text(max_size=60))
def test_byte_level_pieces_of_a_text_concatenate_to_it_and_hold_no_half_character(text: str) -> None:
    text = text.replace("\ufffd", "")
    found = pieces(BYTE_LEVEL, BYTE_LEVEL.encode(text))
    special_free = decode(BYTE_LEVEL, BYTE_LEVEL.encode(text))
    assert "".join(found) == special_free
    assert not any("\ufffd" in piece for piece in found)


@given(st.lists(st.integers(0, VOCAB_SIZE + 5), max_size=40))
def test_byte_level_pieces_of_any_ids_concatenate_to_the_decoded_whole(token_ids: list[int]) -> None:
    assert "".join(pieces(BYTE_LEVEL, token_ids)) == decode(BYTE_LEVEL, token_ids)


def test_character_comes_out_with_its_last_byte() -> None:
    token_ids = BYTE_LEVEL.encode("🙂")
    assert len(token_ids) == 4
    assert pieces(BYTE_LEVEL, token_ids) == ["", "", "", "🙂", ""]


def test_unfinished_character_becomes_a_replacement_at_the_end() -> None:
    assert pieces(BYTE_LEVEL, BYTE_LEVEL.encode("a🙂")[:-1]) == ["a", "", "", "", "\ufffd"]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE])
def test_special_tokens_give_no_text_and_split_no_character(tokenizer: PreTrainedTokenizerFast) -> None:
    first, *rest = tokenizer.encode("é🙂b", add_special_tokens=False)
    with_specials = [first, *(token_id for other in rest for token_id in (tokenizer.eos_token_id, other))]
    assert "".join(pieces(tokenizer, with_specials)) == decode(tokenizer, with_specials) == "é🙂b"


@settings(max_examples=200)
@given(st.text(alphabet="ab c é🙂漢", max_size=30), st.integers(0, 40))
def test_sentencepiece_pieces_continue_the_prompt_exactly(text: str, num_prompt: int) -> None:
    token_ids = SENTENCEPIECE.encode(text, add_special_tokens=False)
    prompt, generated = token_ids[:num_prompt], token_ids[num_prompt:]
    # A prompt that ends inside a character is left out: its text is not a beginning of the whole text.
    if "\ufffd" in decode(SENTENCEPIECE, prompt):
        return
    found = pieces(SENTENCEPIECE, generated, prompt)
    assert decode(SENTENCEPIECE, prompt) + "".join(found) == decode(SENTENCEPIECE, token_ids)
    assert not any("\ufffd" in piece for piece in found)


def test_sentencepiece_space_in_front_of_the_first_generated_token_is_kept() -> None:
    prompt = SENTENCEPIECE.encode("ab", add_special_tokens=False)
    space_a = SENTENCEPIECE.convert_tokens_to_ids("▁a")
    assert pieces(SENTENCEPIECE, [space_a], prompt) == [" a", ""]
    assert pieces(SENTENCEPIECE, [space_a]) == ["a", ""]


def test_sentencepiece_bytes_that_never_make_a_character_are_not_held_for_ever() -> None:
    broken = SENTENCEPIECE.convert_tokens_to_ids("<0xFF>")
    found = pieces(SENTENCEPIECE, [broken] * 20)
    assert "".join(found[:10])
    assert "".join(found) == "\ufffd" * 20


def test_window_stays_short_over_a_long_answer() -> None:
    source = random.Random(1)
    decoded_lengths: list[int] = []

    class Counting(TokenTexts):
        def decode(self, token_ids: list[int]) -> str:
            decoded_lengths.append(len(token_ids))
            return super().decode(token_ids)

    detokeniser = Detokeniser(SENTENCEPIECE, [], texts=Counting(SENTENCEPIECE))
    for _ in range(2_000):
        detokeniser.push(source.randrange(len(SENTENCEPIECE)))
    assert max(decoded_lengths) <= 12


def test_single_tokens_give_their_own_text_and_bytes() -> None:
    detokeniser = Detokeniser(BYTE_LEVEL)
    space_a, half, end = (BYTE_LEVEL.convert_tokens_to_ids(token) for token in ("Ġa", "ð", "<|im_end|>"))
    assert (detokeniser.token_text(space_a), detokeniser.token_bytes(space_a)) == (" a", b" a")
    assert (detokeniser.token_text(half), detokeniser.token_bytes(half)) == ("\ufffd", b"\xf0")
    assert detokeniser.token_text(end) == "<|im_end|>"
    assert detokeniser.token_bytes(VOCAB_SIZE + 1) == b""


def test_single_sentencepiece_tokens_give_their_own_text_and_bytes() -> None:
    texts = TokenTexts(SENTENCEPIECE)
    space_a, byte, end = (SENTENCEPIECE.convert_tokens_to_ids(token) for token in ("▁a", "<0xF0>", "</s>"))
    assert (texts.bytes_of(space_a), texts.bytes_of(byte), texts.text_of(end)) == (b" a", b"\xf0", "</s>")


@given(st.text(max_size=40))
def test_token_bytes_concatenate_to_the_texts_bytes(text: str) -> None:
    texts = TokenTexts(BYTE_LEVEL)
    assert b"".join(map(texts.bytes_of, BYTE_LEVEL.encode(text))) == text.encode()
