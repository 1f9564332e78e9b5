"""Prompts in flight that open alike are computed once; nobody waits for ever, whoever leaves.

Method: the scheduler over the real cache without a model, and the engine with a tiny model, step by step.
"""

import numpy as np
import pytest
from engine_world import ByHand, cold_copy
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_world import SPACE, World, sequence_of

from anaphora.core.cache import CacheLimits, PrefixCache
from anaphora.core.namespace import Namespace
from anaphora.core.owner import Quotas
from anaphora.engine import joining
from anaphora.engine.joining import MIN_JOINED
from anaphora.engine.request import GREEDY, Sampling, Tenant
from anaphora.engine.runner import Runner
from anaphora.engine.sequence import Sequence
from anaphora.errors import EngineFailure

ONE = Sampling(temperature=0.0, max_tokens=1)
RED, BLUE, COMMON = (Namespace(letter * 32) for letter in (b"r", b"b", b"c"))


def prompt(num_tokens: int, *, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 200, num_tokens)]


def start(world: World, *sequences: Sequence) -> tuple[Sequence, ...]:
    for sequence in sequences:
        world.scheduler.add(sequence)
    return sequences


def test_identical_prompts_that_arrive_together_are_computed_once() -> None:
    world = World(max_step_tokens=256, num_slots=4096)
    start(world, *(sequence_of(prompt(2000), max_new_tokens=1) for _ in range(8)))
    world.run()
    assert world.num_computed <= 1.02 * 2000
    assert world.scheduler.num_joined == 7


def test_prompts_that_share_a_part_compute_it_once_and_the_rest_side_by_side() -> None:
    world = World(max_step_tokens=4096, num_slots=8192)
    shared = prompt(1500)
    start(world, *(sequence_of(shared + prompt(40, seed=n), max_new_tokens=1) for n in range(1, 9)))
    assert [share.num_rows for share in world.step()] == [1500]
    assert [share.num_rows for share in world.step()] == [40] * 8
    world.run()
    assert world.num_computed == 1500 + 8 * 40


def test_a_chunk_ends_where_the_first_follower_leaves_the_leaders_way() -> None:
    world = World(max_step_tokens=4096, num_slots=8192)
    long = prompt(600)
    leader, near, far = start(
        world,
        sequence_of(long, max_new_tokens=1),
        sequence_of(long[:100] + prompt(50, seed=1), max_new_tokens=1),
        sequence_of(long[:400] + prompt(50, seed=2), max_new_tokens=1),
    )
    assert [(share.sequence, share.num_rows) for share in world.step()] == [(leader, 100)]
    assert [(share.sequence, share.num_rows) for share in world.step()] == [(leader, 300), (near, 50)]
    assert [(share.sequence, share.num_rows) for share in world.step()] == [(leader, 200), (far, 50)]


def test_who_shares_nothing_passes_those_who_wait() -> None:
    world = World(max_step_tokens=100, num_slots=1024)
    leader, follower, other = start(
        world,
        sequence_of(prompt(150), max_new_tokens=1),
        sequence_of(prompt(150), max_new_tokens=1),
        sequence_of(prompt(30, seed=1), max_new_tokens=1),
    )
    world.step()
    assert follower.lease is None
    world.step()
    assert other.lease is not None or other in world.finished
    world.run()
    assert follower in world.finished
    assert leader in world.finished


def test_little_is_not_waited_for() -> None:
    world = World(max_step_tokens=100, num_slots=1024)
    opening = prompt(MIN_JOINED - 1)
    start(world, *(sequence_of(opening + prompt(20, seed=n), max_new_tokens=1) for n in (1, 2)))
    assert len(world.step()) == 2
    world = World(max_step_tokens=100, num_slots=1024)
    opening = prompt(MIN_JOINED)
    start(world, *(sequence_of(opening + prompt(20, seed=n), max_new_tokens=1) for n in (1, 2)))
    assert [share.num_rows for share in world.step()] == [MIN_JOINED]


def test_what_is_cached_is_not_waited_for() -> None:
    world = World(max_step_tokens=1024, num_slots=1024)
    start(world, sequence_of(prompt(100), max_new_tokens=1))
    world.run()
    start(world, *(sequence_of(prompt(100), max_new_tokens=1) for _ in range(3)))
    assert [share.num_rows for share in world.step()] == [1, 1, 1]
    assert world.scheduler.num_joined == 0


def test_who_answers_leads_nobody() -> None:
    world = World(max_step_tokens=1024, num_slots=1024)
    leader, _ = start(
        world, sequence_of(prompt(100), max_new_tokens=9), sequence_of(prompt(40, seed=1), max_new_tokens=1)
    )
    world.step()
    assert leader.is_decoding
    world.scheduler.add(sequence_of(prompt(100) + [1] * 30, max_new_tokens=1))
    assert 31 - 1 in [share.num_rows for share in world.step()]


def test_a_leader_that_leaves_hands_over_what_it_has_published() -> None:
    world = World(max_step_tokens=100, num_slots=4096)
    leader, second, third = start(world, *(sequence_of(prompt(1000), max_new_tokens=1) for _ in range(3)))
    for _ in range(4):
        world.step()
    world.scheduler.remove(leader)
    assert [(share.sequence, share.num_rows) for share in world.step()] == [(second, 100)]
    assert second.lease is not None
    assert second.lease.num_reused == 400
    assert third.lease is None
    world.run()
    assert world.num_computed == 1001
    assert world.cache.counts().leased == 0


def test_without_reuse_nobody_waits() -> None:
    world = World(max_step_tokens=4096, num_slots=4096, cache=False)
    start(world, *(sequence_of(prompt(100), max_new_tokens=1) for _ in range(4)))
    assert [share.num_rows for share in world.step()] == [100] * 4


def test_below_a_cleared_leader_nobody_waits() -> None:
    world = World(max_step_tokens=60, num_slots=4096)
    start(world, *(sequence_of(prompt(100), max_new_tokens=1) for _ in range(2)))
    assert [share.num_rows for share in world.step()] == [60]
    world.cache.clear(None)
    assert [share.num_rows for share in world.step()] == [40, 20]


def test_tenants_meet_in_a_shared_region_only() -> None:
    def run(*, has_region: bool) -> World:
        cache = PrefixCache(4096, clock=lambda: 0.0)
        for space, tenant in ((RED, "red"), (BLUE, "blue")):
            cache.register(space, tenant, shared=COMMON)
        if has_region:
            cache.share(COMMON, np.array(prompt(200), dtype=np.int32))
        world = World(max_step_tokens=4096, cache=cache)
        start(world, *(sequence_of(prompt(300), max_new_tokens=1, space=space) for space in (RED, BLUE)))
        world.run()
        return world

    assert run(has_region=False).num_computed == 600
    assert run(has_region=True).num_computed == 200 + 100 + 100


def test_a_follower_that_opens_with_another_region_meets_nobody() -> None:
    cache = PrefixCache(4096, clock=lambda: 0.0)
    for space, tenant in ((RED, "red"), (BLUE, "blue")):
        cache.register(space, tenant, shared=COMMON)
    cache.share(COMMON, np.array(prompt(200), dtype=np.int32))
    world = World(max_step_tokens=4096, cache=cache)
    start(
        world,
        sequence_of(prompt(300), max_new_tokens=1, space=RED),
        sequence_of([*prompt(150), *prompt(50, seed=1)], max_new_tokens=1, space=BLUE),
    )
    assert sorted(share.num_rows for share in world.step()) == [200, 300]


crowds = st.lists(
    st.tuples(st.integers(0, 12), st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(0, 9)),
    min_size=1,
    max_size=14,
)


@settings(max_examples=200, deadline=None)
@given(crowds, st.integers(1, 40), st.integers(1, 6), st.sampled_from([64, 4096]))
def test_every_request_ends_whatever_the_crowd_and_shared_parts_are_computed_once(
    crowd: list[tuple[int, list[int], int]], max_step_tokens: int, max_sequences: int, num_slots: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "MIN_JOINED", 2)
        world = World(max_step_tokens=max_step_tokens, max_sequences=max_sequences, num_slots=num_slots)
        arrivals = [(at, sequence_of(tokens, max_new_tokens=new)) for at, tokens, new in crowd]
        now = 0
        while len(world.finished) < len(arrivals):
            for at, sequence in arrivals:
                if at == now:
                    world.scheduler.add(sequence)
            shares = world.step()
            assert shares or not (world.scheduler.running or world.scheduler.waiting)
            now += 1
            assert now < 2000, "somebody starves"
    assert world.cache.counts().leased == 0
    if num_slots == 4096:  # nothing is evicted
        distinct = {tuple(tokens[: n + 1]) for _, tokens, _ in crowd for n in range(len(tokens))}
        decoded = sum(max(0, new - 1) for _, _, new in crowd)
        assert world.num_computed <= len(distinct) + decoded + 2 * len(crowd)


@settings(max_examples=100, deadline=None)
@given(crowds, st.integers(1, 20), st.randoms(use_true_random=False))
def test_whoever_leaves_the_others_end_and_everything_comes_back(
    crowd: list[tuple[int, list[int], int]], max_step_tokens: int, random: object
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "MIN_JOINED", 2)
        world = World(max_step_tokens=max_step_tokens, max_sequences=5)
        alive = list(start(world, *(sequence_of(tokens, max_new_tokens=new) for _, tokens, new in crowd)))
        while alive:
            world.step()
            alive = [sequence for sequence in alive if sequence not in world.finished]
            if alive and random.random() < 0.3:  # type: ignore[attr-defined]
                gone = random.choice(alive)  # type: ignore[attr-defined]
                world.scheduler.remove(gone)
                alive.remove(gone)
            world.cache.check()
    counts = world.cache.counts()
    assert counts.leased == 0
    assert all(sequence.hold is None for sequence in world.finished)


# What waiting sequences find cached


def test_fifteen_that_are_admitted_before_it_do_not_evict_what_the_last_one_hits() -> None:
    world = World(max_step_tokens=4096, num_slots=900)
    start(world, sequence_of(prompt(200), max_new_tokens=1))
    world.run()
    strangers = [sequence_of(prompt(100, seed=n), max_new_tokens=1) for n in range(1, 15)]
    *_, last = start(world, *strangers, sequence_of(prompt(220), max_new_tokens=1))
    world.run()
    assert last in world.finished
    assert world.num_computed == 200 + 14 * 100 + 220 - 200


def test_holds_give_way_where_nothing_else_does() -> None:
    world = World(max_step_tokens=4096, num_slots=300)
    start(world, sequence_of(prompt(200), max_new_tokens=1))
    world.run()
    first, last = start(
        world, sequence_of(prompt(280, seed=1), max_new_tokens=1), sequence_of(prompt(200), max_new_tokens=1)
    )
    world.run()
    assert world.finished[1:] == [first, last]
    assert world.num_computed > 200 + 280 + 1


def test_a_hold_gives_way_before_a_running_sequence_is_preempted() -> None:
    world = World(max_step_tokens=4096, num_slots=300, max_sequences=1)
    start(world, sequence_of(prompt(100), max_new_tokens=1))
    world.run()
    start(world, sequence_of(prompt(50, seed=1), max_new_tokens=240), sequence_of(prompt(100), max_new_tokens=1))
    world.run()
    assert world.scheduler.num_preemptions == 0


def test_an_aborted_sequence_lets_go_of_what_was_held_for_it() -> None:
    world = World(num_slots=300)
    start(world, sequence_of(prompt(50), max_new_tokens=1))
    world.run()
    (gone,) = start(world, sequence_of(prompt(50), max_new_tokens=1))
    assert world.cache.counts().leased == 49
    world.scheduler.remove(gone)
    assert world.cache.counts().leased == 0


# Quotas


def test_others_pass_a_tenant_that_waits_for_itself_and_its_own_do_not() -> None:
    cache = PrefixCache(100, clock=lambda: 0.0, limits=CacheLimits(num_slack=0, quotas=Quotas({"red": 40, "blue": 60})))
    cache.register(RED, "red")
    cache.register(BLUE, "blue")
    world = World(cache=cache, max_step_tokens=4096)
    start(world, sequence_of(prompt(50, seed=9), max_new_tokens=1, space=BLUE, tenant=Tenant("blue")))
    world.run()
    red = [sequence_of(prompt(num, seed=num), max_new_tokens=9, space=RED, tenant=Tenant("red")) for num in (38, 37, 2)]
    blue = sequence_of(prompt(20, seed=8), max_new_tokens=1, space=BLUE, tenant=Tenant("blue"))
    start(world, *red, blue)
    assert [share.sequence for share in world.step()] == [red[0], blue]
    world.run()
    assert [sequence for sequence in world.finished if sequence in red] == red


# The engine


def test_eight_identical_requests_cost_little_more_than_one() -> None:
    world, cold = ByHand("llama", num_slots=1024, max_step_tokens=64), cold_copy("llama")
    tokens = prompt(300)
    streams = [world.add(tokens, GREEDY_4) for _ in range(8)]
    world.run()
    generations = [stream.result() for stream in streams]
    assert sum(generation.receipt.num_computed_tokens for generation in generations) <= 300 + 7
    for generation in generations:
        cold.check(tokens, generation, max_tokens=4)
    assert world.stepper.scheduler.num_joined == 7
    world.check_is_idle()


def test_when_the_leader_is_aborted_the_others_answer_as_if_it_had_never_been() -> None:
    world, cold = ByHand("llama", num_slots=1024, max_step_tokens=32), cold_copy("llama")
    tokens = prompt(200)
    streams = [world.add(tokens, GREEDY_4) for _ in range(3)]
    for _ in range(3):
        world.step()
    streams[0].abort()
    world.run()
    generations = [stream.result() for stream in streams[1:]]
    for generation in generations:
        cold.check(tokens, generation, max_tokens=4)
    second, third = (generation.receipt.num_computed_tokens for generation in generations)
    assert second == 200 - 96
    assert third < MIN_JOINED
    world.check_is_idle()


class _FailsOnce:
    """A runner whose third step goes wrong."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._num_steps = runner, 0

    def run(self, *arguments: object) -> object:
        self._num_steps += 1
        if self._num_steps == 3:
            raise RuntimeError("the third step fails")
        return self._runner.run(*arguments)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)


def test_when_the_leader_fails_the_others_go_on_from_what_it_had_computed() -> None:
    world = ByHand("llama", num_slots=1024, max_step_tokens=32, wrap=_FailsOnce)  # type: ignore[arg-type]
    cold, tokens = cold_copy("llama"), prompt(200)
    streams = [world.add(tokens, GREEDY_4) for _ in range(3)]
    world.run()
    with pytest.raises(EngineFailure):
        streams[0].result()
    for stream in streams[1:]:
        cold.check(tokens, stream.result(), max_tokens=4)
    world.check_is_idle()


GREEDY_4 = Sampling(temperature=0.0, max_tokens=4)


def test_the_space_of_the_scheduler_tests_is_nobodys_region() -> None:
    assert SPACE not in (RED, BLUE, COMMON)
    assert GREEDY.max_tokens is None
