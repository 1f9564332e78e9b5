"""All slots of a tier, and which of them are free. It knows nothing of tokens or time."""

from bisect import bisect_left, insort
from collections.abc import Iterable

from anaphora.core.extent import Extent

MAX_GAP = 256
"""Slots left free, at most, in front of a new extent, so that the sequence before it can grow in place.
A few hundred tokens is the length of a common answer."""

LONG_RUN = 1024
"""Slots from which on a run counts as long: more extents of this length cost attention nothing measurable."""


class Pool:
    """Hands out slots as few extents as it can, and takes them back.

    Free slots are kept as the longest possible runs, found by start, by stop and by length:

        slot    0    5    9         19
                |####|....|#########|......|        # taken   . free
        by start {5: 4, 19: 6}   by stop {9: 5, 25: 19}   by length {4: [5], 6: [19]}

    Free runs of D different lengths hold at least D * (D + 1) / 2 slots, so the sorted list of lengths has at
    most sqrt(2 * num_slots) entries: 4,472 for ten million slots.
    """

    def __init__(self, num_slots: int) -> None:
        assert num_slots > 0, "a pool needs a slot"
        self.num_slots = num_slots
        self.num_free = 0
        self._length_at: dict[int, int] = {}  # start -> length
        self._start_before: dict[int, int] = {}  # stop -> start
        self._starts_of: dict[int, dict[int, None]] = {}  # length -> starts, a set in order
        self._lengths: list[int] = []  # sorted, each once
        self._add(0, num_slots)

    def take(self, num_slots: int, *, after: int | None = None) -> tuple[Extent, ...]:
        """Take slots out of the pool, in the order in which they are to be filled.

        First what is free right at slot `after`, so that a sequence that ends there goes on in place. The
        rest comes from the shortest free run that holds all of it, or, where none does, from the longest
        runs.
        Cost: O(log of the number of different lengths) for each extent.
        """
        assert 0 <= num_slots <= self.num_free, "more than is free: make room first"
        taken: list[Extent] = []
        if after is not None and num_slots and (length := self._length_at.get(after)) is not None:
            taken.append(self._cut_out(after, after, min(length, num_slots)))
            num_slots -= taken[0].length
        while num_slots:
            taken.append(self._take_best(num_slots))
            num_slots -= taken[-1].length
        return tuple(taken)  # free runs are never adjacent, so neither are these

    def has_run(self, num_slots: int) -> bool:
        """Whether `take` would give one extent, or begin with a long one."""
        longest = self._lengths[-1] if self._lengths else 0
        return longest >= min(num_slots, LONG_RUN)

    def give_back(self, extents: Iterable[Extent]) -> None:
        """Make slots free again, joined with their free neighbours. Cost: O(1) for each extent, amortised."""
        for extent in extents:
            start, stop = extent.start, extent.stop
            assert start not in self._length_at, "given back twice"
            if (before := self._start_before.get(start)) is not None:
                self._remove(before)
                start = before
            if (length_behind := self._length_at.get(stop)) is not None:
                self._remove(stop)
                stop += length_behind
            self._add(start, stop - start)
        assert self.num_free <= self.num_slots, "more free slots than there are"

    def free_extents(self) -> tuple[Extent, ...]:
        """List the free runs by start. Cost: a sort of them."""
        return tuple(Extent(start, length) for start, length in sorted(self._length_at.items()))

    def check(self) -> None:
        """Assert every invariant. Cost: a sort of the free runs."""
        extents = self.free_extents()
        assert sum(extent.length for extent in extents) == self.num_free, "the count of free slots is off"
        last_stop = -1
        for extent in extents:
            assert extent.start > last_stop, "free runs overlap or were not joined"
            assert 0 < extent.length <= self.num_slots - extent.start, "a free run leaves the pool"
            assert self._start_before[extent.stop] == extent.start, "a run is not found by its stop"
            assert extent.start in self._starts_of[extent.length], "a run is not found by its length"
            last_stop = extent.stop
        assert len(self._start_before) == len(extents), "a stop without a run"
        assert sum(map(len, self._starts_of.values())) == len(extents), "a length without a run"
        assert self._lengths == sorted(self._starts_of), "the sorted lengths are off"
        assert all(self._starts_of.values()), "a length with no runs was kept"

    def _take_best(self, num_slots: int) -> Extent:
        index = bisect_left(self._lengths, num_slots)
        if index == len(self._lengths):  # no run holds it all
            length = self._lengths[-1]
            start = self._any_start(length)
            return self._cut_out(start, start, length)
        length = self._lengths[index]
        start = self._any_start(length)
        gap = min((length - num_slots) // 8, MAX_GAP) if start else 0
        return self._cut_out(start, start + gap, num_slots)

    def _any_start(self, length: int) -> int:
        # popitem is O(1) amortised; a dict's first or last key is not once many others were deleted beside
        # it.
        starts = self._starts_of[length]
        start, _ = starts.popitem()
        starts[start] = None
        return start

    def _cut_out(self, run: int, start: int, length: int) -> Extent:
        """Take `[start, start + length)` out of the free run that begins at `run`."""
        extent = Extent(start, length)
        run_stop = run + self._length_at[run]
        self._remove(run)
        if run < start:
            self._add(run, start - run)
        if extent.stop < run_stop:
            self._add(extent.stop, run_stop - extent.stop)
        return extent

    def _add(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_before[start + length] = start
        starts = self._starts_of.get(length)
        if starts is None:
            self._starts_of[length] = {start: None}
            insort(self._lengths, length)
        else:
            starts[start] = None
        self.num_free += length

    def _remove(self, start: int) -> None:
        length = self._length_at.pop(start)
        del self._start_before[start + length]
        starts = self._starts_of[length]
        del starts[start]
        if not starts:
            del self._starts_of[length]
            del self._lengths[bisect_left(self._lengths, length)]
        self.num_free -= length
