"""Tenants: quotas with borrowing, and regions that they share without sharing what follows."""

from small_words import BLUE, COMMON, GREEN, RED, SPACE, Clock, cached, lease_of, read, store, tokens

from anaphora.core.cache import CacheLimits, PrefixCache
from anaphora.core.events import Cleared, Evicted, Stored
from anaphora.core.evictable import Priority
from anaphora.core.lease import Counts, Lease, Refusal
from anaphora.core.owner import Owners, Quotas

SYSTEM = "SYSTEM "


def make_cache(
    num_slots: int, quotas: dict[str, int] | None = None, *, default: int | None = None, **options
) -> PrefixCache:
    limits = CacheLimits(num_slack=0, num_retainable=num_slots, quotas=Quotas(quotas or {}, default))
    cache = PrefixCache(num_slots, clock=Clock(), limits=limits, **options)
    for space, tenant in ((RED, "red"), (BLUE, "blue"), (GREEN, "green")):
        cache.register(space, tenant, shared=COMMON)
    return cache


def sharing_cache(num_slots: int = 100, **options) -> PrefixCache:
    cache = make_cache(num_slots, **options)
    cache.share(COMMON, tokens(SYSTEM))
    return cache


# Quotas


def test_a_tenant_may_fill_what_nobody_else_uses():
    cache = make_cache(12, {"red": 4})
    store(cache, "0123456789ab", space=RED)
    assert cached(cache, "0123456789ab", space=RED) == 12


def test_who_has_borrowed_loses_first_whatever_was_used_last():
    cache = make_cache(12, {"red": 4, "blue": 4})
    store(cache, "blue", space=BLUE)
    store(cache, "12345678", space=RED)
    store(cache, "abcd", space=GREEN)
    assert cached(cache, "blue", space=BLUE) == 4
    assert cached(cache, "12345678", space=RED) == 4


def test_a_borrower_loses_what_it_borrowed_and_no_more():
    cache = make_cache(12, {"red": 4, "blue": 4})
    store(cache, "blue", space=BLUE)
    store(cache, "12345678", space=RED)
    for index in range(5):
        store(cache, f"{index}abc", space=GREEN)
    assert cached(cache, "blue", space=BLUE) == 4
    assert cached(cache, "12345678", space=RED) == 4
    assert cached(cache, "4abc", space=GREEN) == 4


def test_a_borrower_is_asked_for_what_it_borrowed_and_no_more():
    owners = Owners(12, Quotas({"red": 4, "blue": 4}))
    red = owners.of("red")
    red.num_owned = red.num_evictable = 10
    owners.changed(red)
    assert owners.first_to_lose(owners.of("blue"), 2) == (red, 6)
    assert owners.first_to_lose(red, 2) == (red, 10), "its own may all go"


def test_a_flood_of_one_tenant_leaves_the_others_alone():
    cache = make_cache(20, {"red": 8, "blue": 8})
    store(cache, "blueblue", space=BLUE)
    store(cache, "gree", space=GREEN)
    for index in range(100):
        store(cache, f"{chr(1000 + index)}123456", space=RED)
    assert cached(cache, "blueblue", space=BLUE) == 8
    assert cached(cache, "gree", space=GREEN) == 4


def test_the_one_farthest_beyond_its_quota_loses_first():
    cache = make_cache(16, {"red": 2, "blue": 2, "green": 4})
    store(cache, "bluebl", space=BLUE)
    store(cache, "redredrede", space=RED)
    store(cache, "gg", space=GREEN)
    assert cached(cache, "redredrede", space=RED) == 8
    assert cached(cache, "bluebl", space=BLUE) == 6


def test_it_does_not_matter_who_borrowed_first():
    cache = make_cache(16, {"red": 2, "blue": 2, "green": 4})
    store(cache, "redredrede", space=RED)
    store(cache, "bluebl", space=BLUE)
    store(cache, "gg", space=GREEN)
    assert cached(cache, "redredrede", space=RED) == 8
    assert cached(cache, "bluebl", space=BLUE) == 6


def test_where_nobody_has_borrowed_who_is_nearest_to_its_quota_loses():
    cache = make_cache(12, {"red": 4, "blue": 4, "green": 2})
    store(cache, "redr", space=RED)
    store(cache, "bl", space=BLUE)
    lease_of(cache, "nobody", space=SPACE)
    store(cache, "1", space=GREEN)
    assert cached(cache, "redr", space=RED) == 3
    assert cached(cache, "bl", space=BLUE) == 2


def test_a_default_quota_is_of_each_tenant_that_is_not_named():
    cache = make_cache(8, default=4)
    store(cache, "blue", space=BLUE)
    store(cache, "1234", space=RED)
    store(cache, "56", space=RED)
    assert cached(cache, "blue", space=BLUE) == 4
    assert cached(cache, "1234", space=RED) == 2


def test_beyond_its_quota_a_tenant_waits_for_its_own_leases_rather_than_take_from_others():
    cache = make_cache(12, {"red": 4, "blue": 6})
    store(cache, "bluebl", space=BLUE)
    first = lease_of(cache, "1234", space=RED)
    refusal = cache.acquire(RED, tokens("abcd"), max_reuse=0, num_private=4)
    assert refusal == Refusal("quota_full", num_needed=4, num_available=2)
    assert isinstance(cache.acquire(RED, tokens("ab"), max_reuse=0, num_private=2), Lease)
    cache.release(first)
    assert cached(cache, "bluebl", space=BLUE) == 6


def test_with_nothing_running_a_tenant_may_take_what_it_needs():
    cache = make_cache(12, {"red": 4, "blue": 6})
    store(cache, "bluebl", space=BLUE)
    store(cache, "12345678", space=RED)
    assert (cached(cache, "12345678", space=RED), cached(cache, "bluebl", space=BLUE)) == (8, 4)


def test_a_hold_without_slots_is_nothing_running():
    cache = make_cache(12, {"red": 4, "blue": 6})
    store(cache, "bluebl", space=BLUE)
    store(cache, "12", space=RED)
    hold = cache.acquire(RED, tokens("12"), max_reuse=2, num_private=0)
    assert isinstance(hold, Lease)
    assert isinstance(cache.acquire(RED, tokens("abcdefgh"), max_reuse=0, num_private=8), Lease)


def test_a_lease_that_has_begun_grows_whatever_the_quota():
    cache = make_cache(8, {"red": 2, "blue": 4})
    store(cache, "blue", space=BLUE)
    lease = lease_of(cache, "12", space=RED)
    assert cache.grow(lease, 6) is None
    cache.check()
    assert cached(cache, "blue", space=BLUE) == 0


def test_longer_runs_are_made_of_what_was_borrowed_or_is_ones_own():
    limits = CacheLimits(num_slack=8, quotas=Quotas({"red": 4, "blue": 8}))
    cache = PrefixCache(16, clock=Clock(), limits=limits)
    cache.register(RED, "red")
    cache.register(BLUE, "blue")
    for text in ("ab", "cd", "ef", "gh"):
        store(cache, text, space=BLUE)
        store(cache, text.upper(), space=RED)
    lease = cache.acquire(RED, tokens("xyz"), max_reuse=0, num_private=3)
    assert isinstance(lease, Lease)
    cache.check()
    assert sum(cached(cache, text, space=BLUE) for text in ("ab", "cd", "ef", "gh")) == 8


def test_promises_to_a_tenant_stay_within_its_quota():
    cache = make_cache(20, {"red": 4})
    lease = lease_of(cache, "123456", space=RED)
    assert cache.keep(lease, 5, lifetime_s=60) == Refusal("retention_full", num_needed=5, num_available=4)
    assert cache.keep(lease, 3, lifetime_s=60) is None
    other = lease_of(cache, "abcd", space=RED)
    assert cache.keep(other, 2, lifetime_s=60) == Refusal("retention_full", num_needed=2, num_available=1)
    assert cache.keep(other, 1, lifetime_s=60) is None


def test_two_namespaces_of_a_tenant_share_its_quota():
    cache = PrefixCache(8, clock=Clock(), limits=CacheLimits(num_slack=0, quotas=Quotas({"red": 4, "blue": 4})))
    cache.register(RED, "red")
    cache.register(GREEN, "red")
    cache.register(BLUE, "blue")
    store(cache, "blue", space=BLUE)
    store(cache, "1234", space=RED)
    store(cache, "abcd", space=GREEN)
    assert cached(cache, "blue", space=BLUE) == 4
    assert cached(cache, "1234", space=RED) == 0


# Shared regions


def test_a_region_is_computed_by_one_tenant_and_reused_by_all():
    cache = sharing_cache()
    store(cache, SYSTEM + "red", space=RED)
    assert cached(cache, SYSTEM + "red", space=BLUE) == len(SYSTEM)
    store(cache, SYSTEM + "blue", space=BLUE)
    assert cached(cache, SYSTEM + "blue", space=BLUE) == len(SYSTEM) + 4
    assert cache.counts().evictable == len(SYSTEM) + 3 + 4


def test_what_follows_a_region_is_shared_by_nobody_not_even_its_first_token():
    cache = sharing_cache()
    store(cache, SYSTEM + "red", space=RED)
    for text in ("red", "r", "reX"):
        match = cache.peek(BLUE, tokens(SYSTEM + text))
        assert (match.num_tokens, match.diverged) == (len(SYSTEM), False)


def test_a_prompt_that_opens_with_a_part_of_a_region_shares_nothing():
    cache = sharing_cache()
    store(cache, SYSTEM + "red", space=RED)
    assert cached(cache, SYSTEM[:-1], space=BLUE) == 0
    assert cached(cache, SYSTEM[:-1] + "x", space=BLUE) == 0
    store(cache, SYSTEM[:-1] + "x", space=BLUE)
    assert cached(cache, SYSTEM[:-1] + "x", space=RED) == 0


def test_without_registration_nothing_is_shared():
    cache = PrefixCache(100, clock=Clock())
    cache.share(COMMON, tokens(SYSTEM))
    store(cache, SYSTEM + "red", space=RED)
    assert cached(cache, SYSTEM, space=BLUE) == 0


def test_a_region_may_open_with_another():
    cache = sharing_cache()
    cache.share(COMMON, tokens(SYSTEM + "TOOLS "))
    cache.share(COMMON, tokens(SYSTEM + "TOOLS "))
    store(cache, SYSTEM + "TOOLS x", space=RED)
    assert cached(cache, SYSTEM + "TOOLS y", space=BLUE) == len(SYSTEM + "TOOLS ")
    assert cached(cache, SYSTEM + "y", space=BLUE) == len(SYSTEM)
    store(cache, SYSTEM + "T", space=BLUE)
    assert cached(cache, SYSTEM + "T", space=GREEN) == len(SYSTEM)
    assert cached(cache, SYSTEM + "TOOLS z", space=GREEN) == len(SYSTEM + "TOOLS ")


def test_what_others_have_below_a_shorter_region_does_not_show_in_a_longer_one():
    cache = sharing_cache()
    cache.share(COMMON, tokens(SYSTEM + "TOOLS "))
    store(cache, SYSTEM + "x", space=RED)
    match = cache.peek(BLUE, tokens(SYSTEM + "TOOLS y"))
    assert (match.num_tokens, match.diverged) == (len(SYSTEM), False)


def test_the_end_of_a_region_stays_a_node_of_its_own():
    cache = sharing_cache()
    cache.share(COMMON, tokens(SYSTEM + "TOOLS "))
    store(cache, SYSTEM + "x", space=RED)
    store(cache, SYSTEM + "TOOLS ", space=BLUE)
    assert cached(cache, SYSTEM + "TOOLS ", space=RED) == len(SYSTEM + "TOOLS ")
    assert cached(cache, SYSTEM + "x", space=RED) == len(SYSTEM) + 1


def test_a_region_is_shared_while_it_is_being_published():
    cache = sharing_cache()
    text = tokens(SYSTEM + "red")
    lease = cache.acquire(RED, text, max_reuse=9, num_private=10)
    assert isinstance(lease, Lease)
    assert cache.publish(lease, text, 4) == 4
    cache.check()
    assert cached(cache, SYSTEM + "blue", space=BLUE) == 4
    other = lease_of(cache, SYSTEM + "blue", space=BLUE)
    assert other.num_reused == 4
    assert cache.publish(lease, text, 10) == 3
    cache.check()
    cache.release(lease)
    cache.release(other)
    cache.check()
    assert cache.counts().evictable == len(SYSTEM) + 3 + 4


def test_a_prompt_that_is_a_region_and_nothing_more_leases_it_up_to_its_last_token():
    cache = sharing_cache()
    store(cache, SYSTEM, space=RED)
    lease = cache.acquire(BLUE, tokens(SYSTEM), max_reuse=len(SYSTEM) - 1, num_private=4)
    assert isinstance(lease, Lease)
    assert lease.num_reused == len(SYSTEM) - 1
    assert cache.publish(lease, tokens(SYSTEM + "abc"), len(SYSTEM) + 3) == 3
    cache.check()
    assert cached(cache, SYSTEM + "abc", space=BLUE) == len(SYSTEM) + 3
    assert cached(cache, SYSTEM + "abc", space=RED) == len(SYSTEM)


def test_two_leases_of_a_tenant_meet_below_a_region():
    cache = sharing_cache()
    text = SYSTEM + "same"
    leases = [cache.acquire(RED, tokens(text), max_reuse=0, num_private=len(text)) for _ in range(2)]
    for lease in leases:
        assert isinstance(lease, Lease)
        cache.publish(lease, tokens(text), len(SYSTEM))
        cache.check()
    assert cache.publish(leases[0], tokens(text), len(text)) == 4
    assert cache.publish(leases[1], tokens(text), len(text)) == 0
    cache.check()
    assert cache.counts().free == 100 - len(text)


def test_a_tenants_tree_below_a_region_rises_with_what_is_published_in_it():
    cache = sharing_cache(20)
    store(cache, SYSTEM + "low", space=RED, priority=Priority.LOW)
    store(cache, SYSTEM + "high", space=RED, priority=Priority.HIGH)
    store(cache, "0123456", space=BLUE)
    assert cached(cache, SYSTEM + "low", space=RED) == len(SYSTEM) + 2
    assert cached(cache, SYSTEM + "high", space=RED) == len(SYSTEM) + 4


def test_what_is_shared_goes_last():
    cache = sharing_cache(16)
    store(cache, SYSTEM + "red", space=RED)
    for index in range(20):
        store(cache, f"{index:06}", space=BLUE)
    assert cached(cache, SYSTEM, space=RED) == len(SYSTEM)
    assert cached(cache, SYSTEM + "red", space=RED) == len(SYSTEM)
    lease = lease_of(cache, "0123456789abcdef", space=BLUE)
    cache.release(lease)
    cache.check()
    assert cached(cache, SYSTEM, space=RED) == 0


def test_what_is_shared_goes_after_what_is_far_within_a_quota():
    cache = sharing_cache(20, quotas={"red": 16, "blue": 2})
    store(cache, SYSTEM, space=BLUE)
    store(cache, "r", space=RED)
    lease_of(cache, "nobodys lea.", space=SPACE)
    store(cache, "b", space=BLUE)
    assert cached(cache, "r", space=RED) == 0
    assert cached(cache, SYSTEM, space=BLUE) == len(SYSTEM)


def test_what_is_shared_counts_against_no_tenants_quota_but_comes_out_of_what_the_quotas_leave():
    cache = sharing_cache(20, quotas={"red": 4, "blue": 4})
    store(cache, SYSTEM + "red", space=RED)
    store(cache, "blue", space=BLUE)
    store(cache, "gggggg", space=GREEN)
    store(cache, "hh", space=GREEN)
    assert cached(cache, SYSTEM + "red", space=RED) == len(SYSTEM) + 3
    assert cached(cache, "blue", space=BLUE) == 4
    assert cached(cache, "gggggg", space=GREEN) == 4


def test_clearing_a_tenant_leaves_the_region_and_the_other_tenants():
    cache = sharing_cache()
    store(cache, SYSTEM + "red", space=RED)
    store(cache, "mine", space=RED)
    store(cache, SYSTEM + "blue", space=BLUE)
    assert cache.clear(RED) == 7
    cache.check()
    assert cached(cache, SYSTEM + "red", space=RED) == len(SYSTEM)
    assert cached(cache, SYSTEM + "blue", space=BLUE) == len(SYSTEM) + 4


def test_a_lease_below_a_cleared_tree_stays_good_and_is_found_by_nobody():
    cache = sharing_cache()
    lease = lease_of(cache, SYSTEM + "red", space=RED, num_more=2)
    assert lease.is_findable
    assert cache.clear(RED) == 3
    assert not lease.is_findable
    cache.check()
    assert cache.publish(lease, tokens(SYSTEM + "red!!"), len(SYSTEM) + 5) == 0
    cache.check()
    assert cached(cache, SYSTEM + "red", space=RED) == len(SYSTEM)
    store(cache, SYSTEM + "red", space=RED)
    assert cached(cache, SYSTEM + "red", space=RED) == len(SYSTEM) + 3
    assert cache.clear(RED) == 3
    cache.release(lease)
    cache.check()
    assert cache.counts() == Counts(free=100 - len(SYSTEM), evictable=len(SYSTEM), leased=0, total=100)


def test_clearing_a_region_takes_all_that_hangs_from_it():
    heard = []
    cache = sharing_cache(listener=heard.append)
    store(cache, SYSTEM + "red", space=RED)
    held = lease_of(cache, SYSTEM + "blue", space=BLUE)
    heard.clear()
    assert cache.clear(COMMON) == len(SYSTEM) + 3 + 4
    cache.check()
    assert {event.namespace: event.num_tokens for event in heard if isinstance(event, Cleared)} == {
        COMMON: len(SYSTEM),
        RED: 3,
        BLUE: 4,
    }
    assert cached(cache, SYSTEM, space=BLUE) == 0
    cache.release(held)
    cache.check()
    assert cache.counts().free == 100


def test_events_name_the_namespace_that_tokens_are_in():
    heard = []
    cache = sharing_cache(16, listener=heard.append)
    store(cache, SYSTEM + "red", space=RED)
    assert [(type(event), event.namespace, event.num_tokens) for event in heard] == [
        (Stored, COMMON, len(SYSTEM)),
        (Stored, RED, 3),
    ]
    heard.clear()
    lease_of(cache, "0123456789abcdef", space=BLUE)
    assert [(type(event), event.namespace, event.num_tokens) for event in heard] == [
        (Evicted, RED, 3),
        (Evicted, COMMON, len(SYSTEM)),
        (Stored, BLUE, 16),
    ]


def test_a_promise_below_a_region_keeps_the_region_too():
    cache = sharing_cache(16)
    lease = lease_of(cache, SYSTEM + "red", space=RED)
    assert cache.keep(lease, len(SYSTEM) + 3, lifetime_s=60) is None
    cache.release(lease)
    cache.check()
    assert cache.counts().retained == len(SYSTEM) + 3
    store(cache, "12345", space=BLUE)
    assert read(cache, SYSTEM + "red", space=RED) == len(SYSTEM) + 3
    assert cache.clear(RED) == 3
    cache.check()
    assert cache.counts().retained == 0


def test_a_promise_that_ends_with_the_region_is_its_own():
    cache = sharing_cache(16)
    lease = lease_of(cache, SYSTEM + "red", space=RED)
    assert cache.keep(lease, len(SYSTEM), lifetime_s=60) is None
    cache.release(lease)
    cache.check()
    assert cache.counts() == Counts(free=6, evictable=3, leased=0, total=16, retained=len(SYSTEM))
