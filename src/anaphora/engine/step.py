"""Plan one step: which rows belong to which sequence, where KV is written, which extents are read by whom.

Pure. Slots and rows are integers; the tensors come later (`attention.py`).

    rows of the batch   [ a a a a | b | c c ]          a: a prefill chunk, b: a decode, c: a short tail
    tokens of `a`       [ past ............ | new 4 ]   past: read from extents; new: causal among themselves
    tokens of `b`       [ past ........ new 1 ]         one new token sees all, itself too: one read covers both

An extent that several sequences of the step have in their past becomes one `Read` with several readers.
Source: shared-prefix attention as in Hydragen (Juravsky et al. 2024, arXiv:2402.05099, section 3.1); ours works
on runs of any length found by comparing slots, not on one declared prefix.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anaphora.core.extent import Extent, coalesce

MIN_SHARED_TOKEN_READS = 64
"""A run is answered in a call of its own only when that saves at least this many token reads; below it the extra
call and merge cost more than the reading (`anaphora bench attention`)."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One sequence's share of a step: rows [row_start, row_start + num_rows) of the batch."""

    sequence_id: int  # for runners that keep a state per sequence
    row_start: int
    num_rows: int
    position: int  # tokens in front of the first row
    extents: tuple[Extent, ...]  # cover token positions [0, position + num_rows)

    @property
    def row_stop(self) -> int:
        return self.row_start + self.num_rows

    @property
    def num_past(self) -> int:
        """Tokens read without a causal mask: all in front, and the token itself when it is alone."""
        return self.position + 1 if self.num_rows == 1 else self.position


@dataclass(frozen=True, slots=True)
class Read:
    """One extent and the sequences (indices into `StepPlan.sequences`, ascending) whose rows attend to it."""

    extent: Extent
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """KV of rows [row_start, row_start + length) goes to slots [slot_start, slot_start + length)."""

    row_start: int
    slot_start: int
    length: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    sequences: tuple[Rows, ...]
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]

    @property
    def num_rows(self) -> int:
        return self.sequences[-1].row_stop


def plan_step(sequences: Sequence[Rows]) -> StepPlan:
    """Plan a step over `sequences`, whose rows stand one after another.

    Cost: O(extents in all leases * log) per step, none per token.
    """
    pasts = [tuple(extents_between(rows.extents, 0, rows.num_past)) for rows in sequences]
    writes = [write for rows in sequences for write in _writes(rows)]
    return StepPlan(tuple(sequences), tuple(_reads(pasts)), tuple(writes))


def extents_between(extents: Sequence[Extent], start: int, stop: int) -> Iterator[Extent]:
    """Yield the slots of token positions [start, stop)."""
    position = 0
    for extent in extents:
        if position >= stop:
            return
        skipped = max(0, start - position)
        taken = min(extent.length, stop - position) - skipped
        if taken > 0:
            yield Extent(extent.start + skipped, taken)
        position += extent.length


def _writes(rows: Rows) -> Iterator[Write]:
    row = rows.row_start
    for extent in extents_between(rows.extents, rows.position, rows.position + rows.num_rows):
        yield Write(row, extent.start, extent.length)
        row += extent.length


def _reads(pasts: list[tuple[Extent, ...]]) -> Iterator[Read]:
    if len(pasts) == 1:
        yield from (Read(extent, (0,)) for extent in pasts[0])
        return
    pieces = _cut_where_shared(pasts)
    readers: dict[Extent, list[int]] = {}
    for index, own in enumerate(pieces):
        for extent in own:
            readers.setdefault(extent, []).append(index)
    shared = {
        extent: tuple(who)
        for extent, who in readers.items()
        if (len(who) - 1) * extent.length >= MIN_SHARED_TOKEN_READS
    }
    yield from (Read(extent, who) for extent, who in shared.items())
    for index, own in enumerate(pieces):
        private: list[Extent] = []
        for extent in own:
            if extent not in shared:
                private.append(extent)
        yield from (Read(extent, (index,)) for extent in coalesce(private))


def _cut_where_shared(pasts: list[tuple[Extent, ...]]) -> list[list[Extent]]:
    """Cut extents so that any two are equal or disjoint. Borders inside an extent exist only where two overlap."""
    borders = sorted({border for past in pasts for extent in past for border in (extent.start, extent.stop)})
    return [[piece for extent in past for piece in _cut(extent, borders)] for past in pasts]


def _cut(extent: Extent, borders: list[int]) -> Iterator[Extent]:
    start = extent.start
    first, last = bisect_right(borders, extent.start), bisect_left(borders, extent.stop)
    for border in borders[first:last]:
        yield Extent(start, border - start)
        start = border
    yield Extent(start, extent.stop - start)
