"""A hit never changes an answer: scores and greedy tokens with the cache equal those of a cold model.

Method: for every family of tiny random models, the runner is driven by hand over scattered extents and its scores are
compared row by row with an untouched copy of the model; then whole engines answer, alone and crowded, and every token
is checked against the cold model (`engine_world.Cold`). Slots that nobody wrote hold NaN, so reading one shows.
"""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from engine_world import (
    ByHand,
    Cold,
    Direct,
    Slots,
    check_is_idle,
    cold_copy,
    first_of,
    random_tokens,
    request_for,
    small_engine,
)

from anaphora.engine.engine import Engine
from anaphora.engine.request import GREEDY, Sampling
from anaphora.testing.random_models import CACHEABLE_FAMILIES

WAYS = [(family, "auto") for family in sorted(CACHEABLE_FAMILIES)] + [("llama", "torch")]
"""Families, and what computes: `auto` is native kernels for the families that they know."""

MAX_TAIL = 64
SHORT = Sampling(temperature=0.0, max_tokens=2, ignore_end=True)


@pytest.fixture(scope="module", params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    family, kernels = request.param
    return family, kernels


@pytest.fixture(scope="module")
def family(way: tuple[str, str]) -> str:
    return way[0]


@pytest.fixture(scope="module")
def kernels(way: tuple[str, str]) -> str:
    return way[1]


@pytest.fixture(scope="module")
def cold(family: str) -> Iterator[Cold]:
    judge = cold_copy(family)
    yield judge
    print(f"{family}: {judge.num_near_ties} near ties in {judge.num_tokens_compared} tokens")


@pytest.fixture(scope="module")
def direct(family: str, kernels: str) -> Direct:
    return Direct(family, kernels=kernels)


@pytest.fixture(scope="module")
def engine(family: str, kernels: str) -> Iterator[Engine]:
    with small_engine(family, num_slots=8192, kernels=kernels) as running:
        yield running


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_every_tail_length_around_a_prefix_in_scattered_extents(
    direct: Direct, cold: Cold, rng: np.random.Generator
) -> None:
    prefix = random_tokens(rng, 70)
    slots = Slots(1024, rng, max_length=32)
    prefix_at = slots.take(len(prefix))
    tail_at = slots.take(MAX_TAIL)
    cold.check_scores(direct.prefill(prefix, prefix_at, chunk=len(prefix)), cold.logits(prefix))
    for num_tail in range(1, MAX_TAIL + 1):
        tokens = np.concatenate([prefix, random_tokens(rng, num_tail)])
        extents = (*prefix_at, *first_of(tail_at, num_tail))
        found = direct.step([(tokens, len(prefix), len(tokens), extents)])[0]
        cold.check_scores(found, cold.logits(tokens)[len(prefix) :])


@pytest.mark.parametrize("chunk", [1, 3, 7, 16])
def test_prompt_in_small_chunks_scores_as_a_whole(
    direct: Direct, cold: Cold, rng: np.random.Generator, chunk: int
) -> None:
    tokens = random_tokens(rng, 75)
    extents = Slots(512, rng, max_length=11).take(len(tokens))
    cold.check_scores(direct.prefill(tokens, extents, chunk=chunk), cold.logits(tokens))


@pytest.mark.parametrize("seed", range(6))
def test_ragged_steps_that_share_some_extents_and_not_others(direct: Direct, cold: Cold, seed: int) -> None:
    """A tree of prompts: all share a trunk, pairs share a branch, each has leaves of its own; steps mix them."""
    rng = np.random.default_rng(seed)
    slots = Slots(2048, rng, max_length=int(rng.integers(1, 150)))
    trunk = random_tokens(rng, int(rng.integers(1, 130)))
    trunk_at = slots.take(len(trunk))
    direct.prefill(trunk, trunk_at, chunk=int(rng.integers(1, 64)))
    parts = []
    for _ in range(3):
        branch = random_tokens(rng, int(rng.integers(1, 90)))
        branch_tokens, branch_at = np.concatenate([trunk, branch]), (*trunk_at, *slots.take(len(branch)))
        direct.step([(branch_tokens, len(trunk), len(branch_tokens), branch_at)])
        for _ in range(2):
            leaf = random_tokens(rng, int(rng.integers(2, 40)))
            tokens = np.concatenate([branch_tokens, leaf])
            parts.append((tokens, (*branch_at, *slots.take(len(leaf))), len(branch_tokens)))
    alone = random_tokens(rng, 30)
    parts.append((alone, slots.take(len(alone)), 0))
    done = [start for _, _, start in parts]
    expected = [cold.logits(tokens) for tokens, _, _ in parts]
    while any(now < len(tokens) for now, (tokens, _, _) in zip(done, parts, strict=True)):
        chosen = [i for i, (tokens, _, _) in enumerate(parts) if done[i] < len(tokens) and rng.random() < 0.8]
        stops = {i: min(len(parts[i][0]), done[i] + int(rng.choice([1, 1, 2, 9, 40]))) for i in chosen}
        if not chosen:
            continue
        found = direct.step([(parts[i][0], done[i], stops[i], parts[i][1]) for i in chosen])
        for i, logits in zip(chosen, found, strict=True):
            cold.check_scores(logits, expected[i][done[i] : stops[i]])
            done[i] = stops[i]


def test_engine_answers_every_tail_length_like_a_cold_model_and_computes_the_tail_alone(
    engine: Engine, cold: Cold, rng: np.random.Generator
) -> None:
    prefix = random_tokens(rng, 70)
    engine.generate(prefix, SHORT, max_tokens=0)
    for num_tail in range(1, MAX_TAIL + 1):
        tail = random_tokens(rng, num_tail)
        tail[0] = 256 + num_tail  # a token that no other prompt here goes on with
        tokens = np.concatenate([prefix, tail])
        found = engine.generate(tokens, SHORT)
        cold.check(tokens, found, max_tokens=2)
        assert found.receipt.num_computed_tokens == num_tail
        assert found.receipt.stop_reason in ("ended", "diverged")


def test_same_prompt_again_gives_the_same_answer_and_computes_one_token(
    engine: Engine, cold: Cold, rng: np.random.Generator
) -> None:
    for num_tokens in (1, 2, 31, 64, 128):
        tokens = random_tokens(rng, num_tokens)
        tokens[0] = 256 + num_tokens % 100
        first, second = engine.generate(tokens, SHORT), engine.generate(tokens, SHORT)
        assert first.receipt.num_computed_tokens == num_tokens
        assert second.receipt.num_computed_tokens == 1
        assert second.receipt.stop_reason == "whole_prompt"
        assert second.completions == first.completions
        cold.check(tokens, second, max_tokens=2)


def test_prompts_that_differ_in_the_first_token_share_nothing(
    engine: Engine, cold: Cold, rng: np.random.Generator
) -> None:
    tokens = random_tokens(rng, 50)
    tokens[0] = 301
    engine.generate(tokens, SHORT)
    tokens[0] = 302
    found = engine.generate(tokens, SHORT)
    assert found.receipt.num_reused_tokens == 0
    assert found.receipt.stop_reason == "nothing_cached"
    cold.check(tokens, found, max_tokens=2)


def test_prefix_that_ends_inside_a_node_is_reused_to_the_token(
    engine: Engine, cold: Cold, rng: np.random.Generator
) -> None:
    tokens = random_tokens(rng, 60)
    tokens[0] = 303
    engine.generate(tokens, SHORT)
    for num_shared in (59, 1, 30, 15, 45, 31, 29):
        other = tokens.copy()
        other[num_shared:] = random_tokens(rng, 60 - num_shared)
        other[num_shared] = 310 + num_shared
        found = engine.generate(other, SHORT)
        assert found.receipt.num_reused_tokens == num_shared
        assert found.receipt.stop_reason == "diverged"
        cold.check(other, found, max_tokens=2)
    for num_tokens in (20, 44):
        found = engine.generate(tokens[:num_tokens], SHORT)
        assert found.receipt.num_computed_tokens == 1
        cold.check(tokens[:num_tokens], found, max_tokens=2)


def test_longer_prompt_reuses_a_shorter_one_and_its_reply(engine: Engine, cold: Cold, rng: np.random.Generator) -> None:
    tokens = random_tokens(rng, 40)
    tokens[0] = 304
    sampling = Sampling(temperature=0.0, max_tokens=20, ignore_end=True)
    first = engine.generate(tokens, sampling)
    turn = [*tokens.tolist(), *first.completions[0].token_ids, *random_tokens(rng, 9).tolist()]
    second = engine.generate(turn, sampling)
    assert second.receipt.num_reused_tokens == 40 + 20 - 1  # all but the last sampled one, which never ran
    cold.check(turn, second, max_tokens=20)


def test_cached_and_uncached_engines_agree(family: str, kernels: str, cold: Cold, rng: np.random.Generator) -> None:
    prefix = random_tokens(rng, 40)
    prompts = [np.concatenate([prefix, random_tokens(rng, n)]) for n in (1, 5, 20)] + [prefix]
    sampling = Sampling(temperature=0.0, max_tokens=12)
    with (
        small_engine(family, cache=False, kernels=kernels) as plain,
        small_engine(family, kernels=kernels) as caching,
    ):
        for prompt in prompts * 2:
            one, other = plain.generate(prompt, sampling), caching.generate(prompt, sampling)
            assert one.receipt.num_reused_tokens == 0
            assert one.receipt.stop_reason == "cache_off"
            cold.check(prompt, one, max_tokens=12)
            cold.check(prompt, other, max_tokens=12)
        assert plain.stats().num_evictable_slots == 0


def crowd(seed: int, num_prompts: int) -> list[np.ndarray]:
    """Make prompts that overlap in parts of three trunks."""
    rng = np.random.default_rng(seed)
    trunks = [random_tokens(rng, n) for n in (90, 60, 25)]
    return [
        np.concatenate([trunks[i % 3][: int(rng.integers(5, 91))], random_tokens(rng, int(rng.integers(1, 20)))])
        for i in range(num_prompts)
    ]


@pytest.mark.parametrize(
    ("max_step_tokens", "cache"),
    [(7, True), pytest.param(64, True, marks=pytest.mark.torture), pytest.param(16, False, marks=pytest.mark.torture)],
)
def test_crowd_over_a_pool_too_small_for_it_is_answered_exactly(
    family: str, kernels: str, cold: Cold, max_step_tokens: int, cache: bool
) -> None:
    """Threads ask overlapping prompts; the pool evicts all the time."""
    sampling = Sampling(temperature=0.0, max_tokens=16, ignore_end=True)
    prompts = crowd(max_step_tokens, 20)
    failures: list[BaseException] = []
    limits = {"num_slots": 256, "max_step_tokens": max_step_tokens, "max_sequences": 12}
    with small_engine(family, **limits, cache=cache, kernels=kernels) as engine:

        def ask(mine: list[np.ndarray]) -> None:
            try:
                streams = [engine.submit(request_for(prompt, sampling)) for prompt in mine]
                for prompt, stream in zip(mine, streams, strict=True):
                    cold.check(prompt, stream.result(), max_tokens=16)
            except BaseException as failure:  # carried over to the test's own thread
                failures.append(failure)

        threads = [threading.Thread(target=ask, args=(prompts[i::4],)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
        check_is_idle(engine)
        stats = engine.stats()
        assert stats.num_reused_tokens > 0 or not cache
        assert stats.num_evicted_tokens > 0 or not cache


@pytest.mark.parametrize("max_step_tokens", [16, pytest.param(64, marks=pytest.mark.torture)])
def test_preempted_sequences_answer_exactly(family: str, kernels: str, cold: Cold, max_step_tokens: int) -> None:
    """Steps by hand, with requests arriving between them; the cache is checked after every step."""
    hand = ByHand(family, num_slots=256, max_step_tokens=max_step_tokens, max_sequences=12, kernels=kernels)
    sampling = Sampling(temperature=0.0, max_tokens=70, ignore_end=True)
    streams = []
    for prompt in crowd(max_step_tokens, 10):
        streams.append((prompt, hand.add(prompt, sampling)))
        hand.step()
    hand.run()
    assert hand.stepper.scheduler.num_preemptions > 0
    for prompt, stream in streams:
        cold.check(prompt, stream.result(), max_tokens=70)
    hand.check_is_idle()


def test_near_ties_are_rare(cold: Cold, engine: Engine, rng: np.random.Generator) -> None:
    """The allowance for near ties must not swallow real differences."""
    tokens = random_tokens(rng, 30)
    cold.check(tokens, engine.generate(tokens, GREEDY, max_tokens=64), max_tokens=64)
    assert cold.num_near_ties <= cold.num_tokens_compared / 100, (
        f"{cold.num_near_ties} near ties in {cold.num_tokens_compared} tokens"
    )
    assert torch.isfinite(cold.logits(tokens)).all()
