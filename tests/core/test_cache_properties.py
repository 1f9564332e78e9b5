"""The cache against its reference model and a memory that can't lie, in a pool that is always too small.

After every operation: counts, matches, refusals, what was written and what was evicted equal the model's,
every lease reads back exactly its own tokens, and the cache's own invariants hold. A seeded run also counts
situations, so that a change which stops the tests from reaching one is seen.
"""

import random
from collections import Counter

import pytest
from cache_world import SPACES, World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from anaphora.core import cache as cache_module
from anaphora.core.index import Node

NUM_SLOTS = 18

bits = st.integers(0, 1)
prompts = st.lists(bits, max_size=10)
spaces = st.sampled_from(SPACES)


class CacheMachine(RuleBasedStateMachine):
    """Any order of operations at all."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(NUM_SLOTS)

    @rule(space=spaces, tokens=prompts, max_reuse=st.integers(0, 11), num_private=st.integers(0, 9))
    def acquire(self, space, tokens, max_reuse, num_private):
        self.world.acquire(space, tokens, max_reuse=max_reuse, num_private=num_private)

    @rule(space=spaces, tokens=prompts)
    def peek(self, space, tokens):
        self.world.peek(space, tokens)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def compute(self, data):
        sequence = data.draw(st.sampled_from(self.world.running))
        most = min(len(sequence.tokens), sequence.lease.num_slots)
        self.world.compute(sequence, data.draw(st.integers(sequence.num_computed, most)))

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def publish(self, data):
        sequence = data.draw(st.sampled_from(self.world.running))
        stop = data.draw(st.integers(sequence.lease.num_published, sequence.num_computed))
        self.world.publish(sequence, stop)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), num_tokens=st.integers(0, 6), tokens=prompts)
    def grow(self, data, num_tokens, tokens):
        sequence = data.draw(st.sampled_from(self.world.running))
        for token in tokens:
            self.world.append(sequence, token)
        self.world.grow(sequence, num_tokens)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def release(self, data):
        self.world.release(data.draw(st.sampled_from(self.world.running)))

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def fork(self, data):
        self.world.fork(data.draw(st.sampled_from(self.world.running)))

    @rule(space=st.sampled_from([*SPACES, None]))
    def clear(self, space):
        self.world.clear(space)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def _step(world: World, rng: random.Random) -> None:
    """One operation of a server's life: many share a prefix, most are published, some are cancelled."""
    kind = rng.random()
    if not world.running or (kind < 0.3 and len(world.running) < 4):
        tokens = [0, 1, 0][: rng.randrange(4)] + [rng.randrange(2) for _ in range(rng.randrange(8))]
        max_reuse = rng.choice([len(tokens), max(0, len(tokens) - 1), rng.randrange(len(tokens) + 1)])
        num_private = rng.choice([len(tokens), rng.randrange(4), rng.randrange(20)])
        world.acquire(rng.choice(SPACES), tokens, max_reuse=max_reuse, num_private=num_private)
        return
    sequence = rng.choice(world.running)
    lease = sequence.lease
    if kind < 0.55:
        world.compute(sequence, max(sequence.num_computed, min(len(sequence.tokens), lease.num_slots)))
        stop = rng.choice([sequence.num_computed, rng.randint(lease.num_published, sequence.num_computed)])
        world.publish(sequence, stop)
    elif kind < 0.65:
        most = min(len(sequence.tokens), lease.num_slots)
        world.compute(sequence, rng.randint(sequence.num_computed, most))
    elif kind < 0.75:
        world.append(sequence, rng.randrange(2))
        world.grow(sequence, rng.randrange(4))
    elif kind < 0.8:
        world.fork(sequence)
    elif kind < 0.85:
        world.peek(sequence.space, [*sequence.tokens, rng.randrange(2)])
    elif kind < 0.86:
        world.clear(rng.choice([*SPACES, None]))
    else:
        world.release(sequence)


def _count_calls(monkeypatch: pytest.MonkeyPatch, situations: Counter[str]) -> None:
    """Count what happens to nodes inside the cache."""
    for name in ("split", "trim", "extend", "absorb"):
        original = getattr(Node, name)

        def counted(node, argument, *more, original=original, name=name):
            situations[f"{name} of {'a leased' if node.num_held else 'an unleased'} node"] += 1
            return original(node, argument, *more)

        monkeypatch.setattr(Node, name, counted)


def test_a_seeded_run_agrees_with_the_model_and_meets_every_situation(monkeypatch):
    met: Counter[str] = Counter()
    _count_calls(monkeypatch, met)
    for seed in range(20):
        monkeypatch.setattr(cache_module, "SLACK", 32 if seed % 2 else 6)
        rng, world = random.Random(seed), World(NUM_SLOTS)
        for _ in range(350):
            _step(world, rng)
        while world.running:
            world.release(world.running[0])
        assert world.cache.counts().leased == 0
        met.update(world.situations)
    assert {name for name, count in met.items() if count >= 5} >= {
        "evicted beside a held node",
        "evicted more for a longer run",
        "split of a leased node",
        "split of an unleased node",
        "trim of an unleased node",
        "extend of a leased node",
        "absorb of an unleased node",
        "adopted what another published",
        "adopted what another published and added to it",
        "refused: pool full",
        "refused: larger than pool",
        "growth refused",
        "grew in place",
        "grew elsewhere",
        "cancelled",
        "cleared under a lease",
    }, met
    assert "trim of a leased node" not in met
