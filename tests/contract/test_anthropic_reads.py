"""Anthropic's lookups, vector by vector: what was written where, what a later request reads and writes.

Blocks are a thousand tokens each, so that a bill in blocks is (read, 1h write, 5m write, input).
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from ledger_world import Host, block, conversation, host, split

from anaphora.contract.layout import Block, scope_of


def after(*earlier: list[Block], **rules: object) -> Host:
    """A host that has answered these requests."""
    one = host(**rules)
    for blocks in earlier:
        one.answered(blocks)
    return one


@pytest.mark.parametrize(
    ("earlier", "now", "expected"),
    [
        pytest.param([], conversation(10, [10]), (0, 0, 10, 0), id="L1 nothing written yet"),
        pytest.param([conversation(10, [10])], conversation(15, [15]), (10, 0, 5, 0), id="L2 ends five blocks back"),
        pytest.param(
            [conversation(10, [10]), conversation(15, [15])], conversation(35, [35]), (0, 0, 35, 0), id="L3 too far"
        ),
        pytest.param([conversation(15, [15])], conversation(35, [15, 35]), (15, 0, 20, 0), id="L4 second breakpoint"),
        pytest.param([conversation(15, [15])], conversation(34, [34]), (15, 0, 19, 0), id="L5 twentieth position"),
        pytest.param(
            [conversation(6, [6], b6="time 1")], conversation(6, [6], b6="time 2"), (0, 0, 6, 0), id="L6 nothing at 5"
        ),
        pytest.param(
            [conversation(6, [5], b6="time 1")], conversation(6, [5], b6="time 2"), (5, 0, 0, 1), id="L7 mark at 5"
        ),
    ],
)
def test_lookback_vectors(earlier: Sequence[list[Block]], now: list[Block], expected: tuple[int, ...]) -> None:
    assert split(after(*earlier).answered(now)) == expected


def tool_round(num_calls: int, *, marked: bool = True) -> list[Block]:
    """Ten blocks, then calls in one assistant message and their results in one user message."""
    calls = [block(f"call {n}", kind="tool_use", message_index=11, role="assistant") for n in range(num_calls)]
    results = [block(f"result {n}", kind="tool_result", message_index=12) for n in range(num_calls)]
    if marked:
        results[-1] = block(f"result {num_calls - 1}", kind="tool_result", message_index=12, ttl="5m")
    return [*conversation(10), *calls, *results]


def test_l8_runs_of_calls_and_results_are_one_position_each() -> None:
    assert split(after(conversation(10, [10])).answered(tool_round(30))) == (10, 0, 60, 0)
    ungrouped = after(conversation(10, [10]), groups_runs=False)
    assert split(ungrouped.answered(tool_round(30))) == (0, 0, 70, 0)


def test_an_entry_inside_a_run_is_found_unless_the_profile_says_no() -> None:
    half = tool_round(4)[:12]
    half[-1] = block("call 1", kind="tool_use", message_index=11, role="assistant", ttl="5m")
    assert split(after(half).answered(tool_round(4))) == (12, 0, 6, 0)
    assert split(after(half, enters_runs=False).answered(tool_round(4))) == (0, 0, 18, 0)


def test_runs_end_with_their_message_unless_the_profile_says_no() -> None:
    turns = [block(f"result {n}", kind="tool_result", message_index=10 + n) for n in range(25)]
    turns[-1] = block("result 24", kind="tool_result", message_index=34, ttl="5m")
    assert split(after(conversation(3, [3])).answered([*conversation(3), *turns])) == (0, 0, 28, 0)
    crossing = after(conversation(3, [3]), runs_cross_messages=True)
    assert split(crossing.answered([*conversation(3), *turns])) == (3, 0, 25, 0)


def test_thinking_is_a_position_unless_the_profile_says_no() -> None:
    def turns(num: int) -> list[Block]:
        thoughts = [block(f"thought {n}", kind="thinking", message_index=10, role="assistant") for n in range(num)]
        return [*conversation(3), *thoughts, block("answer", message_index=10, role="assistant", ttl="5m")]

    assert split(after(conversation(3, [3])).answered(turns(20)))[0] == 0
    assert split(after(conversation(3, [3]), counts_thinking=False).answered(turns(20)))[0] == 3


def test_l9_system_end_is_hit_only_where_it_was_written_and_near() -> None:
    def asked(num_messages: int, *, marks_system: bool = False, word: str = "") -> list[Block]:
        system = block("S", level="system", ttl="5m" if marks_system else None)
        turns = conversation(num_messages, [num_messages], b1=f"first {word}")
        return [system, *turns]

    assert split(after(asked(1, word="a")).answered(asked(1, word="b"))) == (0, 0, 2, 0)
    assert split(after(asked(1, marks_system=True)).answered(asked(1, word="b"))) == (1, 0, 1, 0)
    assert split(after(asked(1, marks_system=True)).answered(asked(19, word="b"))) == (1, 0, 19, 0)
    assert split(after(asked(1, marks_system=True)).answered(asked(20, word="b"))) == (0, 0, 21, 0)


def test_the_walk_crosses_from_messages_over_system_into_tools() -> None:
    tools = [block("T", level="tools", ttl="5m"), block("S", level="system")]
    assert split(after(tools).answered([*tools[:1], block("S2", level="system"), *conversation(1, [1])])) == (
        1,
        0,
        2,
        0,
    )


def test_the_longest_hit_wins() -> None:
    one = after(conversation(4, [4]), conversation(8, [8]))
    assert split(one.answered(conversation(9, [2, 9]))) == (8, 0, 1, 0)


def test_the_longest_hit_wins_from_whichever_breakpoint_it_is_seen() -> None:
    apart = after(conversation(3, {3: "5m"}), conversation(6, {6: "1h"}), reads_across_ttls=False)
    assert split(apart.answered(conversation(9, {6: "1h", 9: "5m"}))) == (6, 0, 3, 0)
    inside = tool_round(4, marked=False)
    half = [replace(one, ttl="5m") if n == 11 else one for n, one in enumerate(inside[:12])]
    now = [replace(one, ttl="5m") if n in (11, 17) else one for n, one in enumerate(inside)]
    one = after(conversation(10, [10]), half, enters_runs=False)
    assert split(one.answered(now)) == (12, 0, 6, 0)


def test_a_mark_that_moves_or_goes_changes_no_key() -> None:
    one = after(conversation(6, [6]))
    assert split(one.answered(conversation(8, [8]))) == (6, 0, 2, 0)
    assert split(one.answered(conversation(8, {7: "5m", 8: "5m"}))) == (8, 0, 0, 0)


def test_without_marks_nothing_is_read_or_written() -> None:
    one = after(conversation(6, [6]))
    assert split(one.answered(conversation(6))) == (0, 0, 0, 6)


def test_other_tenants_workspaces_and_models_see_nothing() -> None:
    one = after(conversation(6, [6]))
    for other in (scope_of("you", "model"), scope_of("me", "other model"), scope_of("me", "work", "model")):
        one.scope = other
        assert split(one.answered(conversation(6, [6]))) == (0, 0, 6, 0)


def test_names_of_a_scope_do_not_run_together() -> None:
    assert scope_of("ab", "c") != scope_of("a", "bc")


@pytest.mark.parametrize(("minimum", "expected"), [(6000, (0, 0, 6, 1)), (6001, (0, 0, 0, 7))])
def test_below_the_minimum_nothing_is_cached_and_nothing_fails(minimum: int, expected: tuple[int, ...]) -> None:
    one = host(min_tokens=minimum)
    assert split(one.answered(conversation(7, [6]))) == expected
    again = split(one.answered(conversation(7, [6])))
    assert again == ((6, 0, 0, 1) if minimum == 6000 else expected)


def test_a_mark_below_the_minimum_does_not_spoil_one_above() -> None:
    assert split(host(min_tokens=4000).answered(conversation(7, {2: "1h", 6: "5m"}))) == (0, 0, 6, 1)


def test_peek_tells_and_changes_nothing() -> None:
    one = after(conversation(6, [6]))
    one.now_s = 299
    layout_and_marks = one.started(conversation(6, [6]))
    assert layout_and_marks.hit == 6000
    fresh = after(conversation(6, [6]))
    from ledger_world import ME, laid_out

    from anaphora.contract.anthropic import breakpoints_of

    layout = laid_out(conversation(6, [6]))
    marks = breakpoints_of(layout.blocks, None, fresh.ledger.rules)
    assert fresh.ledger.peek(layout, marks, scope=ME, now_s=299).hit == 6000
    assert fresh.ledger.peek(layout, marks, scope=ME, now_s=301).hit == 0


# What the engine has really reused bounds what may be called read.


@pytest.mark.parametrize(
    ("num_reused", "expected"),
    [
        (7000, (6000, 2000, 0)),  # more than the contract grants: the contract holds
        (6000, (6000, 2000, 0)),
        (2500, (2500, 5500, 0)),  # partly lost: what was lost is written again
        (0, (0, 8000, 0)),
        (7999, (6000, 2000, 0)),
    ],
)
def test_nothing_is_read_that_was_computed(num_reused: int, expected: tuple[int, int, int]) -> None:
    reckoning = after(conversation(6, [6])).started(conversation(8, [8]))
    bill = reckoning.bill_for(num_reused)
    bill.check()
    assert (bill.read, bill.written, bill.input) == expected
    assert reckoning.uncached().input == 8000


def test_a_prompt_that_is_hit_whole_computes_its_last_token_and_writes_nothing() -> None:
    bill = after(conversation(8, [8])).started(conversation(8, [8])).bill_for(7999)
    assert (bill.read, bill.written, bill.input) == (7999, 0, 1)
