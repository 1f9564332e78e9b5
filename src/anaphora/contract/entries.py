"""What earlier requests wrote and when it expires. Shared by the ledgers of both contracts.

    write --(the writer's response begins: publish)--> readable --(read: refreshed)--> ... --(lifetime over)--> gone

A lifetime is counted from the start of the request that wrote or read, and a read gives an entry its own lifetime
again, whatever the reader asked for.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from anaphora.contract.layout import Key

MAX_ENTRIES = 2**20
"""About 300 MB of bookkeeping at most. Those that expire first go first."""

MAX_EXPIRED = 2**14
"""Of so many that have expired it is known when, so that a miss can say so."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One written prefix. Readable up to and including `expires_s`."""

    lifetime_s: float
    expires_s: float
    last_s: float  # no refresh leads past this


@dataclass(frozen=True, slots=True)
class Missed:
    """Why nothing was read, where the rules tell. Else what was asked for was never written."""

    reason: Literal["no_breakpoint", "below_minimum", "expired", "out_of_sight"]
    ago_s: float | None = None  # since it expired


@dataclass(frozen=True, slots=True)
class Write:
    """An entry to be: it can be read once the writing request's response has begun."""

    key: Key
    lifetime_s: float
    start_s: float
    limit_s: float = float("inf")  # longest life from the first write on, however often it is read


class Entries:
    """Live entries by key. Expired ones are dropped as time is seen to pass."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        assert max_entries > 0
        self._max_entries = max_entries
        self._entries: dict[Key, Entry] = {}
        self._by_expiry: list[tuple[float, Key]] = []  # may hold earlier expiries of refreshed entries
        self._expired: OrderedDict[Key, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def is_live(self, key: Key, now_s: float) -> bool:
        entry = self._entries.get(key)
        return entry is not None and now_s <= entry.expires_s

    def expired_at(self, key: Key, now_s: float) -> float | None:
        """When an entry that was not written again expired. None: it is live, was never written, or is long gone."""
        entry = self._entries.get(key)
        if entry is not None:
            return entry.expires_s if now_s > entry.expires_s else None
        return self._expired.get(key)

    def refresh(self, key: Key, now_s: float) -> None:
        """Give a live entry its own lifetime again, from `now_s` on. Never shortens it."""
        entry = self._entries[key]
        expires_s = min(max(entry.expires_s, now_s + entry.lifetime_s), entry.last_s)
        self._put(key, Entry(entry.lifetime_s, expires_s, entry.last_s))

    def publish(self, write: Write) -> None:
        """Make what a request wrote readable. Two that wrote the same at once leave the longer life."""
        known = self._entries.get(write.key)
        lifetime_s, expires_s = write.lifetime_s, write.start_s + write.lifetime_s
        last_s = write.start_s + write.limit_s
        if known is not None:
            lifetime_s, expires_s = max(lifetime_s, known.lifetime_s), max(expires_s, known.expires_s)
            last_s = max(last_s, known.last_s)
        self._put(write.key, Entry(lifetime_s, min(expires_s, last_s), last_s))
        while len(self._entries) > self._max_entries:
            self._drop_first()

    def missed(self, keys: Iterable[Key], now_s: float) -> Missed | None:
        """Whether what was looked up has expired: the first of these keys that has. Cost: O(keys)."""
        found = (expired for key in keys if (expired := self.expired_at(key, now_s)) is not None)
        expired_s = next(found, None)
        return None if expired_s is None else Missed("expired", now_s - expired_s)

    def sweep(self, now_s: float) -> None:
        """Drop what has expired.

        Cost: O(log n) for each entry dropped or refreshed since the last sweep.
        """
        while self._by_expiry and self._by_expiry[0][0] < now_s:
            self._drop_first()

    def check(self) -> None:
        """Assert that every entry is filed under its expiry, and that their number is bounded."""
        filed = set(self._by_expiry)
        assert all((entry.expires_s, key) in filed for key, entry in self._entries.items())
        assert len(self._entries) <= self._max_entries
        assert all(entry.expires_s <= entry.last_s for entry in self._entries.values())
        assert len(self._expired) <= MAX_EXPIRED
        assert not self._expired.keys() & self._entries.keys(), "an entry is live and has expired"

    def _put(self, key: Key, entry: Entry) -> None:
        known = self._entries.get(key)
        self._entries[key] = entry
        self._expired.pop(key, None)
        if known is None or known.expires_s != entry.expires_s:
            heapq.heappush(self._by_expiry, (entry.expires_s, key))

    def _drop_first(self) -> None:
        expires_s, key = heapq.heappop(self._by_expiry)
        entry = self._entries.get(key)
        if entry is not None and entry.expires_s == expires_s:
            del self._entries[key]
            self._expired[key] = expires_s
            if len(self._expired) > MAX_EXPIRED:
                self._expired.popitem(last=False)
