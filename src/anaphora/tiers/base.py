"""What a lower tier is: a place that keeps records by key, under a cap of bytes.

A tier is exact or misses. What it loads is, bit by bit, what was stored under that key; anything else (not there,
cut, damaged, unreadable) is a `Miss` with its reason. Trouble of the place itself (a full disk, no permission) never
raises: a store answers FAILED, a lookup finds nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from anaphora.core.namespace import Namespace
from anaphora.tiers.keys import RecordKey, Tokens
from anaphora.tiers.memory import Memory
from anaphora.tiers.record import Miss, Record


class Outcome(Enum):
    """What became of a record that was to be stored."""

    STORED = "stored"
    ALREADY_STORED = "already stored"
    TOO_LARGE = "too large"  # larger than the cap: nothing was evicted for it
    NO_ROOM = "no room"  # all that could go would be the prefix it follows
    FAILED = "failed"  # the place refused: full, not permitted, broken


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose tokens a namespace holds, in words for people. A hint: the namespace itself says what is equal."""

    model_digest: bytes
    model: str  # its name, as it was served
    tenant: str | None  # None: what the operator declared shared


@dataclass(frozen=True, slots=True)
class Known:
    """A stored record, and where it belongs."""

    key: RecordKey
    namespace: Namespace
    parent: RecordKey
    tokens: Tokens
    size_bytes: int
    origin: Origin | None  # None: nobody said
    is_pinned: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored record as the index knows it. Its tokens are a hint: those of the loaded record count."""

    key: RecordKey
    tokens: Tokens
    size_bytes: int


class Tier(Protocol):
    """A lower tier. Safe to call from several threads."""

    @property
    def cap_bytes(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """Bytes that the stored records take. Never above the cap."""
        ...

    @property
    def num_failures(self) -> int:
        """How often the place itself refused a store, a load or a lookup."""
        ...

    def __len__(self) -> int: ...

    def has(self, key: RecordKey) -> bool:
        """Tell whether a record is there. Changes nothing; reads no record."""
        ...

    def find(self, keys: Sequence[RecordKey]) -> int:
        """Count the leading keys of a chain that are stored. Changes nothing; reads no record."""
        ...

    def following(self, namespace: Namespace, parent: RecordKey) -> Sequence[Entry]:
        """List the records that follow `parent`: a prompt may share the first tokens of one of them."""
        ...

    def nearest(self, namespace: Namespace, parent: RecordKey, tokens: Tokens) -> Entry | None:
        """Find the record behind `parent` that shares most of its first tokens with these. None: none shares any."""
        ...

    def use(self, keys: Iterable[RecordKey]) -> None:
        """Count records as used, the last one last. Reads no record."""
        ...

    def introduce(self, namespace: Namespace, origin: Origin) -> None:
        """Say whose a namespace is. Stays as long as the tier."""
        ...

    def recent(self, model_digest: bytes, *, max_bytes: int) -> Sequence[Known]:
        """List what was used last of a model, up to so many bytes, each record behind the one that it follows."""
        ...

    def store(self, record: Record) -> Outcome:
        """Keep a record. Evicts what was not used for longest, from the ends of chains, if it must.

        Its memory is the caller's again afterwards.
        """
        ...

    def load(self, key: RecordKey, *, memory: Memory | None = None) -> Record | Miss:
        """Give a record back, verified, and count it as used. One that is damaged is deleted.

        With `memory` it may lie in there, and is good until that is used again.
        """
        ...

    def delete(self, key: RecordKey) -> bool:
        """Delete a record, unless it is pinned. True if it was there and is gone."""
        ...

    def close(self) -> None: ...

    def check(self) -> None:
        """Assert every invariant. For tests and idle moments: may read the whole index."""
        ...
