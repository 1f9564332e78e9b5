"""Blend: in which order nodes go, and that the half-life follows the workload. What any policy does: the contract."""

import random

import numpy as np
import pytest
from timed_entries import Timed, use

from anaphora.core.blend import HALF_LIVES_S, LRU, NUM_PATHS_BETWEEN, Blend
from anaphora.core.policy import LeastRecentlyUsed


def evict(policy):
    victim = policy.choose()
    policy.withdraw(victim)
    return victim


class Cache:
    """Entries of 100 tokens by name, in room for some of them."""

    def __init__(self, policy, room):
        self.policy, self.room, self.entries, self.num_hits = policy, room, {}, 0

    def use(self, name, time_s):
        entry = self.entries.get(name)
        self.num_hits += entry is not None
        if entry is None:
            while len(self.entries) >= self.room:
                del self.entries[evict(self.policy).name]
            entry = self.entries[name] = Timed(name)
        use(self.policy, entry, time_s)


def popular(rng):
    """A name, by Zipf's law."""
    return rng.choices(range(400), WEIGHTS)[0]


WEIGHTS = [1 / rank for rank in range(1, 401)]


class Talks:
    """Names that are used eight times each, 40 of them at a time: the more often, the sooner it is over."""

    def __init__(self, rng):
        self.rng, self.num_begun, self.num_left = rng, 0, {}

    def next(self):
        while len(self.num_left) < 40:
            self.num_begun += 1
            self.num_left[self.num_begun] = 8
        name = self.rng.choice(list(self.num_left))
        self.num_left[name] -= 1
        if not self.num_left[name]:
            del self.num_left[name]
        return ("talk", name)


def test_what_was_used_again_outlives_a_first_sweep():
    policy, again, sweep = Blend(), Timed("again"), [Timed(index) for index in range(10)]
    use(policy, again, 0.0)
    use(policy, again, 1.0)
    for time_s, entry in enumerate(sweep, start=2):
        use(policy, entry, float(time_s))
    assert [evict(policy) for _ in range(11)] == [*sweep, again]


def test_uses_long_ago_count_less():
    policy, often, lately = Blend(), Timed("often"), Timed("lately")
    for time_s in range(8):
        use(policy, often, float(time_s))
    use(policy, lately, 10_000.0)
    assert policy.choose() is often


def test_where_popularity_lasts_it_hits_more_than_lru():
    rng = random.Random(0)
    blend, lru = Cache(Blend(), 40), Cache(LeastRecentlyUsed(), 40)
    for step in range(6000):
        name = popular(rng)
        for cache in (blend, lru):
            cache.use(name, float(step))
    assert blend.policy.half_life_s >= 100.0
    assert blend.num_hits > 1.1 * lru.num_hits


def test_where_counts_mislead_it_is_lru_but_for_a_hit_or_two():
    talks = Talks(random.Random(0))
    blend, lru = Cache(Blend(), 40), Cache(LeastRecentlyUsed(), 40)
    for step in range(6000):
        name = talks.next()
        for cache in (blend, lru):
            cache.use(name, float(step))
    assert blend.policy.half_life_s == HALF_LIVES_S[LRU]
    assert lru.num_hits < 6000 * 0.8
    assert blend.num_hits == pytest.approx(lru.num_hits, abs=3)


def test_it_changes_its_mind_with_the_workload():
    rng = random.Random(0)
    talks, cache = Talks(rng), Cache(Blend(), 60)
    for step in range(1500):
        cache.use(popular(rng), float(step))
    assert cache.policy.half_life_s > 0.0
    for step in range(1500, 9000):
        cache.use(talks.next(), float(step))
    assert cache.policy.half_life_s == 0.0
    order = [evict(cache.policy).used_at for _ in range(60)]
    assert order == sorted(order)


def test_what_was_evicted_goes_on_where_it_was():
    policy = Blend()
    use(policy, Timed("back"), 0.0)
    evict(policy)
    use(policy, Timed("back"), 1.0)
    once = Timed("once")
    use(policy, once, 2.0)
    assert policy.choose() is once


def test_a_tail_that_came_with_the_last_use_alone_does_not_inherit():
    policy, prompt = Blend(), Timed("prompt", num_tokens=100)
    use(policy, prompt, 0.0)
    use(policy, prompt, 1.0)
    policy.withdraw(prompt)
    prompt.num_tokens = 130  # an answer was published
    use(policy, prompt, 2.0)
    once = Timed("once")
    use(policy, once, 3.0)
    head = Timed("prompt", num_tokens=100)
    prompt.name, prompt.num_tokens, prompt.parent, head.children = "tail", 30, head, [prompt]
    policy.split(head, prompt)
    use(policy, head, 4.0)
    assert evict(policy) is prompt
    head.children.clear()
    assert evict(policy) is once
    assert evict(policy) is head


def test_a_tail_of_what_was_there_before_inherits():
    policy, prompt = Blend(), Timed("prompt", num_tokens=130)
    use(policy, prompt, 0.0)
    use(policy, prompt, 1.0)
    once = Timed("once")
    use(policy, once, 2.0)
    head = Timed("prompt", num_tokens=100)
    prompt.name, prompt.num_tokens, prompt.parent, head.children = "tail", 30, head, [prompt]
    policy.split(head, prompt)
    use(policy, head, 3.0)
    assert evict(policy) is once


def test_what_comes_back_unused_goes_first_also_after_a_change():
    policy, kept, other = Blend(), Timed("kept"), Timed("other")
    use(policy, kept, 0.0)
    use(policy, other, 1.0)
    assert evict(policy) is kept
    policy.readmit(kept)
    rng = random.Random(0)
    others = {}
    for step in range(2, 800):
        name = rng.randrange(30)
        use(policy, others.setdefault(name, Timed(("x", name))), float(step))
    assert policy.choose() is kept


def test_a_parent_goes_when_what_hung_below_it_was_held_elsewhere():
    policy, parent = Blend(), Timed("parent")
    child, leaf = Timed("child", parent), Timed("leaf")  # the child is another tenant's
    use(policy, parent, 0.0)
    use(policy, leaf, 1.0)
    assert evict(policy) is leaf
    parent.children.remove(child)
    assert policy.choose() is parent


def test_a_heap_of_stale_places_is_cleared():
    policy, entries = Blend(), [Timed(index) for index in range(5)]
    for step in range(1000):
        use(policy, entries[step % 5], float(step))
    policy.choose()
    assert len(policy._heap) <= 2 * len(entries) + NUM_PATHS_BETWEEN


def test_tokens_cut_off_a_victim_are_no_room():
    policy, entry = Blend(), Timed("long", num_tokens=1000)
    use(policy, entry, 0.0)
    assert policy.choose() is entry
    entry.num_tokens = 400
    use(policy, Timed("other", num_tokens=600), 1.0)
    policy.choose()
    assert policy._num_held == 1000
    assert policy._room == pytest.approx(1000.0)


def test_shadows_stay_whole_through_random_use():
    rng = random.Random(3)
    cache = Cache(Blend(), 30)
    for step in range(3000):
        cache.use(popular(rng) % 100, rng.choice((0.0, 0.01, 500.0)) + step * 0.5)
        if step % 200 == 0:
            cache.policy._shadows.check()
    assert np.isfinite(cache.policy._leads).all()


def test_admitting_twice_and_splitting_or_readmitting_what_is_not_apart_are_our_bugs():
    policy, entry = Blend(), Timed("one")
    policy.admit(entry)
    with pytest.raises(AssertionError, match="admitted twice"):
        policy.admit(entry)
    with pytest.raises(AssertionError, match="not held here"):
        policy.split(Timed("head"), Timed("tail"))
    with pytest.raises(AssertionError, match="is held here"):
        policy.readmit(entry)


def test_nothing_but_leaves_under_lease_is_our_bug():
    policy, parent = Blend(), Timed("parent")
    Timed("child", parent)
    policy.admit(parent)
    with pytest.raises(AssertionError, match="no leaf"):
        policy.choose()
