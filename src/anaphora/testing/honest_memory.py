"""A memory that can't lie: for every slot, the whole prefix that was in front of what was written there.

Keys and values of a token depend on every token before it, so two slots hold the same bytes exactly if they
were written for the same prefix in the same namespace. This memory keeps that prefix instead of the bytes. A
cache that hands out a wrong, stale or overwritten slot is found out at the next read.
"""

from collections.abc import Iterable, Sequence

from anaphora.core.extent import Extent
from anaphora.core.namespace import Namespace


class HonestMemory:
    """Slots in which prefixes stand where an engine's pool has keys and values."""

    def __init__(self) -> None:
        self._prefix_at: dict[int, tuple[Namespace, tuple[int, ...]]] = {}

    def compute(
        self, namespace: Namespace, extents: Iterable[Extent], tokens: Sequence[int], *, start: int, stop: int
    ) -> None:
        """Write tokens `[start, stop)` into their slots, reading all that come before, as a forward pass
        does.

        Raises AssertionError if one of those is not there.
        """
        self.read(namespace, extents, tokens[:start])
        slots = slots_of(extents)
        for index in range(start, stop):
            self._prefix_at[slots[index]] = (namespace, tuple(tokens[: index + 1]))

    def read(self, namespace: Namespace, extents: Iterable[Extent], tokens: Sequence[int]) -> None:
        """Assert that the first slots of the extents hold exactly these tokens, each after the ones before
        it."""
        slots = slots_of(extents)
        assert len(slots) >= len(tokens), "fewer slots than tokens"
        for index in range(len(tokens)):
            expected = (namespace, tuple(tokens[: index + 1]))
            found = self._prefix_at.get(slots[index])
            assert found == expected, f"slot {slots[index]} holds {found}, not {expected}"


def slots_of(extents: Iterable[Extent]) -> list[int]:
    """List every slot of the extents, in order."""
    return [slot for extent in extents for slot in range(extent.start, extent.stop)]
