"""A prefix cache, its plain reference model and a memory that can't lie, driven together.

`World` carries out one operation on all three and compares them. Who drives it (hypothesis, a seeded run) is
another matter. Tokens are 0 and 1 and prompts short, so that prompts share, diverge and collide all the time.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from anaphora.core import cache as cache_module
from anaphora.core.cache import PrefixCache
from anaphora.core.events import Cleared, Event, Evicted, Stored
from anaphora.core.lease import Counts, Lease, Refusal
from anaphora.core.namespace import Namespace
from anaphora.core.policy import LeastRecentlyUsed
from anaphora.testing.honest_memory import HonestMemory, slots_of

SPACES = (Namespace(b"a" * 32), Namespace(b"b" * 32))

Key = tuple[Namespace, int, tuple[int, ...]]  # namespace, how often it was cleared before, prefix


class Reference:
    """What is cached, one entry for each prefix: slow and plain.

    Evicts what was released longest ago, and of what was released together the longest prefix.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.cached: dict[Key, int] = {}  # -> when it was last released
        self.num_pins: Counter[Key] = Counter()
        self.num_private = 0
        self.num_cleared: Counter[Namespace] = Counter()
        self.now = 0
        self.situations: Counter[str] = Counter()

    def keys(self, space: Namespace, tokens: list[int], epoch: int | None = None) -> list[Key]:
        epoch = self.num_cleared[space] if epoch is None else epoch
        return [(space, epoch, tuple(tokens[: stop + 1])) for stop in range(len(tokens))]

    def matched(self, space: Namespace, tokens: list[int]) -> list[Key]:
        keys = self.keys(space, tokens)
        return keys[: next((i for i, key in enumerate(keys) if key not in self.cached), len(keys))]

    @property
    def unpinned(self) -> list[Key]:
        return [key for key in self.cached if not self.num_pins[key]]

    @property
    def counts(self) -> Counts:
        num_free = self.num_slots - len(self.cached) - self.num_private
        num_evictable = len(self.unpinned)
        return Counts(num_free, num_evictable, self.num_slots - num_free - num_evictable, self.num_slots)

    def pin(self, keys: list[Key]) -> None:
        self.num_pins.update(keys)

    def unpin(self, keys: list[Key]) -> None:
        self.now += 1
        for key in keys:
            self.num_pins[key] -= 1
            if not self.num_pins[key]:
                self.cached[key] = self.now
                if key[1] != self.num_cleared[key[0]]:
                    del self.cached[key]

    def take(self, num_slots: int, *, num_evicted: int) -> None:
        """Evict as many as the cache did, which may be a few more than it must."""
        most = max(self.counts.free, num_slots + self.num_slots // cache_module.SLACK)
        if self.counts.free + num_evicted > max(self.counts.free, num_slots):
            self.situations["evicted more for a longer run"] += 1
        for _ in range(num_evicted):
            victim = min(self.unpinned, key=lambda key: (self.cached[key], -len(key[2])))
            del self.cached[victim]
            space, epoch, prefix = victim
            if self.num_pins[(space, epoch, (*prefix[:-1], 1 - prefix[-1]))]:
                self.situations["evicted beside a held node"] += 1
        assert num_slots <= self.counts.free <= most
        self.num_private += num_slots

    def clear(self, space: Namespace) -> int:
        doomed = [key for key in self.cached if key[:2] == (space, self.num_cleared[space])]
        self.num_cleared[space] += 1
        if any(self.num_pins[key] for key in doomed):
            self.situations["cleared under a lease"] += 1
        for key in doomed:
            if not self.num_pins[key]:
                del self.cached[key]
        return len(doomed)


@dataclass
class Sequence:
    """A lease and what its holder knows."""

    lease: Lease
    space: Namespace
    tokens: list[int]
    num_computed: int
    keys: list[Key]  # pinned in the reference
    epoch: int = field(default=0)

    @property
    def array(self) -> np.ndarray:
        return np.array(self.tokens, dtype=np.int32)


class World:
    """All three, and the sequences that are running."""

    def __init__(self, num_slots: int) -> None:
        self.events: list[Event] = []
        self.cache = PrefixCache(num_slots, policy=LeastRecentlyUsed, clock=lambda: 7.0, listener=self.events.append)
        self.reference = Reference(num_slots)
        self.memory = HonestMemory()
        self.running: list[Sequence] = []
        self.situations = self.reference.situations

    def acquire(self, space: Namespace, tokens: list[int], *, max_reuse: int, num_private: int) -> None:
        reference, array = self.reference, np.array(tokens, dtype=np.int32)
        matched = reference.matched(space, tokens)[:max_reuse]
        num_available = reference.counts.free + len([k for k in reference.unpinned if k not in matched])
        events = len(self.events)
        lease = self.cache.acquire(space, array, max_reuse=max_reuse, num_private=num_private)
        array[:] = -1  # the caller's buffer is the caller's again
        if len(matched) + num_private > reference.num_slots:
            assert lease == Refusal("larger_than_pool", num_private, num_available)
            self.situations["refused: larger than pool"] += 1
        elif num_private > num_available:
            assert lease == Refusal("pool_full", num_private, num_available)
            self.situations["refused: pool full"] += 1
        else:
            assert isinstance(lease, Lease)
            assert lease.num_reused == lease.num_published == len(matched)
            assert lease.num_slots == len(matched) + num_private
            reference.pin(matched)
            reference.take(num_private, num_evicted=self._num_evicted(events))
            epoch = reference.num_cleared[space]
            self.running.append(Sequence(lease, space, list(tokens), lease.num_reused, matched, epoch))
        self.verify()

    def compute(self, sequence: Sequence, stop: int) -> None:
        self.memory.compute(
            sequence.space, sequence.lease.extents, sequence.tokens, start=sequence.num_computed, stop=stop
        )
        sequence.num_computed = max(stop, sequence.num_computed)
        self.verify()

    def publish(self, sequence: Sequence, stop: int) -> None:
        reference, lease = self.reference, sequence.lease
        before, version = set(slots_of(lease.extents)), lease.version
        keys = reference.keys(sequence.space, sequence.tokens[:stop], sequence.epoch)[lease.num_published :]
        new = [key for key in keys if key not in reference.cached]
        is_cleared = sequence.epoch != reference.num_cleared[sequence.space]
        array = sequence.array
        assert self.cache.publish(lease, array, stop) == (0 if is_cleared else len(new))
        array[:] = -1
        reference.pin(keys)
        reference.num_private -= len(keys)
        reference.cached.update(dict.fromkeys(new, 0))
        sequence.keys = sequence.keys + keys
        assert lease.num_published == stop
        assert len(before - set(slots_of(lease.extents))) == len(keys) - len(new)
        assert (lease.version != version) == (len(new) < len(keys))
        if len(new) < len(keys):
            self.situations["adopted what another published" + (" and added to it" if new else "")] += 1
        self.verify()

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        lease, reference = sequence.lease, self.reference
        before, version = lease.extents, lease.version
        num_available = reference.counts.free + len(reference.unpinned)
        num_after, events = lease.num_slots + num_tokens, len(self.events)
        refusal = self.cache.grow(lease, num_tokens)
        if num_after > reference.num_slots:
            assert refusal == Refusal("larger_than_pool", num_tokens, num_available)
        elif num_tokens > num_available:
            assert refusal == Refusal("pool_full", num_tokens, num_available)
            self.situations["growth refused"] += 1
        else:
            assert refusal is None
            reference.take(num_tokens, num_evicted=self._num_evicted(events))
            assert lease.version > version
            assert slots_of(lease.extents)[: len(slots_of(before))] == slots_of(before)
            if before and num_tokens:
                in_place = len(lease.extents) == len(before)
                self.situations["grew in place" if in_place else "grew elsewhere"] += 1
        if refusal is not None:
            assert (lease.extents, lease.version) == (before, version)
        self.verify()

    def append(self, sequence: Sequence, token: int) -> None:
        sequence.tokens.append(token)

    def release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.cache.release(sequence.lease)
        if sequence.num_computed > sequence.lease.num_published:
            self.situations["cancelled"] += 1
        self.reference.num_private -= sequence.lease.num_slots - sequence.lease.num_published
        self.reference.unpin(sequence.keys)
        self.verify()

    def fork(self, sequence: Sequence) -> None:
        tokens = sequence.tokens[: sequence.lease.num_published]
        self.acquire(sequence.space, tokens, max_reuse=len(tokens), num_private=1)

    def clear(self, space: Namespace | None) -> None:
        num_cleared = self.cache.clear(space)
        assert num_cleared == sum(map(self.reference.clear, SPACES if space is None else [space]))
        self.verify()

    def peek(self, space: Namespace, tokens: list[int]) -> None:
        match = self.cache.peek(space, np.array(tokens, dtype=np.int32))
        matched = self.reference.matched(space, tokens)
        assert match.num_tokens == len(matched) == len(slots_of(match.extents))
        self.memory.read(space, match.extents, tokens[: len(matched)])
        epoch, prefix = self.reference.num_cleared[space], tuple(tokens[: len(matched)])
        goes_on = any((space, epoch, (*prefix, token)) in self.reference.cached for token in (0, 1))
        assert match.diverged == (goes_on and len(matched) < len(tokens))
        self.verify()

    def verify(self) -> None:
        """Compare all three, and let the cache check itself."""
        self.cache.check()
        assert self.cache.counts() == self.reference.counts
        for sequence in self.running:
            lease = sequence.lease
            assert len(slots_of(lease.extents)) == lease.num_slots
            assert list(lease.extents) == list(_joined(slots_of(lease.extents)))
            self.memory.read(sequence.space, lease.extents, sequence.tokens[: sequence.num_computed])
        assert all(event.when == 7.0 for event in self.events)
        for space in SPACES:
            epoch = self.reference.num_cleared[space]
            num_cached = sum(key[:2] == (space, epoch) for key in self.reference.cached)
            assert self._sum(Stored, space) - self._sum(Evicted, space) - self._sum(Cleared, space) == num_cached

    def _num_evicted(self, since: int) -> int:
        """Tokens evicted since there were that many events."""
        return sum(event.num_tokens for event in self.events[since:] if isinstance(event, Evicted))

    def _sum(self, kind: type[Event], space: Namespace) -> int:
        return sum(e.num_tokens for e in self.events if isinstance(e, kind) and e.namespace == space)


def _joined(slots: list[int]) -> Iterator[object]:
    """Extents that cover slots in order, made the slow way."""
    from anaphora.core.extent import Extent

    start = 0
    for index in range(1, len(slots) + 1):
        if index == len(slots) or slots[index] != slots[index - 1] + 1:
            yield Extent(slots[start], index - start)
            start = index
