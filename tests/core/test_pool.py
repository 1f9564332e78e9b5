"""The pool of slots: few extents, grown in place, joined again; against a plain set of free slots."""

import random

import pytest

from anaphora.core.extent import Extent
from anaphora.core.pool import LONG_RUN, MAX_GAP, Pool
from anaphora.testing.honest_memory import slots_of


def _pool_with_free(num_slots: int, *free: tuple[int, int]) -> Pool:
    """A pool of which only these runs, (start, length), are free."""
    pool = Pool(num_slots)
    pool.take(num_slots)
    pool.give_back(Extent(start, length) for start, length in free)
    return pool


def test_a_new_pool_is_one_free_run():
    pool = Pool(8)
    assert pool.free_extents() == (Extent(0, 8),)
    assert pool.num_free == 8


def test_taking_nothing_gives_nothing():
    pool = Pool(8)
    assert pool.take(0) == ()
    assert pool.take(0, after=3) == ()
    assert pool.num_free == 8


def test_the_shortest_run_that_fits_is_taken():
    pool = _pool_with_free(40, (0, 10), (12, 4), (20, 6), (30, 3))
    assert pool.take(4) == (Extent(12, 4),)
    assert pool.take(5) == (Extent(20, 5),)
    pool.check()


def test_several_runs_are_taken_only_when_none_is_long_enough_and_then_the_longest_first():
    pool = _pool_with_free(40, (0, 3), (10, 5), (20, 4))
    assert pool.take(10) == (Extent(10, 5), Extent(20, 4), Extent(0, 1))
    assert pool.free_extents() == (Extent(1, 2),)
    pool.check()


def test_slots_right_behind_a_sequence_are_taken_first():
    pool = _pool_with_free(40, (5, 10), (20, 3))
    assert pool.take(3, after=5) == (Extent(5, 3),)
    assert pool.free_extents() == (Extent(8, 7), Extent(20, 3))


def test_what_does_not_fit_behind_a_sequence_goes_elsewhere():
    pool = _pool_with_free(40, (5, 2), (20, 6))
    assert pool.take(5, after=5) == (Extent(5, 2), Extent(20, 3))
    pool.check()


def test_slots_behind_a_sequence_that_are_not_free_are_not_taken():
    pool = _pool_with_free(40, (20, 6))
    assert pool.take(5, after=5) == (Extent(20, 5),)
    assert pool.take(1, after=24) == (Extent(25, 1),)


def test_pieces_that_happen_to_be_adjacent_are_one_extent():
    pool = _pool_with_free(40, (5, 2), (7, 6))
    assert pool.take(8, after=5) == (Extent(5, 8),)


def test_a_new_sequence_leaves_the_one_before_it_an_eighth_of_the_rest_to_grow_in():
    pool = Pool(100)
    (first,) = pool.take(20)
    (second,) = pool.take(16)
    assert second == Extent(20 + (80 - 16) // 8, 16)
    assert pool.take(8, after=first.stop) == (Extent(20, 8),)
    pool.check()


def test_the_room_left_to_grow_in_has_a_limit():
    pool = Pool(100_000)
    pool.take(10)
    assert pool.take(10) == (Extent(10 + MAX_GAP, 10),)


def test_a_run_that_holds_all_or_is_long_is_known():
    pool = _pool_with_free(LONG_RUN + 100, (0, 8), (20, 12))
    assert pool.has_run(12)
    assert not pool.has_run(13)
    assert _pool_with_free(LONG_RUN + 100, (50, LONG_RUN)).has_run(LONG_RUN + 9)
    assert not _pool_with_free(LONG_RUN + 100, (50, LONG_RUN - 1)).has_run(LONG_RUN + 9)
    assert _pool_with_free(9).has_run(0)
    assert not _pool_with_free(9).has_run(1)


def test_the_first_sequence_starts_at_the_first_slot():
    assert Pool(100).take(10) == (Extent(0, 10),)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0)])
def test_free_neighbours_are_joined_whichever_comes_back_first(order):
    pool = Pool(9)
    pool.take(9)
    pieces = [Extent(0, 3), Extent(3, 3), Extent(6, 3)]
    for index in order:
        pool.give_back([pieces[index]])
        pool.check()
    assert pool.free_extents() == (Extent(0, 9),)


def test_more_than_is_free_is_our_bug():
    with pytest.raises(AssertionError, match="make room first"):
        Pool(4).take(5)


def test_giving_back_twice_is_our_bug():
    pool = _pool_with_free(10, (2, 3))
    with pytest.raises(AssertionError, match="given back twice"):
        pool.give_back([Extent(2, 3)])


def test_giving_back_what_is_free_in_part_is_our_bug():
    pool = Pool(6)
    with pytest.raises(AssertionError, match="more free slots than there are"):
        pool.give_back([Extent(4, 2)])


def test_a_pool_without_slots_is_our_bug():
    with pytest.raises(AssertionError, match="needs a slot"):
        Pool(0)


def _longest_run(free: set[int]) -> int:
    longest = length = 0
    for slot in range(max(free, default=0) + 1):
        length = length + 1 if slot in free else 0
        longest = max(longest, length)
    return longest


def test_random_use_agrees_with_a_set_of_free_slots():
    for seed in range(30):
        rng, pool = random.Random(seed), Pool(60)
        free, held = set(range(60)), []
        for _ in range(120):
            if rng.random() < 0.55:
                num_slots = rng.randint(0, len(free))
                after = rng.choice([None, rng.randrange(60)])
                longest = _longest_run(free)
                extents = pool.take(num_slots, after=after)
                slots = slots_of(extents)
                assert len(slots) == len(set(slots)) == num_slots
                assert set(slots) <= free
                assert len(extents) <= 1 + (after in free) or longest < num_slots
                free -= set(slots)
                held.append(extents)
            elif held:
                extents = held.pop(rng.randrange(len(held)))
                pool.give_back(extents)
                free |= set(slots_of(extents))
            pool.check()
            assert set(slots_of(pool.free_extents())) == free
            assert pool.num_free == len(free)
