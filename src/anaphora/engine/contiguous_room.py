"""Room for one sequence in the pool as a single run of slots, so that its keys are one view.

in place     cached prefix, leased | free slots right behind it          no byte moves
moved        cached prefix ──copy──> | private slots, long enough for all |
"""

import contextlib
from collections import deque
from threading import Lock

from anaphora.core.cache import PrefixCache
from anaphora.core.extent import Extent, cut
from anaphora.core.index import Tokens
from anaphora.core.lease import Lease, Refusal
from anaphora.core.namespace import Namespace
from anaphora.engine.kv_pool import KvPool
from anaphora.errors import Overloaded, PromptTooLong

GROWTH = 512
"""Slots added when a sequence outgrows its room, at least; each time the room may have to move."""


class KvStore:
    """A pool, the cache that says what stands where in it, and the lock that the cache needs.

    `max_context`: keys of longer sequences may depend on more than the tokens in front of them, and are not kept.
    """

    def __init__(self, pool: KvPool, cache: PrefixCache, *, max_context: int) -> None:
        self.pool = pool
        self.cache = cache
        self.max_context = max_context
        self.lock = Lock()
        self.abandoned: deque[Lease] = deque()  # of rooms that were dropped without being closed

    def sweep(self) -> None:
        """Release what was abandoned. The caller holds the lock.

        A finalizer may run in the middle of any operation, so it must not call the cache itself.
        """
        while self.abandoned:
            lease = self.abandoned.popleft()
            if lease.is_open:
                self.cache.release(lease)


class ContiguousRoom:
    """One sequence's slots: token i stands in slot `first_slot + i`. Used by one thread at a time.

    `[0, num_shared)` belongs to the index: others read it, nobody writes it. The rest is private.
    """

    def __init__(self, store: KvStore, namespace: Namespace, tokens: Tokens, *, num_new_tokens: int) -> None:
        """Take room for the prompt and `num_new_tokens` behind it, with the longest cached prefix in place.

        At most all but the last token are reused. Evicts if it must. Where no run of slots is long enough beside the
        cached prefix, the prefix is given up: the room is then empty, which is slower and as exact.
        Cost: as `PrefixCache.acquire`; a copy of the prefix unless it lies in one run with free slots behind it.
        Raises: PromptTooLong, Overloaded.
        """
        self._store = store
        self._namespace = namespace
        self._tokens = tokens
        self.num_reused = 0
        with store.lock:
            store.sweep()
            self.lease = self._in_place(num_new_tokens) or self._moved(len(tokens) + num_new_tokens)

    @property
    def num_slots(self) -> int:
        """Slots in the run; a lease that grew elsewhere has more, which are not used."""
        return self.lease.extents[0].length

    @property
    def num_shared(self) -> int:
        return self.lease.num_published

    @property
    def first_slot(self) -> int:
        return self.lease.extents[0].start

    def make_writable(self, start: int, stop: int) -> None:
        """See to it that tokens `[start, stop)` can be written, and `[0, start)` keep what they have.

        Raises: PromptTooLong, Overloaded; the room is as it was then, or longer.
        """
        if self.num_shared <= start and stop <= self.num_slots:
            return
        store = self._store
        with store.lock:
            store.sweep()
            if self.num_shared <= start and self._grow(stop):
                return
            room = self._longer(stop)
            self._copy(self.lease.extents, room, start)
            store.cache.release(self.lease)
            self.lease = room

    def publish(self, tokens: Tokens) -> int:
        """Make the first `len(tokens)` tokens readable by later sequences; return how many were new."""
        with self._store.lock:
            return self._store.cache.publish(self.lease, tokens, len(tokens))

    def release(self) -> None:
        """Give the slots back."""
        with self._store.lock:
            self._store.cache.release(self.lease)

    def _in_place(self, num_new_tokens: int) -> Lease | None:
        cache, tokens = self._store.cache, self._tokens
        most = len(tokens) - 1
        num_reused = min(cache.peek(self._namespace, tokens).num_tokens, most)
        num_private = len(tokens) + num_new_tokens - num_reused
        lease = cache.acquire(self._namespace, tokens, max_reuse=most, num_private=num_private)
        if not isinstance(lease, Lease):
            return None
        if len(lease.extents) == 1:
            self.num_reused = num_reused
            return lease
        cache.release(lease)
        return None

    def _moved(self, num_slots: int) -> Lease:
        cache = self._store.cache
        prefix = cache.acquire(self._namespace, self._tokens, max_reuse=len(self._tokens) - 1, num_private=0)
        assert isinstance(prefix, Lease), "a lease without private slots is never refused"
        try:
            room = self._contiguous(num_slots)
            self.num_reused = prefix.num_reused
            self._copy(prefix.extents, room, self.num_reused)
            return room
        except (PromptTooLong, Overloaded):
            if not prefix.num_reused:
                raise
        finally:
            cache.release(prefix)
        return self._contiguous(num_slots)

    def _grow(self, stop: int) -> bool:
        """Lengthen the run in place if the slots behind it are free."""
        cache, num_missing = self._store.cache, max(1, stop - self.lease.num_slots)
        for num_tokens in (max(num_missing, GROWTH), num_missing):
            if cache.grow(self.lease, num_tokens) is None:
                break
        return stop <= self.num_slots

    def _longer(self, stop: int) -> Lease:
        if self.lease.num_slots > stop:
            with contextlib.suppress(PromptTooLong, Overloaded):
                return self._contiguous(self.lease.num_slots)
        return self._contiguous(stop)

    def _contiguous(self, num_slots: int) -> Lease:
        """Lease private slots in one run, evicting twice as much each time until there is one."""
        cache = self._store.cache
        num_evict = num_slots
        while isinstance(lease := self._private(num_slots), Lease):
            if len(lease.extents) == 1:
                return lease
            cache.release(lease)
            counts = cache.counts()
            if not counts.evictable:
                break
            num_evict = min(2 * num_evict, counts.free + counts.evictable)
            probe = self._private(num_evict)
            assert isinstance(probe, Lease), "no more was asked for than there is"
            cache.release(probe)
        total = self._store.pool.num_slots
        if num_slots > total:
            raise PromptTooLong(
                f"The sequence needs room for {num_slots} tokens, and the cache holds {total}. Give PromptCache more "
                "max_bytes, or use a shorter prompt or fewer new tokens.",
                field="input_ids",
            )
        raise Overloaded(
            f"The cache has no {num_slots} slots in one run while others are attached. Attach fewer at once, reserve "
            "what is needed with num_new_tokens, or give PromptCache more max_bytes.",
            retry_after_s=1.0,
        )

    def _private(self, num_slots: int) -> Lease | Refusal:
        return self._store.cache.acquire(self._namespace, self._tokens, max_reuse=0, num_private=num_slots)

    def _copy(self, extents: tuple[Extent, ...], room: Lease, num_tokens: int) -> None:
        """Copy keys and values of the first tokens into a room. Cost: one read and one write of them."""
        pool = self._store.pool
        target = room.extents[0].start
        source, _ = cut(extents, num_tokens)
        for extent in source:
            stop = target + extent.length
            for layer in (*pool.keys, *pool.values):
                layer[:, target:stop] = layer[:, extent.start : extent.stop]
            target = stop
