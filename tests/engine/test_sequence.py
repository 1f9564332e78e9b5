"""One sequence's arithmetic: what is known, what is computed, what is left."""

import numpy as np
import pytest
from engine_world import request_for
from hypothesis import given
from hypothesis import strategies as st

from anaphora.core.namespace import Namespace
from anaphora.engine.request import Sampling
from anaphora.engine.sequence import Sequence

SPACE = Namespace(b"s" * 32)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=9), st.lists(st.integers(0, 99), max_size=9))
def test_tokens_are_the_prompt_and_then_what_was_appended(prompt: list[int], reply: list[int]) -> None:
    sequence = Sequence(request_for(prompt, Sampling()), 0, namespace=SPACE, max_new_tokens=9)
    assert sequence.num_to_compute == len(prompt)
    assert not sequence.is_decoding
    for place, token_id in enumerate(reply):
        sequence.num_computed = sequence.num_tokens
        sequence.append(token_id)
        assert sequence.is_decoding
        assert sequence.num_generated == place + 1
        assert sequence.num_left == 9 - sequence.num_generated
    assert sequence.tokens.tolist() == prompt + reply
    assert sequence.tokens.dtype == np.int32
    assert sequence.num_prompt == len(prompt)


def test_a_later_change_of_the_callers_array_changes_nothing() -> None:
    request = request_for([1, 2, 3], Sampling())
    sequence = Sequence(request, 0, namespace=SPACE, max_new_tokens=1)
    request.tokens[0] = 9
    assert sequence.tokens.tolist() == [1, 2, 3]


def test_nothing_is_appended_beyond_the_limit() -> None:
    sequence = Sequence(request_for([1], Sampling()), 0, namespace=SPACE, max_new_tokens=1)
    sequence.append(2)
    with pytest.raises(AssertionError):
        sequence.append(3)


def test_only_the_first_answer_scores_the_prompt() -> None:
    request = request_for([1], Sampling(num_prompt_logprobs=0))
    first, second = (Sequence(request, index, namespace=SPACE, max_new_tokens=1) for index in range(2))
    assert first.is_scored
    assert not second.is_scored
    assert first.id != second.id
