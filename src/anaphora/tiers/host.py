"""The host tier: records in this process's memory. For devices that have memory of their own, and for tests."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from anaphora.core.namespace import Namespace
from anaphora.tiers.base import Entry, Known, Origin, Outcome
from anaphora.tiers.choice import nearest_of, of_model, with_parents_first
from anaphora.tiers.keys import RecordKey, Tokens
from anaphora.tiers.memory import Memory
from anaphora.tiers.record import Miss, MissReason, Record


class HostTier:
    """Records in a dictionary, in order of use: the last one was used last."""

    def __init__(self, *, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes
        self._size_bytes = 0
        self._records: dict[RecordKey, Record] = {}
        self._children: dict[RecordKey, dict[RecordKey, None]] = {}  # by parent, stored or not; none is empty
        self._origins: dict[Namespace, Origin] = {}
        self._guard = threading.Lock()

    @property
    def cap_bytes(self) -> int:
        return self._cap_bytes

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def num_failures(self) -> int:
        return 0  # memory does not refuse

    def __len__(self) -> int:
        return len(self._records)

    def has(self, key: RecordKey) -> bool:
        return key in self._records

    def find(self, keys: Sequence[RecordKey]) -> int:
        with self._guard:
            return next((index for index, key in enumerate(keys) if key not in self._records), len(keys))

    def following(self, namespace: Namespace, parent: RecordKey) -> list[Entry]:
        with self._guard:
            records = [(key, self._records[key]) for key in self._children.get(parent, ())]
        return [
            Entry(key, record.tokens, record.size_bytes) for key, record in records if record.namespace == namespace
        ]

    def nearest(self, namespace: Namespace, parent: RecordKey, tokens: Tokens) -> Entry | None:
        """Find the record that shares most of its first tokens. Cost: O(records behind `parent`)."""
        return nearest_of(self.following(namespace, parent), tokens)

    def use(self, keys: Iterable[RecordKey]) -> None:
        with self._guard:
            for key in keys:
                if key in self._records:
                    self._use(key)

    def introduce(self, namespace: Namespace, origin: Origin) -> None:
        with self._guard:
            self._origins[namespace] = origin

    def recent(self, model_digest: bytes, *, max_bytes: int) -> list[Known]:
        with self._guard:
            known = [self._known(key, record) for key, record in reversed(self._records.items())]
        return with_parents_first(of_model(known, model_digest), max_bytes=max_bytes)

    def store(self, record: Record) -> Outcome:
        """Keep a copy of a record."""
        key = record.key
        if record.size_bytes > self._cap_bytes:
            return Outcome.TOO_LARGE
        with self._guard:
            if key in self._records:
                self._use(key)
                return Outcome.ALREADY_STORED
            if not self._make_room(record.size_bytes, keep=record.parent):
                return Outcome.NO_ROOM
            self._records[key] = replace(record, tokens=record.tokens.copy(), kv=record.kv.copy())
            self._children.setdefault(record.parent, {})[key] = None
            self._size_bytes += record.size_bytes
        return Outcome.STORED

    def load(self, key: RecordKey, *, memory: Memory | None = None) -> Record | Miss:
        """Give the record itself back, not a copy."""
        with self._guard:
            if key not in self._records:
                return Miss(MissReason.ABSENT)
            self._use(key)
            return self._records[key]

    def delete(self, key: RecordKey) -> bool:
        with self._guard:
            if key not in self._records:
                return False
            self._drop(key)
        return True

    def close(self) -> None:
        """Forget everything."""
        with self._guard:
            self._records.clear()
            self._children.clear()
            self._size_bytes = 0

    def check(self) -> None:
        with self._guard:
            assert self._size_bytes == sum(record.size_bytes for record in self._records.values())
            assert self._size_bytes <= self._cap_bytes
            listed = {key for children in self._children.values() for key in children}
            assert listed == self._records.keys()
            assert all(self._children.values())

    def _known(self, key: RecordKey, record: Record) -> Known:
        origin = self._origins.get(record.namespace)
        return Known(key, record.namespace, record.parent, record.tokens, record.size_bytes, origin, is_pinned=False)

    def _use(self, key: RecordKey) -> None:
        self._records[key] = self._records.pop(key)

    def _make_room(self, size_bytes: int, *, keep: RecordKey) -> bool:
        """Evict until that many bytes fit. Cost: O(records) for each evicted; records are few and large."""
        while self._size_bytes + size_bytes > self._cap_bytes:
            ends = (key for key in self._records if key not in self._children and key != keep)
            victim = next(ends, None)
            if victim is None:
                return False
            self._drop(victim)
        return True

    def _drop(self, key: RecordKey) -> None:
        record = self._records.pop(key)
        self._size_bytes -= record.size_bytes
        children = self._children[record.parent]
        del children[key]
        if not children:
            del self._children[record.parent]
