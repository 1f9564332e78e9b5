"""Choosing tokens: every setting against a slow reference or a property that any draw must have.

Method: logits from fixed seeds; distributions are compared by counting thousands of draws.
"""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from anaphora.engine.request import Sampling
from anaphora.engine.sampler import TokenChooser, score

VOCAB_SIZE = 40
NUM_DRAWS = 4000


def chooser_for(sampling: Sampling, *, prompt: list[int] | None = None, index: int = 0) -> TokenChooser:
    tokens = np.asarray(prompt or [0], dtype=np.int32)
    return TokenChooser(sampling, tokens, index=index, vocab_size=VOCAB_SIZE)


def some_logits(seed: int = 0, spread: float = 2.0) -> Tensor:
    return torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * spread


def draws(sampling: Sampling, logits: Tensor, *, num_draws: int = NUM_DRAWS) -> Counter[int]:
    chooser = chooser_for(sampling)
    return Counter(chooser.choose(logits) for _ in range(num_draws))


def reference(logits: Tensor, sampling: Sampling) -> dict[int, float]:
    """Give every token's probability, one step after another, in plain Python."""
    best = max(logits.tolist())
    scores = {i: (x - best) / sampling.temperature for i, x in enumerate(logits.tolist())}
    kept = sorted(scores, key=lambda i: -scores[i])
    if sampling.top_k:
        kept = kept[: sampling.top_k]
    total = math.fsum(math.exp(scores[i]) for i in kept)
    chances = {i: math.exp(scores[i]) / total for i in kept}
    inside, mass = [], 0.0
    for i in kept:
        if mass < sampling.top_p and chances[i] >= sampling.min_p * chances[kept[0]]:
            inside.append(i)
        mass += chances[i]
    total = math.fsum(chances[i] for i in inside)
    return {i: chances[i] / total for i in inside}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=1),
        Sampling(seed=2, temperature=0.5),
        Sampling(seed=3, temperature=2.5),
        Sampling(seed=4, top_k=5),
        Sampling(seed=5, top_k=1000),
        Sampling(seed=6, top_p=0.7),
        Sampling(seed=7, min_p=0.2),
        Sampling(seed=8, temperature=1.5, top_k=12, top_p=0.8, min_p=0.1),
        Sampling(seed=9, top_p=1e-9),
        Sampling(seed=10, min_p=1.0),
    ],
    ids=str,
)
def test_draws_follow_the_reference_distribution(sampling: Sampling) -> None:
    logits = some_logits()
    expected, found = reference(logits, sampling), draws(sampling, logits)
    assert set(found) <= set(expected)
    for token_id, chance in expected.items():
        deviation = 5 * math.sqrt(NUM_DRAWS * chance * (1 - chance)) + 1
        assert abs(found[token_id] - NUM_DRAWS * chance) <= deviation


@given(st.integers(0, 50), st.floats(0.05, 0.999))
def test_top_p_is_the_smallest_head_that_reaches_p(seed: int, top_p: float) -> None:
    logits = some_logits(seed)
    allowed = reference(logits, Sampling(top_p=top_p))
    found = draws(Sampling(top_p=top_p, seed=seed), logits, num_draws=60)
    chances = torch.softmax(logits, dim=0)
    assert set(found) <= set(allowed)
    assert float(sum(chances[i] for i in allowed)) >= top_p - 1e-5
    assert float(sum(sorted(chances[i] for i in allowed)[1:])) < top_p + 1e-5


def test_temperature_zero_is_the_best_score_and_leaves_logits_alone() -> None:
    logits = some_logits()
    before = logits.clone()
    for sampling in (Sampling(temperature=0), Sampling(temperature=0, frequency_penalty=1.0, logit_bias={3: 100.0})):
        chooser = chooser_for(sampling)
        chooser.saw(5)
        chooser.choose(logits)
        assert torch.equal(logits, before)
    assert chooser_for(Sampling(temperature=0)).choose(logits) == int(logits.argmax())
    assert chooser_for(Sampling(temperature=0)).is_plain_greedy
    assert not chooser_for(Sampling(temperature=0, logit_bias={1: 0.5})).is_plain_greedy


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-30, 1e-44, 5e-324])
def test_small_temperatures_approach_greedy(temperature: float) -> None:
    logits = some_logits() * 10
    assert set(draws(Sampling(temperature=temperature, seed=0), logits, num_draws=50)) == {int(logits.argmax())}


@pytest.mark.parametrize("temperature", [100.0, 1e30, 1e300])
def test_large_temperatures_approach_equal_chances(temperature: float) -> None:
    found = draws(Sampling(temperature=temperature, seed=0), some_logits())
    assert len(found) == VOCAB_SIZE
    assert max(found.values()) < 3 * min(found.values())


def adjusted(logits: Tensor, sampling: Sampling, prompt: list[int], generated: list[int]) -> list[float]:
    """Apply bias and penalties, one token at a time."""
    scores = logits.tolist()
    for token_id, bias in sampling.logit_bias.items():
        scores[token_id] += bias
    for token_id in {*prompt, *generated}:
        factor = sampling.repetition_penalty
        scores[token_id] = scores[token_id] / factor if scores[token_id] > 0 else scores[token_id] * factor
    for token_id, count in Counter(generated).items():
        scores[token_id] -= sampling.presence_penalty + sampling.frequency_penalty * count
    return [float(value) for value in scores]


token_ids = st.integers(0, VOCAB_SIZE - 1)
adjusting = st.builds(
    Sampling,
    temperature=st.just(0),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.5, 2),
    logit_bias=st.dictionaries(token_ids, st.floats(-5, 5), max_size=5),
)


@given(st.integers(0, 30), adjusting, st.lists(token_ids, min_size=1, max_size=8), st.lists(token_ids, max_size=8))
def test_penalties_and_bias_are_the_formulas(
    seed: int, sampling: Sampling, prompt: list[int], generated: list[int]
) -> None:
    chooser = chooser_for(sampling, prompt=prompt)
    for token_id in generated:
        chooser.saw(token_id)
    expected = adjusted(some_logits(seed), sampling, prompt, generated)
    assert expected[chooser.choose(some_logits(seed))] == pytest.approx(max(expected), abs=1e-5)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=0, logit_bias={3: 3e38, 4: -3e38}),
        Sampling(seed=0, logit_bias={3: 100.0}),
        Sampling(seed=0, logit_bias={3: 3e38}, repetition_penalty=1e-38, presence_penalty=-3e38),
    ],
    ids=str,
)
def test_extreme_settings_still_choose_the_favoured_token(sampling: Sampling) -> None:
    chooser = chooser_for(sampling, prompt=[3])
    chooser.saw(3)
    assert {chooser.choose(some_logits()) for _ in range(50)} == {3}


def test_same_seed_same_draws_and_another_answer_draws_otherwise() -> None:
    logits = some_logits()
    sampling = Sampling(seed=11)

    def drawn(index: int) -> list[int]:
        chooser = chooser_for(sampling, index=index)
        return [chooser.choose(logits) for _ in range(40)]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    first, second = chooser_for(sampling), chooser_for(sampling, index=1)
    alternating = [(first.choose(logits), second.choose(logits)) for _ in range(40)]
    assert [one for one, _ in alternating] == drawn(0)
    assert [two for _, two in alternating] == drawn(1)


def test_without_a_seed_two_requests_draw_otherwise() -> None:
    logits = some_logits(spread=0.1)
    first, second = chooser_for(Sampling()), chooser_for(Sampling())
    assert [first.choose(logits) for _ in range(40)] != [second.choose(logits) for _ in range(40)]


@given(st.integers(0, 30), st.integers(0, 8))
def test_logprobs_are_the_log_softmax_of_the_untouched_scores(seed: int, num_top: int) -> None:
    logits = torch.stack([some_logits(seed), some_logits(seed + 100)])
    scored = score(logits, [4, 9], num_top=num_top)
    for row, token_id, one in zip(logits, [4, 9], scored, strict=True):
        total = math.log(math.fsum(math.exp(x) for x in row.tolist()))
        assert one.token_id == token_id
        assert one.logprob == pytest.approx(float(row[token_id]) - total, abs=1e-5)
        best = sorted(range(VOCAB_SIZE), key=lambda i: -float(row[i]))[:num_top]
        assert [i for i, _ in one.top] == best
        for i, logprob in one.top:
            assert logprob == pytest.approx(float(row[i]) - total, abs=1e-5)
