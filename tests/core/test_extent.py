"""Runs of slots: joining, cutting, counting."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.core.extent import Extent, coalesce, count_slots, cut
from anaphora.testing.honest_memory import slots_of

extents = st.lists(st.builds(Extent, st.integers(0, 12), st.integers(1, 4)), max_size=6)


def test_an_extent_ends_before_its_stop():
    assert Extent(3, 4).stop == 7


def test_neighbours_in_slot_and_order_are_joined():
    assert coalesce([Extent(0, 2), Extent(2, 3), Extent(5, 1)]) == (Extent(0, 6),)


def test_neighbours_in_slot_but_not_in_order_stay_apart():
    assert coalesce([Extent(2, 3), Extent(0, 2)]) == (Extent(2, 3), Extent(0, 2))


def test_a_gap_keeps_extents_apart():
    assert coalesce([Extent(0, 2), Extent(3, 1)]) == (Extent(0, 2), Extent(3, 1))


def test_nothing_joined_is_nothing():
    assert coalesce([]) == ()


def test_a_cut_inside_an_extent_shares_it_out():
    assert cut([Extent(0, 4), Extent(9, 2)], 3) == ((Extent(0, 3),), (Extent(3, 1), Extent(9, 2)))


def test_a_cut_between_extents_splits_none():
    assert cut([Extent(0, 4), Extent(9, 2)], 4) == ((Extent(0, 4),), (Extent(9, 2),))


def test_a_cut_at_either_end_leaves_the_other_side_empty():
    assert cut([Extent(0, 4)], 0) == ((), (Extent(0, 4),))
    assert cut([Extent(0, 4)], 4) == ((Extent(0, 4),), ())


def test_a_cut_past_the_end_is_our_bug():
    with pytest.raises(AssertionError, match="more slots than"):
        cut([Extent(0, 4)], 5)


@given(extents)
def test_joining_keeps_every_slot_in_order(series):
    joined = coalesce(series)
    assert slots_of(joined) == slots_of(series)
    assert count_slots(joined) == len(slots_of(series))
    assert all(left.stop != right.start for left, right in pairwise(joined))


@given(extents, st.data())
def test_the_two_sides_of_a_cut_are_the_whole(series, data):
    at = data.draw(st.integers(0, count_slots(series)))
    front, back = cut(series, at)
    assert slots_of(front) == slots_of(series)[:at]
    assert slots_of(back) == slots_of(series)[at:]
