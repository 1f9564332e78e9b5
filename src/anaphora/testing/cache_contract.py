"""What every variant of the cache must do, whether it reuses anything or not. Subclass `CacheContract`."""

from typing import Protocol

import numpy as np

from anaphora.core.cache import Cache
from anaphora.core.index import Tokens
from anaphora.core.lease import Counts, Lease, Refusal
from anaphora.core.namespace import Namespace
from anaphora.testing.honest_memory import HonestMemory

_SPACE = Namespace(b"s" * 32)


class _MakesCaches(Protocol):
    def make_cache(self, num_slots: int) -> Cache: ...


class CacheContract:
    """Tests that any cache passes. `make_cache` returns a new one over a pool of that many slots."""

    def test_a_new_cache_is_all_free(self: _MakesCaches) -> None:
        cache = self.make_cache(10)
        assert cache.counts() == Counts(free=10, evictable=0, leased=0, total=10)
        assert cache.peek(_SPACE, _tokens("abc")).num_tokens == 0
        cache.check()

    def test_a_lease_covers_what_was_asked_for(self: _MakesCaches) -> None:
        cache = self.make_cache(10)
        lease = _acquire(cache, "abc", num_private=4)
        assert sum(extent.length for extent in lease.extents) == lease.num_slots == 4
        assert cache.counts().leased == 4
        cache.check()

    def test_growth_adds_slots_and_shows_in_the_version(self: _MakesCaches) -> None:
        cache = self.make_cache(10)
        lease = _acquire(cache, "abc", num_private=4)
        version, before = lease.version, lease.extents
        assert cache.grow(lease, 3) is None
        assert lease.num_slots == 7
        assert lease.version > version
        assert lease.extents != before
        cache.check()

    def test_leases_never_share_private_slots(self: _MakesCaches) -> None:
        cache, memory = self.make_cache(10), HonestMemory()
        leases = [_acquire(cache, text, num_private=5) for text in ("abcde", "vwxyz")]
        for lease, text in zip(leases, ("abcde", "vwxyz"), strict=True):
            memory.compute(_SPACE, lease.extents, _tokens(text).tolist(), start=0, stop=5)
        memory.read(_SPACE, leases[0].extents, _tokens("abcde").tolist())

    def test_a_refusal_changes_nothing(self: _MakesCaches) -> None:
        cache = self.make_cache(10)
        lease = _acquire(cache, "abc", num_private=6)
        counts, extents = cache.counts(), lease.extents
        refused = cache.acquire(_SPACE, _tokens("xyz"), max_reuse=3, num_private=5)
        assert refused == Refusal("pool_full", num_needed=5, num_available=4)
        assert cache.grow(lease, 5) == Refusal("larger_than_pool", num_needed=5, num_available=4)
        assert (cache.counts(), lease.extents) == (counts, extents)
        cache.check()

    def test_what_was_released_unpublished_is_free(self: _MakesCaches) -> None:
        cache = self.make_cache(10)
        cache.release(_acquire(cache, "abc", num_private=10))
        assert cache.counts() == Counts(free=10, evictable=0, leased=0, total=10)
        cache.check()

    def test_publish_says_how_much_was_written_and_the_slots_can_be_had_again(self: _MakesCaches) -> None:
        cache = self.make_cache(4)
        lease = _acquire(cache, "abcd", num_private=4)
        num_written = cache.publish(lease, _tokens("abcd"), 4)
        cache.release(lease)
        assert cache.peek(_SPACE, _tokens("abcd")).num_tokens == num_written == cache.counts().evictable
        assert _acquire(cache, "wxyz", num_private=4).num_slots == 4
        cache.check()

    def test_after_clear_nothing_is_found(self: _MakesCaches) -> None:
        cache = self.make_cache(4)
        lease = _acquire(cache, "abcd", num_private=4)
        num_written = cache.publish(lease, _tokens("abcd"), 4)
        cache.release(lease)
        assert cache.clear(None) == num_written
        assert cache.peek(_SPACE, _tokens("abcd")).num_tokens == 0
        assert cache.counts().free == 4
        cache.check()

    def test_a_promise_is_granted_or_refused_and_what_is_granted_stays(self: _MakesCaches) -> None:
        cache = self.make_cache(8)
        lease = _acquire(cache, "ab", num_private=2)
        num_written = cache.publish(lease, _tokens("ab"), 2)
        answers = (cache.keep(lease, 1, lifetime_s=60.0), cache.pin(lease, 2))
        cache.release(lease)
        cache.check()
        num_kept = max((num for num, refusal in enumerate(answers, 1) if refusal is None), default=0)
        assert cache.counts().retained == num_kept <= num_written
        assert all(refusal is None or refusal.reason == "retention_full" for refusal in answers)
        _acquire(cache, "wxyz", num_private=4)
        assert cache.peek(_SPACE, _tokens("ab")).num_tokens >= num_kept
        num_unpinned = cache.unpin(_SPACE, _tokens("ab"))
        assert cache.counts().retained == num_kept - num_unpinned
        cache.check()

    def test_whose_a_namespace_is_and_what_is_shared_can_be_said(self: _MakesCaches) -> None:
        cache = self.make_cache(8)
        cache.register(_SPACE, "a tenant", shared=Namespace(b"c" * 32))
        cache.share(Namespace(b"c" * 32), _tokens("ab"))
        lease = _acquire(cache, "abcd", num_private=4)
        num_written = cache.publish(lease, _tokens("abcd"), 4)
        cache.release(lease)
        assert cache.peek(_SPACE, _tokens("abcd")).num_tokens == num_written
        cache.check()


def _tokens(text: str) -> Tokens:
    return np.array([ord(letter) for letter in text], dtype=np.int32)


def _acquire(cache: Cache, text: str, *, num_private: int) -> Lease:
    lease = cache.acquire(_SPACE, _tokens(text), max_reuse=len(text), num_private=num_private)
    assert isinstance(lease, Lease)
    return lease
