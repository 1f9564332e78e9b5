"""OpenAI's breakpoints: implicit and explicit, which are written, which looked up, what they cost.

Blocks are a thousand tokens; roles alternate unless a test says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from ledger_world import ME, block, laid_out

from anaphora.contract.layout import Block, Levels, Scope, scope_of
from anaphora.contract.openai import (
    BreakpointLedger,
    BreakpointReckoning,
    BreakpointRules,
    CacheOptions,
    OpenAIBill,
    OpenAISettings,
    eligible_ends,
    prefix_settings,
)


@dataclass(slots=True)
class Host:
    ledger: BreakpointLedger
    now_s: float = 0.0
    scope: Scope = ME
    levels: Levels = field(default_factory=Levels)

    def started(self, blocks: Sequence[Block], **options: Any) -> BreakpointReckoning:
        layout = laid_out(blocks)
        layout = type(layout)(layout.blocks, layout.num_tokens, self.levels)
        return self.ledger.reckon(layout, CacheOptions(**options), scope=self.scope, now_s=self.now_s)

    def answered(self, blocks: Sequence[Block], **options: Any) -> OpenAIBill:
        reckoning = self.started(blocks, **options)
        self.ledger.publish(reckoning)
        self.ledger.check()
        bill = reckoning.bill()
        bill.check()
        return bill


def host(**rules: Any) -> Host:
    return Host(BreakpointLedger(BreakpointRules(**{"min_tokens": 0, **rules})))


def chat(num_messages: int, marks: Sequence[int] = (), *, ttl: str | None = None, **changed: str) -> list[Block]:
    """Messages 1 to n, the user's odd ones; `marks` explicit. A ttl of "" is an explicit mark that names none."""
    return [
        block(
            changed.get(f"m{n}", f"message {n}"),
            ttl=(ttl or "30m") if n in marks else None,
            message_index=n,
            role="user" if n % 2 else "assistant",
        )
        for n in range(1, num_messages + 1)
    ]


def split(bill: OpenAIBill) -> tuple[int, int, int]:
    """Cached, written, ordinary, in blocks."""
    return (bill.cached // 1000, bill.written // 1000, bill.ordinary // 1000)


def test_implicit_mode_writes_at_the_newest_message_and_reads_the_one_before() -> None:
    one = host()
    assert split(one.answered(chat(1))) == (0, 1, 0)
    assert split(one.answered(chat(3))) == (1, 2, 0)
    assert split(one.answered(chat(3))) == (3, 0, 0)


def test_a_newest_message_that_varies_is_paid_for_every_time() -> None:
    one = host()
    for time in ("1", "2", "3"):
        assert split(one.answered(chat(3, m3=f"time {time}"))) == (0, 3, 0)


def test_a_shared_prefix_that_was_never_a_breakpoint_is_not_reused() -> None:
    one = host()
    one.answered([*chat(2), block("question a", message_index=3)])
    assert split(one.answered([*chat(2), block("question b", message_index=3)])) == (0, 3, 0)


def test_an_explicit_breakpoint_makes_the_shared_prefix_reusable() -> None:
    one = host()
    one.answered([*chat(1, [1]), block("question a", message_index=3)])
    assert split(one.answered([*chat(1, [1]), block("question b", message_index=3)])) == (1, 1, 0)


def test_text_appended_inside_a_message_loses_the_boundary_at_its_old_end() -> None:
    one = host()
    one.answered(chat(1))
    grown = [*chat(1), block("and this", message_index=1)]
    assert split(one.answered(grown)) == (0, 2, 0)


def test_a_switch_from_implicit_to_explicit_misses() -> None:
    one = host()
    one.answered(chat(3))
    assert split(one.answered(chat(3, [3]), mode="explicit")) == (0, 3, 0)


def test_explicit_mode_without_marks_caches_nothing_and_reads_nothing() -> None:
    one = host()
    one.answered(chat(3))
    assert split(one.answered(chat(3), mode="explicit")) == (0, 0, 3)
    assert one.started(chat(3), mode="explicit").writes == ()


def test_more_than_four_marks_are_no_error_and_the_latest_are_written() -> None:
    one = host()
    assert split(one.answered(chat(9, range(1, 10)), mode="explicit")) == (0, 9, 0)
    assert split(one.answered(chat(5, [5]), mode="explicit")) == (0, 5, 0)  # 5 was not among 6, 7, 8, 9
    assert split(one.answered(chat(6, [6]), mode="explicit"))[0] == 6


def test_implicit_mode_writes_the_latest_three_explicit_and_the_implicit_one() -> None:
    reckoning = host().started(chat(9, [1, 3, 5, 7]))
    assert [tokens for tokens, _ in reckoning.marks] == [3000, 5000, 7000, 9000]


@pytest.mark.parametrize(("minimum", "expected"), [(3000, (0, 3, 0)), (3001, (0, 0, 3))])
def test_below_the_minimum_nothing_is_cached_and_boundaries_are_exact(
    minimum: int, expected: tuple[int, int, int]
) -> None:
    assert split(host(min_tokens=minimum).answered(chat(3))) == expected


def test_lookup_reaches_as_many_message_ends_as_the_profile_says() -> None:
    for between, expected in ((4, 1), (6, 0)):
        one = host(num_message_ends=2)
        one.answered(chat(1))
        assert split(one.answered(chat(1 + between)))[0] == expected


def test_lookup_of_explicit_breakpoints_takes_the_first_and_the_latest() -> None:
    marks = [1, 3, 5, 7]
    for first, latest, expected in ((0, 2, 0), (1, 2, 1), (0, 4, 1)):
        one = host(num_first=first, num_latest=latest)
        one.answered(chat(1, [1]), mode="explicit")
        assert split(one.answered(chat(7, marks), mode="explicit"))[0] == expected


def test_the_end_of_the_opening_developer_messages_is_found_from_afar() -> None:
    developer = block("D", message_index=0, role="system")
    far = [developer, *chat(9)]
    for finds, expected in ((True, 1), (False, 0)):
        one = host(num_message_ends=1, finds_developer_end=finds)
        one.answered([developer])
        assert split(one.answered(far))[0] == expected


def test_where_implicit_breakpoints_may_stand() -> None:
    roles = ["system", "system", "user", "assistant", "tool", "tool", "assistant", "system", "user"]
    blocks = [block(str(n), message_index=n, role=role) for n, role in enumerate(roles)]
    assert eligible_ends(blocks) == [1, 2, 5, 8]


def test_a_lifetime_is_refreshed_by_reads_and_by_nothing_else() -> None:
    one = host()
    one.answered(chat(3))
    for at_s in (1800, 3600, 5400):
        one.now_s = at_s
        assert split(one.answered(chat(3)))[0] == 3
    one.now_s = 5400 + 1801
    assert split(one.answered(chat(3)))[0] == 0


def test_twelve_hours_cost_and_last_more() -> None:
    one = host()
    bill = one.answered(chat(3), ttl="12h")
    assert (bill.write_30m, bill.write_12h) == (0, 3000)
    one.now_s = 43200
    assert split(one.answered(chat(3)))[0] == 3


def test_a_parts_own_lifetime_covers_the_tokens_up_to_it() -> None:
    bill = host().answered(chat(3, [2], ttl="12h"))
    assert (bill.write_12h, bill.write_30m, bill.ordinary) == (2000, 1000, 0)


def test_nothing_is_readable_before_the_response_begins() -> None:
    one = host()
    started = [one.started(chat(3)) for _ in range(2)]
    assert [split(each.bill()) for each in started] == [(0, 3, 0)] * 2
    one.ledger.publish(started[1])
    assert split(one.answered(chat(3))) == (3, 0, 0)


def test_cache_keys_tenants_and_settings_are_apart() -> None:
    one = host()
    one.answered(chat(3), key="a")
    assert split(one.answered(chat(3), key="b"))[0] == 0
    assert split(host(key_separates=False).answered(chat(3), key="a"))[0] == 0
    one.scope = scope_of("you", "model")
    assert split(one.answered(chat(3), key="a"))[0] == 0
    one.scope = ME
    assert split(one.answered(chat(3), key="a"))[0] == 3


@pytest.mark.parametrize(
    "setting",
    [
        {"parallel_tools": False},
        {"text_format": "{}"},
        {"effort": "low"},
        {"verbosity": "high"},
        {"service_tier": "flex"},
        {"context_management": "[]"},
    ],
)
def test_settings_are_part_of_the_prefix(setting: dict[str, Any]) -> None:
    one = host()
    one.answered(chat(3))
    one.levels = Levels(tools=prefix_settings(OpenAISettings(**setting)))
    assert split(one.answered(chat(3)))[0] == 0


@pytest.mark.parametrize(("num_reused", "expected"), [(5000, (3000, 2000)), (1500, (1500, 3500)), (4999, (3000, 2000))])
def test_nothing_counts_as_cached_that_was_computed(num_reused: int, expected: tuple[int, int]) -> None:
    one = host()
    one.answered(chat(3))
    reckoning = one.started(chat(5))
    bill = reckoning.bill_for(num_reused)
    bill.check()
    assert (bill.cached, bill.written) == expected
    assert reckoning.uncached().ordinary == 5000


def test_a_prompt_that_is_hit_whole_computes_its_last_token_and_writes_nothing() -> None:
    one = host()
    one.answered(chat(3))
    bill = one.started(chat(3)).bill_for(2999)
    assert (bill.cached, bill.written, bill.ordinary) == (2999, 0, 1)
