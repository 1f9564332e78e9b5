"""The cache's behaviour, one sentence a test. Prompts are words; a letter is a token."""

import numpy as np
import pytest

from anaphora.core import pool as pool_module
from anaphora.core.cache import EVICT_STEP, MERGE_LIMIT, SLACK, PrefixCache
from anaphora.core.events import Cleared, Evicted, Stored
from anaphora.core.extent import Extent
from anaphora.core.index import common_length, place_of
from anaphora.core.lease import Counts, Lease, Match, Refusal
from anaphora.core.namespace import Namespace
from anaphora.core.policy import LeastRecentlyUsed

SPACE = Namespace(b"s" * 32)
OTHER = Namespace(b"o" * 32)


def tokens(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text], dtype=np.int32)


def make_cache(num_slots: int = 100, **options) -> PrefixCache:
    return PrefixCache(num_slots, **{"clock": lambda: 0.0, **options})


def acquire(cache, text, *, num_private=None, max_reuse=None, space=SPACE) -> Lease:
    """Lease a prompt; by default with room for exactly its tokens."""
    max_reuse = len(text) if max_reuse is None else max_reuse
    if num_private is None:
        num_private = len(text) - min(max_reuse, cache.peek(space, tokens(text)).num_tokens)
    lease = cache.acquire(space, tokens(text), max_reuse=max_reuse, num_private=num_private)
    cache.check()
    assert isinstance(lease, Lease)
    return lease


def store(cache, text, *, space=SPACE) -> None:
    """Cache a prompt and let go of it."""
    lease = acquire(cache, text, space=space)
    cache.publish(lease, tokens(text), len(text))
    cache.release(lease)
    cache.check()


def num_cached(cache, text, *, space=SPACE) -> int:
    return cache.peek(space, tokens(text)).num_tokens


def num_nodes(cache) -> int:
    """Nodes that nobody leases."""
    return len(policy_of(cache)) if cache.counts().evictable else 0


def policy_of(cache):
    """The one policy of a cache without quotas and priorities."""
    return cache._owners.rest.ranks[0].policy


# Looking


def test_an_empty_cache_matches_nothing():
    assert make_cache().peek(SPACE, tokens("word")) == Match(0, (), diverged=False)


def test_a_match_ends_at_the_first_token_that_differs():
    cache = make_cache()
    store(cache, "the quick")
    assert cache.peek(SPACE, tokens("the queen")) == Match(6, (Extent(0, 6),), diverged=True)


def test_a_match_that_ends_where_the_cached_text_ends_has_not_diverged():
    cache = make_cache()
    store(cache, "the")
    assert cache.peek(SPACE, tokens("the quick")) == Match(3, (Extent(0, 3),), diverged=False)
    assert cache.peek(SPACE, tokens("th")) == Match(2, (Extent(0, 2),), diverged=False)


def test_a_prompt_that_differs_in_its_first_token_has_diverged_at_once():
    cache = make_cache()
    store(cache, "the")
    assert cache.peek(SPACE, tokens("a")) == Match(0, (), diverged=True)


def test_an_empty_prompt_matches_nothing():
    cache = make_cache()
    store(cache, "the")
    assert cache.peek(SPACE, tokens("")) == Match(0, (), diverged=False)


def test_peek_does_not_refresh():
    cache = make_cache(8)
    store(cache, "aaaa")
    store(cache, "bbbb")
    cache.peek(SPACE, tokens("aaaa"))
    store(cache, "cccc")
    assert num_cached(cache, "aaaa") == 0
    assert num_cached(cache, "bbbb") == 4


def test_namespaces_never_see_each_other():
    cache = make_cache()
    store(cache, "secret")
    assert num_cached(cache, "secret", space=OTHER) == 0
    lease = acquire(cache, "secret", space=OTHER)
    assert cache.publish(lease, tokens("secret"), 6) == 6
    assert cache.counts().evictable == 6


# Acquiring


def test_a_lease_reuses_the_prefix_and_has_private_room_behind_it():
    cache = make_cache()
    store(cache, "system ")
    lease = acquire(cache, "system ask")
    assert (lease.num_reused, lease.num_published, lease.num_slots) == (7, 7, 10)
    assert lease.extents == (Extent(0, 10),)
    assert lease.namespace == SPACE


def test_no_more_than_max_reuse_is_reused():
    cache = make_cache()
    store(cache, "word")
    lease = acquire(cache, "word", max_reuse=3)
    assert lease.num_reused == 3
    assert cache.counts() == Counts(free=95, evictable=1, leased=4, total=100)


def test_only_what_is_reused_is_pinned():
    cache = make_cache()
    store(cache, "the quick")
    acquire(cache, "the slow", num_private=0)
    assert cache.counts() == Counts(free=91, evictable=5, leased=4, total=100)


def test_a_lease_of_nothing_is_a_lease():
    cache = make_cache()
    lease = acquire(cache, "", num_private=0)
    assert lease.extents == ()
    cache.release(lease)
    assert cache.counts().free == 100


def test_two_leases_share_a_prefix_until_the_last_is_released():
    cache = make_cache()
    store(cache, "system ")
    first, second = acquire(cache, "system a"), acquire(cache, "system b")
    assert first.extents[0].start == second.extents[0].start == 0
    cache.release(first)
    assert cache.counts().evictable == 0
    cache.release(second)
    assert cache.counts().evictable == 7


def test_a_published_prompt_is_leased_whole_for_its_second_answer():
    cache = make_cache()
    first = acquire(cache, "prompt")
    cache.publish(first, tokens("prompt"), 6)
    second = acquire(cache, "prompt", num_private=2)
    assert second.num_reused == 6
    assert first.extents == (Extent(0, 6),)
    assert second.extents == (Extent(0, 8),)


def test_full_pool_refuses_and_changes_nothing():
    cache = make_cache(10)
    acquire(cache, "abcdefgh")
    before = cache.counts()
    refusal = cache.acquire(SPACE, tokens("xyz"), max_reuse=3, num_private=3)
    assert refusal == Refusal("pool_full", num_needed=3, num_available=2)
    assert cache.counts() == before
    cache.check()


def test_what_can_never_fit_is_refused_by_another_name():
    cache = make_cache(10)
    refusal = cache.acquire(SPACE, tokens("xyz"), max_reuse=3, num_private=11)
    assert refusal == Refusal("larger_than_pool", num_needed=11, num_available=10)
    store(cache, "abcde")
    refusal = cache.acquire(SPACE, tokens("abcde"), max_reuse=5, num_private=6)
    assert refusal == Refusal("larger_than_pool", num_needed=6, num_available=5)


def test_a_lease_may_fill_the_pool_to_the_last_slot():
    cache = make_cache(10)
    store(cache, "abcd")
    lease = acquire(cache, "abcd", num_private=6)
    assert cache.counts() == Counts(free=0, evictable=0, leased=10, total=10)
    assert lease.num_slots == 10


def test_a_refusal_splits_no_node_and_keeps_no_empty_tree():
    cache = make_cache(10)
    store(cache, "abcdef")
    acquire(cache, "uvw", space=OTHER)
    assert isinstance(cache.acquire(SPACE, tokens("abc"), max_reuse=3, num_private=5), Refusal)
    assert isinstance(cache.acquire(Namespace(b"n"), tokens("abc"), max_reuse=3, num_private=8), Refusal)
    assert num_nodes(cache) == 1
    assert len(cache._forest.roots) == 2


def test_a_match_is_not_evicted_to_make_room_for_its_own_lease():
    cache = make_cache(10)
    store(cache, "abcd")
    store(cache, "wxyz")
    lease = acquire(cache, "abcdef", num_private=6)
    assert lease.num_reused == 4
    assert num_cached(cache, "wxyz") == 0


def test_the_callers_buffer_is_not_kept():
    cache = make_cache()
    buffer = tokens("a long buffer of which a part is cached")
    lease = cache.acquire(SPACE, buffer[:6], max_reuse=6, num_private=6)
    cache.publish(lease, buffer[:6], 6)
    buffer[:] = 0
    assert num_cached(cache, "a long") == 6
    assert lease.node.tokens.base is None


# Publishing


def test_published_tokens_are_readable_before_the_lease_ends():
    cache = make_cache()
    lease = acquire(cache, "abcdef")
    assert cache.publish(lease, tokens("abcdef"), 4) == 4
    assert num_cached(cache, "abcdef") == 4
    assert cache.publish(lease, tokens("abcdef"), 6) == 2
    assert num_cached(cache, "abcdef") == 6
    assert lease.num_published == 6


def test_publishing_nothing_new_writes_nothing():
    cache = make_cache()
    lease = acquire(cache, "abc")
    cache.publish(lease, tokens("abc"), 3)
    version = lease.version
    assert cache.publish(lease, tokens("abc"), 3) == 0
    assert lease.version == version


def test_publishing_moves_no_slot():
    cache = make_cache()
    lease = acquire(cache, "abcdef")
    extents, version = lease.extents, lease.version
    cache.publish(lease, tokens("abcdef"), 5)
    assert (lease.extents, lease.version) == (extents, version)


def test_chunks_published_by_one_lease_are_one_node():
    cache = make_cache()
    lease = acquire(cache, "abcdef")
    for stop in range(1, 7):
        cache.publish(lease, tokens("abcdef"), stop)
    cache.check()
    assert lease.node.num_tokens == 6


def test_a_node_in_which_another_lease_ends_is_not_extended():
    cache = make_cache()
    first = acquire(cache, "abcdef")
    cache.publish(first, tokens("abcdef"), 3)
    second = acquire(cache, "abc")
    cache.publish(first, tokens("abcdef"), 6)
    cache.check()
    assert second.num_slots == 3
    cache.release(first)
    assert cache.counts().evictable == 3


def test_the_same_tokens_computed_twice_at_once_are_kept_once():
    cache = make_cache()
    first, second = acquire(cache, "abcdef"), acquire(cache, "abcdef")
    cache.publish(first, tokens("abcdef"), 6)
    version = second.version
    assert cache.publish(second, tokens("abcdef"), 6) == 0
    cache.check()
    assert second.extents == first.extents
    assert second.version > version
    assert cache.counts() == Counts(free=94, evictable=0, leased=6, total=100)


def test_what_goes_on_behind_an_adopted_prefix_is_written():
    cache = make_cache()
    first, second = acquire(cache, "abcX"), acquire(cache, "abcYZ")
    cache.publish(first, tokens("abcX"), 4)
    assert cache.publish(second, tokens("abcYZ"), 5) == 2
    cache.check()
    assert num_cached(cache, "abcX") == 4
    assert num_cached(cache, "abcYZ") == 5
    assert cache.counts().leased == 6


def test_recomputing_the_last_token_adopts_the_cached_one_and_leaves_one_node():
    cache = make_cache()
    store(cache, "prompt")
    for _ in range(3):
        lease = acquire(cache, "prompt", max_reuse=5)
        assert lease.num_reused == 5
        assert cache.publish(lease, tokens("prompt"), 6) == 0
        cache.release(lease)
        cache.check()
        assert num_nodes(cache) == 1
    assert cache.counts() == Counts(free=94, evictable=6, leased=0, total=100)


def test_generated_tokens_are_reused_by_the_next_turn():
    cache = make_cache()
    lease = acquire(cache, "ask", num_private=8)
    cache.publish(lease, tokens("ask"), 3)
    cache.publish(lease, tokens("askreply"), 8)
    cache.release(lease)
    turn = acquire(cache, "askreplymore")
    assert turn.num_reused == 8
    assert turn.extents == (Extent(0, 12),)


def test_publishing_more_than_there_is_room_for_is_our_bug():
    cache = make_cache()
    lease = acquire(cache, "abc")
    with pytest.raises(AssertionError):
        cache.publish(lease, tokens("abcd"), 4)
    with pytest.raises(AssertionError):
        cache.publish(lease, tokens("ab"), 3)


# Growing


def test_growth_goes_on_in_place_where_the_next_slots_are_free():
    cache = make_cache()
    lease = acquire(cache, "abc")
    assert cache.grow(lease, 5) is None
    assert lease.extents == (Extent(0, 8),)


def test_growth_goes_elsewhere_where_they_are_not():
    cache = make_cache(10)
    lease = acquire(cache, "abc")
    acquire(cache, "wxyz", space=OTHER)
    assert cache.grow(lease, 3) is None
    cache.check()
    assert lease.extents == (Extent(0, 3), Extent(7, 3))


def test_a_reused_prefix_is_gone_on_in_place_too():
    cache = make_cache()
    store(cache, "abc")
    store(cache, "xyz")
    lease = acquire(cache, "abc", num_private=0)
    cache.grow(lease, 4)
    assert lease.extents == (Extent(0, 7),)


def test_growth_evicts_if_it_must_but_never_its_own_prefix():
    cache = make_cache(8)
    store(cache, "old ")
    lease = acquire(cache, "new ")
    cache.publish(lease, tokens("new "), 4)
    assert cache.grow(lease, 3) is None
    assert num_cached(cache, "old ") == 1
    assert num_cached(cache, "new ") == 4
    cache.check()


def test_growth_is_refused_when_others_hold_the_slots():
    cache = make_cache(8)
    lease = acquire(cache, "abc")
    acquire(cache, "wxyz")
    before = (lease.extents, lease.version, cache.counts())
    assert cache.grow(lease, 2) == Refusal("pool_full", num_needed=2, num_available=1)
    assert cache.grow(lease, 6) == Refusal("larger_than_pool", num_needed=6, num_available=1)
    assert (lease.extents, lease.version, cache.counts()) == before


def test_extents_are_kept_until_they_change():
    cache = make_cache()
    lease = acquire(cache, "abc")
    assert lease.extents is lease.extents


# Splitting


def test_a_node_splits_under_a_lease_and_the_lease_keeps_its_slots():
    cache = make_cache()
    first = acquire(cache, "the quick")
    cache.publish(first, tokens("the quick"), 9)
    extents = first.extents
    second = acquire(cache, "the slow")
    assert second.num_reused == 4
    assert first.extents == extents
    cache.release(first)
    cache.check()
    assert cache.counts().evictable == 5
    assert num_cached(cache, "the quick") == 9


def test_what_a_hit_used_is_fresher_than_the_rest_of_the_node_it_split():
    cache = make_cache(12)
    store(cache, "abcd")
    store(cache, "wxyz")
    cache.release(acquire(cache, "ab", num_private=0))
    store(cache, "123456")
    assert num_cached(cache, "abcd") == 2
    assert num_cached(cache, "wxyz") == 4


# Evicting


def test_the_least_recently_used_goes_first():
    cache = make_cache(12)
    for text in ("aaaa", "bbbb", "cccc"):
        store(cache, text)
    store(cache, "aaaa")
    store(cache, "dddd")
    assert [num_cached(cache, text) for text in ("aaaa", "bbbb", "cccc", "dddd")] == [4, 0, 4, 4]


def test_only_as_many_tokens_are_evicted_as_are_needed_and_from_the_end():
    cache = make_cache(10)
    store(cache, "abcdefgh")
    store(cache, "wxyz")
    assert num_cached(cache, "abcdefgh") == 6
    assert cache.counts() == Counts(free=0, evictable=10, leased=0, total=10)


def test_heads_outlive_tails():
    cache = make_cache(10)
    store(cache, "system")
    store(cache, "system1")
    store(cache, "system2")
    store(cache, "xyz")
    assert num_cached(cache, "system1") == 6
    assert num_cached(cache, "system2") == 7


def test_a_leaf_is_evicted_beside_a_leased_one():
    cache = make_cache(10)
    store(cache, "systemAA")
    lease = acquire(cache, "systemBB")
    cache.publish(lease, tokens("systemBB"), 8)
    assert isinstance(acquire(cache, "zz"), Lease)
    assert num_cached(cache, "systemAA") == 6
    assert num_cached(cache, "systemBB") == 8


def test_a_parent_left_without_children_can_be_evicted_and_its_tree_with_it():
    cache = make_cache(10)
    store(cache, "abX")
    store(cache, "abY")
    acquire(cache, "0123456789", space=OTHER)
    assert set(cache._forest.roots) == {OTHER}
    assert cache.counts() == Counts(free=0, evictable=0, leased=10, total=10)


def test_trimming_a_long_leaf_bit_by_bit_wastes_no_more_than_half_its_memory():
    cache = make_cache(64)
    store(cache, "a" * 64)
    lease = acquire(cache, "b", num_private=1)
    sizes = set()
    for _ in range(60):
        cache.grow(lease, 1)
        cache.check()
        leaf = policy_of(cache).choose()
        sizes.add(leaf.tokens.size if leaf.tokens.base is None else leaf.tokens.base.size)
    assert len(sizes) <= 6


def test_eviction_asks_the_policy_once_for_each_node():
    class Counting(LeastRecentlyUsed):
        num_calls = 0

        def choose(self):
            self.num_calls += 1
            return super().choose()

        def withdraw(self, entry):
            self.num_calls += 1
            super().withdraw(entry)

    cache = make_cache(40, policy=Counting)
    for start in range(0, 40, 4):
        store(cache, "".join(chr(65 + start + i) for i in range(4)))
    policy_of(cache).num_calls = 0
    acquire(cache, "0" * 12)
    assert policy_of(cache).num_calls == 6


@pytest.fixture
def _packed(monkeypatch):
    """New sequences stand right behind each other, so that a test knows its slots."""
    monkeypatch.setattr(pool_module, "MAX_GAP", 0)


@pytest.mark.usefixtures("_packed")
def test_a_little_more_is_evicted_where_free_slots_lie_scattered():
    cache = make_cache(8 * SLACK)
    texts = [chr(1000 + index) * 2 for index in range(4 * SLACK)]
    for text in texts + texts[1::2]:
        store(cache, text)
    lease = acquire(cache, "x", num_private=4)
    assert len(lease.extents) == 2
    assert cache.counts().free == 8


@pytest.mark.usefixtures("_packed")
def test_eviction_stops_at_the_first_run_that_is_long_enough():
    cache = make_cache(8 * SLACK)
    for index in range(4 * SLACK):
        store(cache, chr(1000 + index) * 2)
    lease = acquire(cache, "x", num_private=4)
    assert lease.extents == (Extent(0, 4),)
    assert cache.counts().free == 0


@pytest.mark.usefixtures("_packed")
def test_a_long_leaf_is_evicted_in_steps_until_there_is_a_run():
    cache = make_cache(4 * SLACK * EVICT_STEP)
    for text in ("aa", "bb", "cc", "dd", "e" * (cache.counts().free - 8), "bb", "dd"):
        store(cache, text)
    lease = acquire(cache, "x", num_private=4)
    assert len(lease.extents) == 1
    assert cache.counts().free == EVICT_STEP


def test_a_run_that_is_free_already_costs_no_eviction():
    cache = make_cache(2 * SLACK)
    store(cache, "a" * SLACK)
    acquire(cache, "b", num_private=SLACK // 2)
    assert num_cached(cache, "a" * SLACK) == SLACK


def test_a_policy_that_chooses_an_inner_node_is_caught():
    class Wrong(LeastRecentlyUsed):
        def choose(self):
            return list(self._entries)[-1]

    cache = make_cache(6, policy=Wrong)
    store(cache, "abX")
    store(cache, "abY")
    with pytest.raises(AssertionError, match="others hang from"):
        cache.acquire(SPACE, tokens("zzzz"), max_reuse=4, num_private=4)


# Releasing


def test_unpublished_slots_are_free_at_once():
    cache = make_cache()
    lease = acquire(cache, "abcdef")
    cache.publish(lease, tokens("abcdef"), 2)
    cache.release(lease)
    assert not lease.is_open
    assert cache.counts() == Counts(free=98, evictable=2, leased=0, total=100)


def test_a_cancelled_lease_leaves_nothing_behind():
    cache = make_cache()
    cache.release(acquire(cache, "abcdef"))
    assert cache.counts().free == 100
    assert cache._forest.roots == {}


@pytest.mark.parametrize("use", ["release", "grow", "publish"])
def test_a_released_lease_can_not_be_used(use):
    cache = make_cache()
    lease = acquire(cache, "abc")
    cache.release(lease)
    arguments = {"release": (), "grow": (1,), "publish": (tokens("abc"), 3)}
    with pytest.raises(AssertionError, match=r"released twice|not open"):
        getattr(cache, use)(lease, *arguments[use])


def test_small_nodes_used_together_are_joined_on_release():
    cache = make_cache()
    store(cache, "abc")
    store(cache, "abcdef")
    assert num_nodes(cache) == 1


def test_a_tail_that_was_not_used_is_not_joined():
    cache = make_cache()
    store(cache, "abcdef")
    cache.release(acquire(cache, "abc", num_private=0))
    assert num_nodes(cache) == 2


def test_long_nodes_are_not_joined():
    cache = make_cache(4 * MERGE_LIMIT)
    long = "a" * MERGE_LIMIT
    first = acquire(cache, long)
    cache.publish(first, tokens(long), len(long))
    second = acquire(cache, long + "b")
    cache.publish(second, tokens(long + "b"), len(long) + 1)
    cache.release(first)
    cache.release(second)
    cache.check()
    assert num_nodes(cache) == 2


def test_a_parent_of_two_is_not_joined_with_either():
    cache = make_cache()
    store(cache, "abX")
    store(cache, "abY")
    assert num_nodes(cache) == 3


# Clearing


def test_clear_forgets_one_namespace_and_says_how_much():
    cache = make_cache()
    store(cache, "abc")
    store(cache, "vwxyz", space=OTHER)
    assert cache.clear(SPACE) == 3
    cache.check()
    assert num_cached(cache, "abc") == 0
    assert num_cached(cache, "vwxyz", space=OTHER) == 5
    assert cache.clear(SPACE) == 0


def test_clear_without_a_name_forgets_all():
    cache = make_cache()
    store(cache, "abc")
    store(cache, "vwxyz", space=OTHER)
    assert cache.clear(None) == 8
    assert cache.counts().free == 100


def test_a_lease_outlives_a_clear_but_what_it_publishes_is_not_found():
    cache = make_cache()
    store(cache, "abX")
    lease = acquire(cache, "abYZ")
    cache.publish(lease, tokens("abYZ"), 3)
    extents = lease.extents
    assert cache.clear(SPACE) == 4
    cache.check()
    assert lease.extents == extents
    assert cache.publish(lease, tokens("abYZ"), 4) == 0
    assert num_cached(cache, "abYZ") == 0
    assert cache.counts() == Counts(free=96, evictable=0, leased=4, total=100)
    cache.release(lease)
    cache.check()
    assert cache.counts().free == 100


def test_a_cleared_namespace_can_be_used_again_beside_its_old_leases():
    cache = make_cache()
    old = acquire(cache, "abc")
    cache.publish(old, tokens("abc"), 3)
    cache.clear(SPACE)
    store(cache, "abcd")
    cache.release(old)
    cache.check()
    assert num_cached(cache, "abcd") == 4


# Telling


def test_the_listener_is_told_what_was_stored_evicted_and_cleared_and_when():
    events, now = [], [0.0]
    cache = make_cache(6, clock=lambda: now[0], listener=events.append)
    store(cache, "abcd")
    now[0] = 1.0
    store(cache, "wxyz", space=OTHER)
    now[0] = 2.0
    cache.clear(OTHER)
    assert events == [
        Stored(SPACE, 4, 0.0),
        Evicted(SPACE, 2, 1.0, place_of(SPACE, tokens("abcd"), 2), OTHER),
        Stored(OTHER, 4, 1.0),
        Cleared(OTHER, 4, 2.0),
    ]


def test_tokens_that_are_not_a_row_of_int32_are_our_bug():
    cache = make_cache()
    store(cache, "abc")
    with pytest.raises(AssertionError, match="int32"):
        cache.peek(SPACE, tokens("abc").astype(np.int64))
    with pytest.raises(AssertionError, match="one row"):
        cache.peek(SPACE, tokens("abc").reshape(1, 3))


@pytest.mark.parametrize(
    ("left", "right", "length"), [([], [], 0), ([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1], [2], 0)]
)
def test_tokens_that_open_alike_are_counted(left, right, length):
    assert common_length(np.array(left, dtype=np.int32), np.array(right, dtype=np.int32)) == length
