"""Runs of consecutive slots. A token's keys and values live in one slot.

An extent is half-open: `[start, start + length)`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of slots, half-open, never empty."""

    start: int
    length: int

    @property
    def stop(self) -> int:
        """First slot behind the run."""
        return self.start + self.length


def coalesce(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    """Join neighbours that are adjacent in slot and in order. The slots and their order stay the same.

    Cost: one pass.
    """
    joined: list[Extent] = []
    stop = -1
    for extent in extents:
        if extent.start == stop:
            joined[-1] = Extent(joined[-1].start, joined[-1].length + extent.length)
        else:
            joined.append(extent)
        stop = extent.start + extent.length
    return tuple(joined)


def cut(extents: Sequence[Extent], num_slots: int) -> tuple[tuple[Extent, ...], tuple[Extent, ...]]:
    """Split a series of extents behind its first `num_slots` slots into front and back.

    Cost: one pass.
    """
    front: list[Extent] = []
    for index, extent in enumerate(extents):
        if extent.length > num_slots:
            if not num_slots:
                return tuple(front), tuple(extents[index:])
            front.append(Extent(extent.start, num_slots))
            rest = Extent(extent.start + num_slots, extent.length - num_slots)
            return tuple(front), (rest, *extents[index + 1 :])
        front.append(extent)
        num_slots -= extent.length
    assert num_slots == 0, "asked for more slots than the extents have"
    return tuple(front), ()


def count_slots(extents: Iterable[Extent]) -> int:
    """Count the slots of all extents. Cost: one pass."""
    return sum(extent.length for extent in extents)
