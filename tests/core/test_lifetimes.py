"""Promises: kept until their time, renewed by reading, refused beyond the budget. Time is the test's own."""

import pytest
from small_words import SPACE, Clock, cached, lease_of, read, store, tokens

from anaphora.core.cache import RETENTION, CacheLimits, PrefixCache
from anaphora.core.evictable import Evictable
from anaphora.core.lease import Counts, Refusal
from anaphora.core.policy import POLICIES, LeastRecentlyUsed


def make_cache(num_slots: int, *, clock: Clock | None = None, budget: int | None = None, **options) -> PrefixCache:
    limits = CacheLimits(num_slack=0, num_retainable=num_slots if budget is None else budget)
    return PrefixCache(num_slots, clock=clock or Clock(), limits=limits, **{"policy": LeastRecentlyUsed, **options})


def flood(cache: PrefixCache, num_tokens: int) -> None:
    """Let prompts of one token each, that nobody asks for again, pass through the cache."""
    for index in range(num_tokens):
        store(cache, chr(1000 + index))


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_promised_outlives_a_flood_until_its_time_is_over(policy):
    clock = Clock()
    cache = make_cache(10, clock=clock, policy=POLICIES[policy])
    store(cache, "hello", keep=60)
    assert cache.counts() == Counts(free=5, evictable=0, leased=0, total=10, retained=5)
    flood(cache, 20)
    clock.now = 59.9
    flood(cache, 20)
    assert cached(cache, "hello") == 5
    clock.now = 60.0
    lease_of(cache, "0123456789")
    assert cached(cache, "hello") == 0
    assert cache.counts().retained == 0


def test_reading_all_of_it_starts_its_time_anew():
    clock = Clock()
    cache = make_cache(10, clock=clock)
    store(cache, "hello", keep=60)
    clock.now = 50.0
    assert read(cache, "hello there") == 5
    clock.now = 109.0
    flood(cache, 20)
    assert cached(cache, "hello") == 5
    clock.now = 110.0
    flood(cache, 20)
    assert cached(cache, "hello") == 0


def test_reading_a_part_of_it_does_not():
    clock = Clock()
    cache = make_cache(10, clock=clock)
    store(cache, "hello", keep=60)
    clock.now = 50.0
    assert read(cache, "help") == 3
    clock.now = 60.0
    flood(cache, 20)
    assert cached(cache, "hello") == 0


def test_a_shorter_promise_never_shortens_a_longer_one():
    clock = Clock()
    cache = make_cache(10, clock=clock)
    store(cache, "hello", keep=3600)
    store(cache, "hello", keep=5)
    clock.now = 3599.0
    flood(cache, 20)
    assert cached(cache, "hello") == 5


def test_a_longer_promise_takes_the_place_of_a_shorter_one():
    clock = Clock()
    cache = make_cache(10, clock=clock)
    store(cache, "hello", keep=5)
    store(cache, "hello", keep=3600)
    clock.now = 3599.0
    flood(cache, 20)
    assert cached(cache, "hello") == 5


def test_a_promise_covers_what_stands_in_front_and_nothing_behind():
    cache = make_cache(12)
    lease = lease_of(cache, "system user")
    assert cache.keep(lease, 6, lifetime_s=60) is None
    cache.release(lease)
    cache.check()
    assert cache.counts() == Counts(free=1, evictable=5, leased=0, total=12, retained=6)
    flood(cache, 20)
    assert cached(cache, "system user") == 6


def test_a_prefix_stays_as_long_as_the_longest_promise_that_needs_it():
    clock = Clock()
    cache = make_cache(12, clock=clock)
    store(cache, "abcd", keep=100)
    store(cache, "ab", keep=10)
    clock.now = 50.0
    flood(cache, 20)
    assert cached(cache, "abcd") == 4
    clock.now = 100.0
    flood(cache, 20)
    assert cached(cache, "abcd") == 0


def test_an_outer_promise_that_ends_later_leaves_the_inner_part_to_go_first():
    clock = Clock()
    cache = make_cache(4, clock=clock)
    store(cache, "ab", keep=100)
    store(cache, "abcd", keep=10)
    clock.now = 1.0
    assert isinstance(cache.acquire(SPACE, tokens("z"), max_reuse=1, num_private=1), Refusal)
    clock.now = 10.0
    flood(cache, 1)
    assert cached(cache, "abcd") == 3
    clock.now = 100.0
    flood(cache, 4)
    assert cached(cache, "abcd") == 0


def test_beyond_the_budget_nothing_is_promised_and_nothing_changes():
    cache = make_cache(20, budget=8)
    store(cache, "abcde", keep=60)
    lease = lease_of(cache, "wxyz")
    assert cache.keep(lease, 4, lifetime_s=60) == Refusal("retention_full", num_needed=4, num_available=3)
    assert cache.keep(lease, 3, lifetime_s=60) is None
    cache.release(lease)
    cache.check()
    assert cache.counts().retained == 8


def test_tokens_that_are_kept_already_cost_no_budget():
    cache = make_cache(20, budget=6)
    store(cache, "abcd", keep=60)
    store(cache, "abcdef", keep=60)
    store(cache, "abcd", keep=60)
    assert cache.counts().retained == 6


def test_budget_comes_back_when_promises_lapse():
    clock = Clock()
    cache = make_cache(20, clock=clock, budget=4)
    store(cache, "abcd", keep=60)
    clock.now = 60.0
    store(cache, "wxyz", keep=60)
    assert cache.counts() == Counts(free=12, evictable=4, leased=0, total=20, retained=4)


def test_unless_told_otherwise_a_part_of_the_pool_may_be_promised():
    cache = PrefixCache(40, clock=Clock())
    lease = lease_of(cache, "a" * 20)
    refusal = cache.keep(lease, 40 // RETENTION + 1, lifetime_s=60)
    assert refusal == Refusal("retention_full", num_needed=11, num_available=10)
    assert cache.keep(lease, 40 // RETENTION, lifetime_s=60) is None


def test_a_pin_stays_until_it_is_taken_back():
    clock = Clock()
    cache = make_cache(10, clock=clock)
    lease = lease_of(cache, "hello")
    assert cache.pin(lease, 5) is None
    cache.release(lease)
    clock.now = 1e9
    flood(cache, 20)
    assert cached(cache, "hello") == 5
    assert cache.unpin(SPACE, tokens("hell")) == 0
    assert cache.unpin(SPACE, tokens("hello there")) == 0
    assert cache.unpin(SPACE, tokens("other")) == 0
    assert cache.unpin(SPACE, tokens("hello")) == 5
    assert cache.unpin(SPACE, tokens("hello")) == 0
    cache.check()
    assert cache.counts().retained == 0
    flood(cache, 20)
    assert cached(cache, "hello") == 0


def test_a_pin_beyond_the_budget_is_refused():
    cache = make_cache(10, budget=4)
    assert cache.pin(lease_of(cache, "hello"), 5) == Refusal("retention_full", num_needed=5, num_available=4)


def test_a_lifetime_goes_on_under_a_pin():
    clock = Clock()
    cache = make_cache(10, clock=clock)
    lease = lease_of(cache, "hello")
    cache.keep(lease, 5, lifetime_s=60)
    cache.pin(lease, 5)
    cache.release(lease)
    clock.now = 70.0
    read(cache, "hello")  # at 70 it starts anew
    assert cache.unpin(SPACE, tokens("hello")) == 0
    clock.now = 129.0
    flood(cache, 20)
    assert cached(cache, "hello") == 5
    clock.now = 130.0
    flood(cache, 20)
    assert cached(cache, "hello") == 0


def test_what_is_kept_is_no_room_for_others():
    cache = make_cache(10)
    store(cache, "hello", keep=60)
    refusal = cache.acquire(SPACE, tokens("z" * 6), max_reuse=0, num_private=6)
    assert refusal == Refusal("pool_full", num_needed=6, num_available=5)


def test_a_match_of_what_is_kept_takes_no_room_from_its_own_lease():
    cache = make_cache(10)
    store(cache, "hello", keep=60)
    lease = lease_of(cache, "hello abcd")
    assert (lease.num_reused, cache.counts().leased) == (5, 10)


def test_a_kept_node_is_split_and_both_parts_stay():
    cache = make_cache(10)
    store(cache, "hello", keep=60)
    store(cache, "help")
    flood(cache, 20)
    assert cached(cache, "hello") == 5
    assert cache.counts().retained == 5


def test_a_split_of_what_was_set_aside_is_set_aside():
    clock = Clock()
    cache = make_cache(8, clock=clock)
    store(cache, "hello", keep=60)
    flood(cache, 20)  # the policy has named it meanwhile
    assert read(cache, "hel") == 3
    flood(cache, 20)
    clock.now = 60.0
    flood(cache, 8)
    assert cached(cache, "hello") == 0


def test_a_split_above_two_promises_counts_as_one_path():
    clock = Clock()
    cache = make_cache(12, clock=clock)
    store(cache, "abcdef", keep=60)
    store(cache, "abcd", keep=60)
    assert read(cache, "ab") == 2
    clock.now = 60.0
    flood(cache, 20)
    assert cached(cache, "abcdef") == 0


def test_clearing_ends_promises():
    cache = make_cache(10, budget=5)
    store(cache, "hello", keep=60)
    lease = lease_of(cache, "hello you")
    assert cache.clear(SPACE) == 9
    cache.check()
    assert cache.keep(lease, 9, lifetime_s=60) == Refusal("retention_full", num_needed=9, num_available=0)
    cache.release(lease)
    cache.check()
    assert cache.counts().free == 10
    store(cache, "abcde", keep=60)
    assert cache.counts().retained == 5


def test_a_published_end_is_not_extended_under_a_promise():
    cache = make_cache(20)
    lease = lease_of(cache, "hello", num_more=4)
    cache.keep(lease, 5, lifetime_s=60)
    cache.publish(lease, tokens("hello you"), 9)
    cache.release(lease)
    cache.check()
    assert cache.counts() == Counts(free=11, evictable=4, leased=0, total=20, retained=5)


class _Asked(LeastRecentlyUsed):
    """Counts how often it is asked for a victim."""

    num_asked = 0

    def choose(self) -> Evictable:
        _Asked.num_asked += 1
        return super().choose()


def test_eviction_looks_at_what_is_kept_once_and_not_again_and_again():
    cache = make_cache(1000, policy=_Asked)
    for index in range(100):
        store(cache, chr(5000 + index) * 5, keep=60)
    for index in range(100):
        store(cache, chr(6000 + index) * 5)
    _Asked.num_asked = 0
    for index in range(100):
        store(cache, chr(7000 + index) * 5)
    assert _Asked.num_asked == 200
    assert cache.counts().retained == 500


def test_what_a_policy_named_before_goes_next_when_its_time_is_over():
    clock = Clock()
    cache = make_cache(8, clock=clock)
    store(cache, "old", keep=60)
    flood(cache, 8)
    store(cache, "new")
    clock.now = 60.0
    store(cache, "xyz")
    assert (cached(cache, "old"), cached(cache, "new")) == (0, 3)


def test_a_policy_that_knows_no_readmission_gets_it_as_a_use():
    class Plain:
        """Least recently used, with the methods that every policy has and no more."""

        def __init__(self) -> None:
            inner = LeastRecentlyUsed()
            self.admit, self.withdraw, self.split = inner.admit, inner.withdraw, inner.split
            self.choose, self.inner = inner.choose, inner

        def __len__(self) -> int:
            return len(self.inner)

        def __contains__(self, entry: object) -> bool:
            return entry in self.inner

    clock = Clock()
    cache = make_cache(6, clock=clock, policy=Plain)
    store(cache, "old", keep=60)
    flood(cache, 8)
    clock.now = 60.0
    store(cache, "xyz")
    assert cached(cache, "old") == 3
    flood(cache, 6)
    assert cached(cache, "old") == 0
