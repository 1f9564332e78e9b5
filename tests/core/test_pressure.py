"""The cache with tenants, regions, promises, pins and priorities against a plain model, after every single operation.

Hypothesis drives any order of operations, and a seeded run counts the situations that it meets. `make torture` does a
million operations.
"""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pressure_world import BUDGET, COMMON, SPACES, Pressure

from anaphora.core.evictable import Priority
from anaphora.core.policy import POLICIES

LIFETIMES = (5.0, 60.0, None)
TORTURE_OPERATIONS = 1_000_000

spaces = st.sampled_from(list(SPACES))
openings = st.sampled_from([[], [0, 1, 1], [0, 1, 1, 0], [0, 1]])
prompts = st.builds(lambda opening, rest: opening + rest, openings, st.lists(st.integers(0, 1), max_size=7))
has_running = precondition(lambda self: self.world.running)


class PressureMachine(RuleBasedStateMachine):
    """Any order of operations at all."""

    num_operations = 0  # of all runs

    @initialize(policy=st.sampled_from(list(POLICIES)))
    def build(self, policy):
        self.world = Pressure(policy)

    def teardown(self) -> None:
        world = self.world
        while world.running:
            world.release(world.running[0])
        assert world.cache.counts().leased == 0
        PressureMachine.num_operations += world.num_operations

    @rule(
        space=spaces,
        tokens=prompts,
        short=st.integers(0, 3),
        num_private=st.integers(0, 9),
        priority=st.sampled_from(Priority),
    )
    def acquire(self, space, tokens, short, num_private, priority):
        max_reuse = max(0, len(tokens) - short)
        self.world.acquire(space, tokens, max_reuse=max_reuse, num_private=num_private, priority=priority)

    @has_running
    @rule(which=st.integers(0, 9), stop=st.integers(0, 12))
    def publish(self, which, stop):
        self.world.compute_and_publish(self._one(which), stop)

    @has_running
    @rule(which=st.integers(0, 9), num_slots=st.integers(0, 5), tokens=st.lists(st.integers(0, 1), max_size=3))
    def grow(self, which, num_slots, tokens):
        self.world.grow(self._one(which), num_slots, tokens)

    @has_running
    @rule(which=st.integers(0, 9), num_tokens=st.integers(1, 12), lifetime_s=st.sampled_from(LIFETIMES))
    def keep(self, which, num_tokens, lifetime_s):
        one = self._one(which)
        if one.lease.num_published:
            self.world.keep(one, min(num_tokens, one.lease.num_published), lifetime_s)

    @rule(which=st.integers(0, 99))
    def unpin(self, which):
        pinned = [key for key, promise in self.world.model.promised.items() if promise.is_pinned]
        if pinned:
            space, _, prefix = pinned[which % len(pinned)]
            self.world.unpin(space if space != COMMON else next(iter(SPACES)), list(prefix))

    @has_running
    @rule(which=st.integers(0, 9))
    def release(self, which):
        self.world.release(self._one(which))

    @rule(seconds=st.sampled_from([1.0, 5.0, 60.0]))
    def wait(self, seconds):
        self.world.wait(seconds)

    @rule(space=st.sampled_from([*SPACES, COMMON, None]))
    def clear(self, space):
        self.world.clear(space)

    def _one(self, which):
        return self.world.running[which % len(self.world.running)]


def _settings(num_examples: int, num_steps: int) -> settings:
    return settings(
        max_examples=num_examples,
        stateful_step_count=num_steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


TestPressureMachine = PressureMachine.TestCase
TestPressureMachine.settings = _settings(60, 50)


def _step(world: Pressure, rng: random.Random) -> None:
    """One operation of a server's life: tenants share a system prompt, some promise, some are cancelled."""
    kind = rng.random()
    if not world.running or (kind < 0.3 and len(world.running) < 5):
        tokens = rng.choice([[], [0, 1, 1], [0, 1, 1, 0], [1, 0]]) + [rng.randrange(2) for _ in range(rng.randrange(6))]
        world.acquire(
            rng.choice(list(SPACES)),
            tokens,
            max_reuse=max(0, len(tokens) - rng.choice([0, 1, 1, 3])),
            num_private=rng.choice([0, len(tokens), len(tokens) + 1, rng.randrange(14)]),
            priority=rng.choice([Priority.NORMAL, Priority.NORMAL, Priority.LOW, Priority.HIGH]),
        )
        return
    one = rng.choice(world.running)
    if kind < 0.55:
        world.compute_and_publish(one, rng.choice([rng.randrange(12), 99]))
    elif kind < 0.62:
        world.grow(one, rng.randrange(4), [rng.randrange(2) for _ in range(rng.randrange(3))])
    elif kind < 0.72 and one.lease.num_published:
        world.keep(one, rng.randint(1, min(BUDGET, one.lease.num_published)), rng.choice(LIFETIMES))
    elif kind < 0.76:
        pinned = [key for key, promise in world.model.promised.items() if promise.is_pinned]
        for space, _, prefix in pinned[:1]:
            world.unpin(space if space != COMMON else next(iter(SPACES)), list(prefix))
    elif kind < 0.80:
        world.wait(rng.choice([1.0, 4.0, 30.0]))
    elif kind < 0.81:
        world.clear(rng.choice([*SPACES, COMMON, None]))
    else:
        world.release(one)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seeded_run_agrees_with_the_model_and_meets_every_situation(policy):
    met: Counter[str] = Counter()
    for seed in range(4):
        rng, world = random.Random(seed), Pressure(policy)
        for _ in range(400):
            _step(world, rng)
        while world.running:
            world.release(world.running[0])
        assert world.cache.counts().leased == 0
        met.update(world.situations)
    assert {name for name, count in met.items() if count >= 3} >= {
        "adopted",
        "cancelled",
        "lapsed",
        "lost what was borrowed",
        "lost within the quota",
        "promise refused",
        "promised",
        "refused: pool_full",
        "refused: quota_full",
        "unpinned",
    }, met


@pytest.mark.torture
def test_a_million_operations_agree_with_the_model():
    """Half an hour or more."""

    class Long(PressureMachine):
        pass

    before, num_steps = PressureMachine.num_operations, 100
    Long.TestCase.settings = _settings(TORTURE_OPERATIONS // num_steps, num_steps)
    Long.TestCase().runTest()
    rng, world = random.Random(0), Pressure()
    while PressureMachine.num_operations - before + world.num_operations < TORTURE_OPERATIONS:
        _step(world, rng)  # hypothesis leaves some steps out
    assert PressureMachine.num_operations - before >= TORTURE_OPERATIONS // 2
