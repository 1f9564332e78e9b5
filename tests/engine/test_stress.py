"""Hundreds of requests at once over a pool far too small, and clients that leave at random.

Every answer is the cold greedy one, whoever left beside it; in the end nothing is leased and nothing waits.
"""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from engine_world import Cold, check_is_idle, cold_copy, random_tokens, request_for, small_engine

from anaphora.engine.engine import Engine
from anaphora.engine.request import Generation, Sampling, Tenant
from anaphora.testing.random_models import FAMILIES

NUM_TRUNKS = 6
MOST_PROMPT, MOST_ANSWER = 180, 24
NUM_SLOTS = MOST_PROMPT + MOST_ANSWER + 60  # one long request fits, two don't


@dataclass(frozen=True, slots=True)
class Visit:
    """One client: what it asks for, and after how many pieces it leaves (None: it stays)."""

    prompt: list[int]
    sampling: Sampling
    tenant: Tenant
    leaves_after: int | None


def visits(seed: int, count: int) -> list[Visit]:
    """Draw clients whose prompts share openings, openings of openings, or nothing."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    trunks = [random_tokens(rng, MOST_PROMPT).tolist() for _ in range(NUM_TRUNKS)]
    found = []
    for _ in range(count):
        trunk = draw.choice(trunks)
        shared = draw.choice((0, 40, 41, 90, 150, len(trunk) - 1))
        own = random_tokens(rng, draw.randint(1, MOST_PROMPT - shared)).tolist()
        num_tokens = draw.choice((1, 2, 8, MOST_ANSWER))
        found.append(
            Visit(
                prompt=trunk[:shared] + own,
                sampling=Sampling(temperature=0.0, max_tokens=num_tokens, ignore_end=True),
                tenant=Tenant(draw.choice(("", "", "red"))),
                leaves_after=draw.choice((None, None, 0, 1, 3)),
            )
        )
    return found


def pay(engine: Engine, visit: Visit) -> Generation | None:
    """Ask, and read until the client leaves; None if it did."""
    stream = engine.submit(request_for(visit.prompt, visit.sampling, tenant=visit.tenant))
    if visit.leaves_after is None:
        return stream.result()
    for number, _ in enumerate(stream):
        if number >= visit.leaves_after:
            break
    stream.abort()
    return None


def check_storm(engine: Engine, cold: Cold, *, seed: int, count: int, num_clients: int) -> None:
    """Let clients come all at once, judge every answer of those that stayed, and look at what is left."""
    crowd = visits(seed, count)
    with ThreadPoolExecutor(num_clients) as doors:
        answers = list(doors.map(lambda visit: pay(engine, visit), crowd))
    stayed = [(visit, answer) for visit, answer in zip(crowd, answers, strict=True) if answer is not None]
    assert len(stayed) == sum(visit.leaves_after is None for visit in crowd)
    for visit, answer in stayed:
        assert visit.sampling.max_tokens is not None
        cold.check(visit.prompt, answer, max_tokens=visit.sampling.max_tokens)
    check_is_idle(engine)
    stats = engine.stats()
    assert stats.num_requests == stats.num_finished + stats.num_aborted
    assert stats.num_failed == 0
    assert cold.num_near_ties <= cold.num_tokens_compared // 100, "ties are rare"


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_a_crowd_over_a_pool_for_one_gets_cold_answers_and_leaves_nothing(kernels: str) -> None:
    with small_engine("llama", num_slots=NUM_SLOTS, queue_length=400, kernels=kernels) as engine:
        check_storm(engine, cold_copy("llama"), seed=1, count=200, num_clients=200)
        stats = engine.stats()
        assert stats.num_aborted > 20, "nobody left in the middle"
        assert stats.num_evicted_tokens > 10 * NUM_SLOTS, "the pool was not too small"
        assert stats.num_reused_tokens > 0, "nothing was shared"


def test_sequences_are_put_back_not_failed_where_answers_outgrow_the_pool() -> None:
    cold, rng = cold_copy("llama"), np.random.default_rng(5)
    sampling = Sampling(temperature=0.0, max_tokens=120, ignore_end=True)
    prompts = [random_tokens(rng, 20).tolist() for _ in range(12)]
    with small_engine("llama", num_slots=400) as engine:
        with ThreadPoolExecutor(len(prompts)) as doors:
            answers = list(doors.map(lambda prompt: engine.generate(prompt, sampling), prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            cold.check(prompt, answer, max_tokens=120)
        assert engine.stats().num_preemptions > 0
        check_is_idle(engine)


def test_a_long_request_among_a_stream_of_short_ones_gets_its_turn() -> None:
    """First come, first served: whatever comes later, who waits in front starts as soon as there is room."""
    rng = np.random.default_rng(6)
    short = Sampling(temperature=0.0, max_tokens=2, ignore_end=True)
    is_over = threading.Event()
    with small_engine("llama", num_slots=NUM_SLOTS, queue_length=400) as engine:

        def keep_asking(seed: int) -> int:
            own, count = np.random.default_rng(seed), 0
            while not is_over.is_set():
                engine.generate(random_tokens(own, 30).tolist(), short)
                count += 1
            return count

        with ThreadPoolExecutor(9) as doors:
            others = [doors.submit(keep_asking, seed) for seed in range(8)]
            deadline = time.monotonic() + 60
            while engine.stats().num_running < 2:
                assert time.monotonic() < deadline
                threading.Event().wait(0.001)
            num_before = engine.stats().num_finished
            whole_pool = random_tokens(rng, NUM_SLOTS - 8).tolist()
            answer = engine.generate(whole_pool, Sampling(temperature=0.0, max_tokens=4, ignore_end=True))
            num_passed = engine.stats().num_finished - num_before
            is_over.set()
            assert sum(other.result() for other in others) > 8
        assert len(answer.completions[0].token_ids) == 4
        assert num_passed <= 3 * 8 + 1, "those that came later went first"
        check_is_idle(engine)


@pytest.mark.torture
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_storms_over_every_family(family: str) -> None:
    for seed in range(3):
        with small_engine(family, num_slots=NUM_SLOTS, queue_length=1000) as engine:
            check_storm(engine, cold_copy(family), seed=seed, count=500, num_clients=300)
