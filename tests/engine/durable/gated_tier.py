"""A tier whose loads and stores wait for the test, and whose loads may fail."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from anaphora.tiers.base import Outcome, Tier
from anaphora.tiers.keys import RecordKey
from anaphora.tiers.memory import Memory
from anaphora.tiers.record import Miss, Record


class GatedTier:
    """Everything else goes through to the tier inside."""

    def __init__(self, inner: Tier) -> None:
        self._inner = inner
        self.may_load, self.may_store = threading.Event(), threading.Event()
        self.is_loading, self.is_storing = threading.Event(), threading.Event()
        self.may_load.set()
        self.may_store.set()
        self.loads: Counter[RecordKey] = Counter()
        self.answers: dict[int, Record | Miss] = {}  # by how many loads came before: what to answer instead

    def load(self, key: RecordKey, *, memory: Memory | None = None) -> Record | Miss:
        self.is_loading.set()
        assert self.may_load.wait(60)
        number = self.loads.total()
        self.loads[key] += 1
        return self.answers.get(number) or self._inner.load(key, memory=memory)

    def store(self, record: Record) -> Outcome:
        self.is_storing.set()
        assert self.may_store.wait(60)
        return self._inner.store(record)

    def find(self, keys: Sequence[RecordKey]) -> int:
        return self._inner.find(keys)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
