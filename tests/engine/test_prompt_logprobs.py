"""Log-probabilities of prompt tokens: complete and right whatever of the prompt is cached, by whom, and what is left.

Method: every answer is compared, token by token, with a cold model's log-softmax; reuse is checked beside it.
"""

import numpy as np
import pytest
import torch
from engine_world import ByHand, Cold, check_receipt, cold_copy, random_tokens

from anaphora.engine.request import Generation, Sampling

PLAIN = Sampling(temperature=0.0, max_tokens=2, ignore_end=True)


def scored(num_top: int) -> Sampling:
    return Sampling(temperature=0.0, max_tokens=2, ignore_end=True, num_prompt_logprobs=num_top)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cold(family: str) -> Cold:
    return cold_copy(family)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def check(cold: Cold, tokens: np.ndarray, found: Generation, num_top: int) -> None:
    expected = torch.log_softmax(cold.logits(tokens), dim=-1)
    entries = found.prompt_logprobs
    assert len(entries) == len(tokens)
    assert entries[0] is None
    for place in range(1, len(tokens)):
        entry, row = entries[place], expected[place - 1]
        assert entry is not None
        assert entry.token_id == tokens[place]
        assert entry.logprob == pytest.approx(float(row[tokens[place]]), abs=1e-4)
        best = torch.topk(row, max(1, num_top))
        assert len(entry.top) == num_top
        np.testing.assert_allclose([one[3] for one in entry.top], best.values[:num_top], atol=1e-4)
    cold.check(tokens, found, max_tokens=2)
    check_receipt(found)


@pytest.mark.parametrize("max_step_tokens", [1, 5, 16, 64])
@pytest.mark.parametrize("num_top", [0, 1, 5])
def test_same_prompt_again_computes_one_token_and_answers_the_same(
    family: str, cold: Cold, rng: np.random.Generator, max_step_tokens: int, num_top: int
) -> None:
    hand = ByHand(family, max_step_tokens=max_step_tokens)
    tokens = random_tokens(rng, 33)
    first = hand.answer(tokens, scored(num_top))
    check(cold, tokens, first, num_top)
    second = hand.answer(tokens, scored(num_top))
    check(cold, tokens, second, num_top)
    assert second.receipt.num_computed_tokens == 1, "scores got lost between two chunks"
    assert second.receipt.stop_reason == "whole_prompt"


def test_prompt_cached_without_scores_is_computed_once_more_and_then_reused(
    family: str, cold: Cold, rng: np.random.Generator
) -> None:
    hand = ByHand(family, max_step_tokens=16)
    tokens = random_tokens(rng, 40)
    hand.answer(tokens, PLAIN)
    first = hand.answer(tokens, scored(2))
    check(cold, tokens, first, 2)
    assert first.receipt.num_reused_tokens == 0
    assert first.receipt.stop_reason == "prompt_logprobs"
    second = hand.answer(tokens, scored(2))
    check(cold, tokens, second, 2)
    assert second.receipt.num_computed_tokens == 1, "scores went with the duplicate slots"


def test_many_continuations_of_one_prompt_reuse_it(family: str, cold: Cold, rng: np.random.Generator) -> None:
    """As evaluation harnesses do."""
    hand = ByHand(family)
    prompt = random_tokens(rng, 30)
    for index in range(4):
        tokens = np.concatenate([prompt, [300 + index], random_tokens(rng, 4)]).astype(np.int32)
        found = hand.answer(tokens, scored(1))
        check(cold, tokens, found, 1)
        assert found.receipt.num_computed_tokens == (35 if index == 0 else 6)  # row 29 scores token 30


def test_more_alternatives_than_are_kept_are_computed_anew(family: str, cold: Cold, rng: np.random.Generator) -> None:
    hand = ByHand(family, max_step_tokens=16)
    tokens = random_tokens(rng, 30)
    for num_top in (3, 9, 20, 4):
        check(cold, tokens, hand.answer(tokens, scored(num_top)), num_top)
    assert hand.answer(tokens, scored(9)).receipt.stop_reason == "prompt_logprobs"
    assert hand.answer(tokens, scored(5)).receipt.num_computed_tokens == 1


def test_scores_die_with_the_slots_they_stand_beside(family: str, cold: Cold, rng: np.random.Generator) -> None:
    hand = ByHand(family, num_slots=256, max_step_tokens=32)
    prompts = [random_tokens(rng, int(n)) for n in rng.integers(20, 120, 12)]
    prompts = [np.concatenate([prompts[0][:10], prompt]) if i % 3 else prompt for i, prompt in enumerate(prompts)]
    for round_number in range(30):
        tokens = prompts[int(rng.integers(12))]
        if round_number % 3 == 0:
            hand.answer(tokens, PLAIN)
        else:
            check(cold, tokens, hand.answer(tokens, scored(round_number % 6)), round_number % 6)


def test_scored_sequences_survive_preemption(family: str, cold: Cold, rng: np.random.Generator) -> None:
    hand = ByHand(family, num_slots=256, max_step_tokens=32)
    long = Sampling(temperature=0.0, max_tokens=60, ignore_end=True, num_prompt_logprobs=2)
    prompts = [random_tokens(rng, 40) for _ in range(5)]
    streams = [hand.add(prompt, long) for prompt in prompts]
    hand.run()
    assert hand.stepper.scheduler.num_preemptions > 0
    for prompt, stream in zip(prompts, streams, strict=True):
        found = stream.result()
        cold.check(prompt, found, max_tokens=60)
        row = torch.log_softmax(cold.logits(prompt), dim=-1)
        for place in range(1, 40):
            entry = found.prompt_logprobs[place]
            assert entry is not None
            assert entry.logprob == pytest.approx(float(row[place - 1, prompt[place]]), abs=1e-4)


def test_one_token_prompt_has_nothing_to_score(family: str, cold: Cold) -> None:
    hand = ByHand(family)
    for _ in range(2):
        found = hand.answer([7], scored(3))
        assert found.prompt_logprobs == (None,)


def test_several_answers_score_the_prompt_once(family: str, cold: Cold, rng: np.random.Generator) -> None:
    hand = ByHand(family)
    tokens = random_tokens(rng, 20)
    sampling = Sampling(temperature=0.0, max_tokens=2, ignore_end=True, num_prompt_logprobs=1, num_sequences=3)
    check(cold, tokens, hand.answer(tokens, sampling), 1)
