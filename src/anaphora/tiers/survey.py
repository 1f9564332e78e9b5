"""What is in a tier, for people: the prompts that its records make, and what hangs together. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anaphora.core.namespace import Namespace
from anaphora.tiers.base import Known, Origin
from anaphora.tiers.keys import RecordKey


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prompt as far as it is stored: records that follow one another from token 0 on."""

    records: tuple[Known, ...]

    @property
    def key(self) -> RecordKey:
        """The name of its last record, and so of all of it."""
        return self.records[-1].key

    @property
    def origin(self) -> Origin | None:
        return self.records[-1].origin

    @property
    def num_tokens(self) -> int:
        return sum(len(record.tokens) for record in self.records)

    @property
    def size_bytes(self) -> int:
        return sum(record.size_bytes for record in self.records)

    @property
    def is_pinned(self) -> bool:
        return any(record.is_pinned for record in self.records)

    def is_whole(self) -> bool:
        """Whether it begins at token 0. One that does not can't be reached."""
        return not any(self.records[0].parent)


class Survey:
    """All records of a tier, the one used last first, and how they hang together."""

    def __init__(self, known: Iterable[Known]) -> None:
        self._by_key = {one.key: one for one in known}
        self._behind: dict[RecordKey, list[Known]] = defaultdict(list)
        for one in self._by_key.values():
            self._behind[one.parent].append(one)

    @property
    def records(self) -> Sequence[Known]:
        return list(self._by_key.values())

    def prefixes(self) -> list[Prefix]:
        """List the longest prompts, the one used last first. Cost: O(records of all of them)."""
        return [self.prefix(key) for key in self._by_key if key not in self._behind]

    def prefix(self, key: RecordKey) -> Prefix:
        """Get the prompt that ends with a record. Raises KeyError."""
        records = [self._by_key[key]]
        while (before := self._by_key.get(records[-1].parent)) is not None:
            records.append(before)
        return Prefix(tuple(reversed(records)))

    def named(self, text: str) -> list[RecordKey]:
        """Find the records whose name begins so, in hexadecimal."""
        return [key for key in self._by_key if key.hex().startswith(text.lower())]

    def from_there_on(self, key: RecordKey) -> list[Known]:
        """List a record and all that hang from it, the ends first: the order in which they may go."""
        found = [self._by_key[key]]
        for one in found:
            found += self._behind.get(one.key, ())
        return found[::-1]

    def of_tenant(self, tenant: str | None) -> list[Known]:
        """List a tenant's records (None: what is shared), the ends of prompts first."""
        spaces: set[Namespace] = {
            one.namespace for one in self._by_key.values() if one.origin is not None and one.origin.tenant == tenant
        }
        roots = [
            one
            for one in self._by_key.values()
            if one.namespace in spaces
            and (one.parent not in self._by_key or self._by_key[one.parent].namespace not in spaces)
        ]
        return [record for root in roots for record in self.from_there_on(root.key)]
