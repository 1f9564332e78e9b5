"""Shadows against caches that really run: the same uses, in each order, item by item."""

import random

import numpy as np
import pytest

from anaphora.core.shadows import NUM_BUCKETS, Shadows

WEIGHTS = (0.0, 2.5, 40.0)  # a rank is the time of the last use plus so much for each use


def ranks_of(now, num_uses):
    return np.array([now + weight * num_uses for weight in WEIGHTS])


class RealCache:
    """Holds the items of the highest ranks."""

    def __init__(self, room):
        self.room, self.ranks = room, {}

    def use(self, item, rank):
        is_hit = self.ranks.pop(item, None) is not None
        self.ranks[item] = rank
        while len(self.ranks) > self.room:
            del self.ranks[min(self.ranks, key=self.ranks.__getitem__)]
        return is_hit


@pytest.mark.parametrize("seed", range(8))
def test_each_shadow_hits_what_a_cache_in_its_order_hits(seed):
    rng, room = random.Random(seed), 20
    shadows = Shadows(np.full(len(WEIGHTS), 0.01))
    caches = [RealCache(room) for _ in WEIGHTS]
    uses, last, expected, found = {}, {}, np.zeros(len(WEIGHTS)), np.zeros(len(WEIGHTS))
    for step in range(3000):
        item = min(int(rng.expovariate(0.03)), 200)
        uses[item] = uses.get(item, 0) + 1
        ranks = ranks_of(step * 0.1 + 0.005, uses[item])
        expected += [cache.use(item, rank) for cache, rank in zip(caches, ranks, strict=True)]
        if item in last:
            found += shadows.take(last[item][None], np.array([1.0]))
        shadows.add(ranks[None], np.array([1.0]))
        shadows.fit(room)
        last[item] = ranks
        if step % 500 == 0:
            shadows.check()
    assert (expected > 500).all()
    assert len(set(expected)) == len(WEIGHTS)
    np.testing.assert_allclose(found, expected, rtol=0.02)


def test_of_the_bucket_at_the_border_a_part_counts():
    shadows = Shadows(np.array([1.0]))
    shadows.add(np.array([[0.5], [1.5]]), np.array([100.0, 30.0]))
    shadows.fit(80.0)
    assert shadows.take(np.array([[0.5]]), np.array([10.0])) == pytest.approx([5.0])
    assert shadows.take(np.array([[1.5]]), np.array([10.0])) == pytest.approx([10.0])


def test_what_is_below_the_border_is_gone():
    shadows = Shadows(np.array([1.0]))
    shadows.add(np.array([[0.5], [1.5]]), np.array([100.0, 100.0]))
    shadows.fit(100.0)
    assert shadows.take(np.array([[0.5]]), np.array([100.0])) == pytest.approx([0.0])
    shadows.add(np.array([[0.7]]), np.array([100.0]))
    assert shadows.take(np.array([[0.7]]), np.array([100.0])) == pytest.approx([0.0])
    shadows.check()


def test_buckets_grow_where_ranks_lie_far_apart_and_shrink_again():
    shadows = Shadows(np.array([1.0]))
    shadows.add(np.array([[0.5]]), np.array([10.0]))
    shadows.add(np.array([[10.0 * NUM_BUCKETS]]), np.array([10.0]))
    shadows.check()
    assert shadows.span(0) == pytest.approx(10.0 * NUM_BUCKETS, rel=0.01)
    assert shadows.take(np.array([[0.5]]), np.array([10.0])) == pytest.approx([10.0])
    shadows.add(np.array([[10.0 * NUM_BUCKETS + 20.0]]), np.array([10.0]))
    for _ in range(10):
        shadows.fit(15.0)
    shadows.check()
    shadows.add(np.array([[10.0 * NUM_BUCKETS + 40.0]]), np.array([10.0]))
    assert shadows.take(np.array([[10.0 * NUM_BUCKETS + 40.0]]), np.array([10.0])) == pytest.approx([10.0])
    assert shadows.span(0) == pytest.approx(40.0, abs=16.0)


def test_what_is_taken_twice_is_found_once():
    """Others may share a fingerprint, so a shadow can be asked for what it does not have."""
    shadows = Shadows(np.array([1.0, 2.0]))
    shadows.add(np.array([[0.5, 0.5]]), np.array([10.0]))
    shadows.take(np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([10.0, 10.0]))
    shadows.check()
    shadows.add(np.array([[3.0, 3.0]]), np.array([10.0]))
    assert shadows.take(np.array([[3.0, 3.0]]), np.array([10.0])) == pytest.approx([10.0, 10.0])


def test_a_border_moves_over_a_long_idle_time():
    shadows = Shadows(np.array([1.0]))
    shadows.add(np.array([[0.5], [2000.5]]), np.array([10.0, 10.0]))
    shadows.fit(10.0)
    assert shadows.span(0) == 0.0
    shadows.check()
