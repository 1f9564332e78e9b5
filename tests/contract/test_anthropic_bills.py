"""Anthropic's lifetimes and bills: positions A, B and C, clocks, refreshes, and answers that have not begun."""

import pytest
from ledger_world import Host, block, conversation, host, split

from anaphora.contract.anthropic import Ttl, billed
from anaphora.contract.layout import Block


@pytest.mark.parametrize(
    ("marks", "hit", "expected"),
    [
        ([(4000, "1h"), (9000, "5m")], 0, (0, 4000, 5000, 1000)),
        ([(4000, "1h"), (9000, "5m")], 4000, (4000, 0, 5000, 1000)),
        ([(4000, "1h"), (9000, "5m")], 6000, (6000, 0, 3000, 1000)),
        ([(4000, "1h"), (7000, "1h"), (9000, "5m")], 4000, (4000, 3000, 2000, 1000)),
        ([(4000, "1h")], 4000, (4000, 0, 0, 6000)),
        ([(9000, "5m")], 9000, (9000, 0, 0, 1000)),
        ([], 0, (0, 0, 0, 10000)),
    ],
)
def test_billing_formula(marks: list[tuple[int, Ttl]], hit: int, expected: tuple[int, ...]) -> None:
    bill = billed(10_000, hit, marks)
    assert (bill.read, bill.write_1h, bill.write_5m, bill.input) == expected


@pytest.mark.parametrize(
    ("earlier", "marks", "expected"),
    [
        (None, {4: "1h", 9: "5m"}, (0, 4, 5, 1)),
        ({4: "1h"}, {4: "1h", 9: "5m"}, (4, 0, 5, 1)),
        ({6: "5m"}, {4: "1h", 9: "5m"}, (6, 0, 3, 1)),
        ({4: "1h"}, {4: "1h", 7: "1h", 9: "5m"}, (4, 3, 2, 1)),
        ({4: "1h"}, {4: "1h"}, (4, 0, 0, 6)),
        ({9: "5m"}, {9: "5m"}, (9, 0, 0, 1)),
    ],
)
def test_billing_table_through_the_ledger(
    earlier: dict[int, Ttl] | None, marks: dict[int, Ttl], expected: tuple[int, ...]
) -> None:
    one = host()
    if earlier is not None:
        one.answered(conversation(10, earlier))
    assert split(one.answered(conversation(10, marks))) == expected


def reads(one: Host, at_s: float, blocks: list[Block]) -> bool:
    one.now_s = at_s
    return one.answered(blocks).read > 0


@pytest.mark.parametrize(("ttl", "lifetime_s"), [("5m", 300), ("1h", 3600)])
def test_an_entry_lives_its_lifetime_from_the_start_of_the_request(ttl: Ttl, lifetime_s: int) -> None:
    for at_s, expected in ((lifetime_s, True), (lifetime_s + 1, False)):
        one = host()
        one.answered(conversation(3, {3: ttl}))
        assert reads(one, at_s, conversation(3, {3: ttl})) is expected


def test_time_spent_answering_eats_into_the_lifetime() -> None:
    one = host()
    slow = one.started(conversation(3, [3]))
    one.now_s = 200.0
    one.ledger.publish(slow)
    assert not reads(one, 301, conversation(3, [3]))


def test_every_read_refreshes_for_free() -> None:
    one = host()
    one.answered(conversation(3, [3]))
    for minutes in range(4, 40, 4):
        assert reads(one, minutes * 60, conversation(3, [3]))
    assert not reads(one, 36 * 60 + 301, conversation(3, [3]))


def test_a_read_through_an_unmarked_block_refreshes_too() -> None:
    one = host()
    one.answered(conversation(3, [3]))
    assert reads(one, 290, conversation(5, [5]))
    assert reads(one, 580, conversation(3, [3]))


def test_a_refresh_gives_an_entry_its_own_lifetime_not_the_readers() -> None:
    one = host()
    one.answered(conversation(3, {3: "5m"}))
    assert reads(one, 100, conversation(3, {3: "1h"}))
    assert not reads(one, 401, conversation(3, {3: "1h"}))
    other = host()
    other.answered(conversation(3, {3: "1h"}))
    assert reads(other, 100, conversation(3, {3: "5m"}))
    assert reads(other, 3700, conversation(3, {3: "5m"}))


def test_marks_of_other_lifetimes_do_not_read_where_the_profile_says_so() -> None:
    one = host(reads_across_ttls=False)
    assert split(one.answered(conversation(3, {3: "5m"}))) == (0, 0, 3, 0)
    assert split(one.answered(conversation(3, {3: "1h"}))) == (0, 3, 0, 0)
    assert split(one.answered(conversation(3, {3: "5m"}))) == (3, 0, 0, 0)
    assert split(one.answered(conversation(3, {3: "1h"}))) == (3, 0, 0, 0)


def test_nothing_is_readable_before_the_writers_response_begins() -> None:
    one = host()
    parallel = [one.started(conversation(3, [3])) for _ in range(3)]
    assert [split(each.bill()) for each in parallel] == [(0, 0, 3, 0)] * 3
    one.ledger.publish(parallel[0])
    assert split(one.answered(conversation(3, [3]))) == (3, 0, 0, 0)


def test_a_request_that_was_never_answered_wrote_nothing() -> None:
    one = host()
    one.started(conversation(3, [3]))
    assert split(one.answered(conversation(3, [3]))) == (0, 0, 3, 0)


def test_of_two_that_wrote_at_once_the_longer_life_stays() -> None:
    one = host()
    short, long = one.started(conversation(3, {3: "5m"})), one.started(conversation(3, {3: "1h"}))
    for each in (long, short):
        one.ledger.publish(each)
    assert reads(one, 3000, conversation(3, [3]))


def test_prewarming_writes_at_every_breakpoint_and_keeps_alive() -> None:
    """`max_tokens: 0` is an ordinary request to the ledger: it pays for what it writes, and later ones read it."""
    shared = [block("S", level="system", ttl="1h")]
    one = host()
    assert split(one.answered([*shared, block("warm up")])) == (0, 1, 0, 1)
    one.now_s = 3500
    assert split(one.answered([*shared, block("warm up")])) == (1, 0, 0, 1)
    one.now_s = 7000
    assert split(one.answered([*shared, block("a question"), block("more", message_index=1)])) == (1, 0, 0, 2)


# Automatic caching.


def test_the_automatic_breakpoint_moves_with_the_conversation() -> None:
    one = host()
    assert split(one.answered(conversation(3), automatic="5m")) == (0, 0, 3, 0)
    assert split(one.answered(conversation(5), automatic="5m")) == (3, 0, 2, 0)


def test_a_varying_last_block_writes_every_time_and_never_reads() -> None:
    one = host()
    for time in ("1", "2", "3"):
        assert split(one.answered(conversation(4, b4=f"time {time}"), automatic="5m")) == (0, 0, 4, 0)


def test_an_automatic_breakpoint_takes_a_ttl_and_a_place_among_explicit_ones() -> None:
    assert split(host().answered(conversation(3), automatic="1h")) == (0, 3, 0, 0)
    assert split(host().answered(conversation(5, {2: "1h"}), automatic="5m")) == (0, 2, 3, 0)


def test_blocks_that_cannot_be_marked_are_walked_over() -> None:
    thought = block("hm", kind="thinking", message_index=3, role="assistant", can_be_marked=False)
    assert split(host().answered([*conversation(2), thought], automatic="5m")) == (0, 0, 2, 1)
    assert split(host().answered([thought], automatic="5m")) == (0, 0, 0, 1)


def test_an_automatic_mark_on_a_marked_block_is_nothing_new() -> None:
    assert split(host().answered(conversation(3, [3]), automatic="5m")) == (0, 0, 3, 0)
    four = conversation(5, [2, 3, 4, 5])
    assert split(host().answered(four, automatic="5m")) == (0, 0, 5, 0)
