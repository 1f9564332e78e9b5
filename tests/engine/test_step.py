"""The plan of a step: whatever the extents, a past is read once and nothing else is, and rows go to their slots.

Method: hypothesis lays prompts over scattered slots, with trunks that several sequences share; a reader is then
followed slot by slot.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from anaphora.core.extent import Extent, count_slots
from anaphora.engine.step import MIN_SHARED_TOKEN_READS, Rows, StepPlan, extents_between, plan_step


def slots_of(extents: object) -> list[int]:
    return [slot for extent in extents for slot in range(extent.start, extent.stop)]  # type: ignore[attr-defined]


@st.composite
def batches(draw: st.DrawFn) -> list[Rows]:
    """Sequences over one pool: each is some of a shared trunk (maybe none) and then slots of its own."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=4, max_size=40))
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    pieces = draw(st.permutations([Extent(a, n) for a, n in zip(starts, lengths, strict=True)]))
    trunk, own = pieces[: len(pieces) // 3], list(pieces[len(pieces) // 3 :])
    rows: list[Rows] = []
    row_start = 0
    for index in range(draw(st.integers(1, 6))):
        shared = list(extents_between(trunk, 0, draw(st.integers(0, count_slots(trunk)))))
        private = [own.pop() for _ in range(min(len(own), draw(st.integers(1, 3))))]
        if not private:
            break
        extents = (*shared, *private)
        num_tokens = count_slots(extents) - draw(st.integers(0, private[-1].length - 1))  # room to grow behind
        num_rows = draw(st.integers(1, num_tokens - count_slots(shared))) if num_tokens > count_slots(shared) else 0
        if num_rows:
            rows.append(Rows(index, row_start, num_rows, num_tokens - num_rows, extents))
            row_start += num_rows
    return rows or [Rows(0, 0, 1, 0, (pieces[0],))]


def read_by(plan: StepPlan, index: int) -> Counter[int]:
    return Counter(slot for read in plan.reads if index in read.readers for slot in slots_of([read.extent]))


@given(batches())
def test_every_sequence_reads_its_past_once_and_nothing_else(sequences: list[Rows]) -> None:
    plan = plan_step(sequences)
    for index, rows in enumerate(sequences):
        past = slots_of(extents_between(rows.extents, 0, rows.num_past))
        assert read_by(plan, index) == Counter(past)


@given(batches())
def test_every_row_is_written_to_its_own_slot_once(sequences: list[Rows]) -> None:
    plan = plan_step(sequences)
    written = {write.row_start + i: write.slot_start + i for write in plan.writes for i in range(write.length)}
    assert sum(write.length for write in plan.writes) == plan.num_rows == len(written)
    for rows in sequences:
        slots = slots_of(rows.extents)
        for i in range(rows.num_rows):
            assert written[rows.row_start + i] == slots[rows.position + i]


@given(batches())
def test_shared_runs_are_read_once_for_all_and_only_where_it_pays(sequences: list[Rows]) -> None:
    plan = plan_step(sequences)
    for read in plan.reads:
        assert list(read.readers) == sorted(set(read.readers))
        saved = (len(read.readers) - 1) * read.extent.length
        assert len(read.readers) == 1 or saved >= MIN_SHARED_TOKEN_READS


def test_a_long_common_prefix_becomes_one_read() -> None:
    trunk = Extent(100, 500)
    rows = [Rows(i, i, 1, 510, (trunk, Extent(1000 + 20 * i, 20))) for i in range(3)]
    plan = plan_step(rows)
    assert plan.reads[0].extent == trunk
    assert plan.reads[0].readers == (0, 1, 2)
    assert [(read.extent, read.readers) for read in plan.reads[1:]] == [
        (Extent(1000 + 20 * i, 11), (i,)) for i in range(3)
    ]


@given(st.lists(st.integers(1, 9), max_size=8), st.integers(0, 60), st.integers(0, 60))
def test_extents_between_is_a_slice_of_the_slots(lengths: list[int], start: int, stop: int) -> None:
    extents = [Extent(100 * i, length) for i, length in enumerate(lengths)]
    assert slots_of(extents_between(extents, start, stop)) == slots_of(extents)[start:stop]
