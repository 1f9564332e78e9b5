"""Priorities: all of a lower one goes before any of a higher one."""

from small_words import Clock, cached, read, store

from anaphora.core.cache import CacheLimits, PrefixCache
from anaphora.core.evictable import Priority


def make_cache(num_slots: int) -> PrefixCache:
    return PrefixCache(num_slots, clock=Clock(), limits=CacheLimits(num_slack=0))


def test_low_goes_before_normal_before_high_whatever_was_used_last():
    cache = make_cache(9)
    store(cache, "hig", priority=Priority.HIGH)
    store(cache, "nor")
    store(cache, "low", priority=Priority.LOW)
    store(cache, "abc")
    assert [cached(cache, text) for text in ("hig", "nor", "low", "abc")] == [3, 3, 0, 3]
    store(cache, "de")
    assert [cached(cache, text) for text in ("hig", "nor", "abc", "de")] == [3, 1, 3, 2]
    store(cache, "fghijk")
    assert [cached(cache, text) for text in ("hig", "nor", "abc", "de")] == [3, 0, 0, 0]


def test_what_is_used_by_a_higher_priority_gets_it_with_all_in_front():
    cache = make_cache(10)
    store(cache, "system", priority=Priority.LOW)
    store(cache, "sysX", priority=Priority.HIGH)
    store(cache, "nor")
    store(cache, "ab")
    assert [cached(cache, text) for text in ("system", "sysX", "nor")] == [4, 4, 3]
    store(cache, "cd")
    assert [cached(cache, text) for text in ("system", "sysX", "nor")] == [3, 4, 2]


def test_a_lower_use_lowers_nothing():
    cache = make_cache(8)
    store(cache, "abcd", priority=Priority.HIGH)
    store(cache, "abcdef", priority=Priority.LOW)
    store(cache, "wxyz")
    assert (cached(cache, "abcdef"), cached(cache, "wxyz")) == (4, 4)


def test_a_low_answer_below_a_normal_prompt_is_low_by_itself():
    cache = make_cache(8)
    store(cache, "abcd")
    store(cache, "abcdef", priority=Priority.LOW)
    read(cache, "abcd")
    store(cache, "xyz")
    assert cached(cache, "abcdef") == 5


def test_both_parts_of_a_split_have_the_priority():
    cache = make_cache(8)
    store(cache, "abcd", priority=Priority.HIGH)
    store(cache, "abzz")
    store(cache, "wxyz")
    assert (cached(cache, "abcd"), cached(cache, "wxyz")) == (4, 4)
