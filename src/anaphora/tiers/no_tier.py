"""No tier: what stands in where a place can't be used at all. Keeps nothing, finds nothing, raises nothing."""

from collections.abc import Iterable, Sequence

from anaphora.core.namespace import Namespace
from anaphora.tiers.base import Entry, Known, Origin, Outcome
from anaphora.tiers.keys import RecordKey, Tokens
from anaphora.tiers.memory import Memory
from anaphora.tiers.record import Miss, MissReason, Record


class NoTier:
    """A tier that refuses every store, and counts them."""

    cap_bytes = 0
    size_bytes = 0

    def __init__(self) -> None:
        self._num_failures = 0

    @property
    def num_failures(self) -> int:
        return self._num_failures

    def __len__(self) -> int:
        return 0

    def has(self, key: RecordKey) -> bool:
        return False

    def find(self, keys: Sequence[RecordKey]) -> int:
        return 0

    def following(self, namespace: Namespace, parent: RecordKey) -> list[Entry]:
        return []

    def nearest(self, namespace: Namespace, parent: RecordKey, tokens: Tokens) -> Entry | None:
        return None

    def use(self, keys: Iterable[RecordKey]) -> None:
        """Nothing to count."""

    def introduce(self, namespace: Namespace, origin: Origin) -> None:
        """Nothing to remember."""

    def recent(self, model_digest: bytes, *, max_bytes: int) -> list[Known]:
        return []

    def store(self, record: Record) -> Outcome:
        self._num_failures += 1
        return Outcome.FAILED

    def load(self, key: RecordKey, *, memory: Memory | None = None) -> Record | Miss:
        return Miss(MissReason.ABSENT)

    def delete(self, key: RecordKey) -> bool:
        return False

    def close(self) -> None:
        """Nothing to let go of."""

    def check(self) -> None:
        """Nothing that could be wrong."""
