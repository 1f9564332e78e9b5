"""Marks that Anthropic refuses with a 400, each with the path and the words that clients look for."""

import pytest
from ledger_world import block, conversation, laid_out

from anaphora.contract.anthropic import AnthropicRules, Ttl, breakpoints_of
from anaphora.contract.layout import Block
from anaphora.errors import RequestError


def refused(blocks: list[Block], automatic: Ttl | None = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        breakpoints_of(laid_out(blocks).blocks, automatic, AnthropicRules())
    return caught.value


def test_a_fifth_mark_is_refused_and_counted() -> None:
    assert len(breakpoints_of(conversation(4, [1, 2, 3, 4]), None, AnthropicRules())) == 4
    error = refused(conversation(6, [1, 2, 3, 4, 5, 6]))
    assert "maximum of 4 blocks with cache_control may be provided. Found 6" in error.message


def test_marks_count_over_all_levels() -> None:
    tools = [block("T", level="tools", ttl="5m"), block("S", level="system", ttl="5m")]
    assert "Found 5" in refused([*tools, *conversation(3, [1, 2, 3])]).message


def test_four_marks_leave_no_place_for_an_automatic_one() -> None:
    assert "maximum of 4 blocks with cache_control" in refused(conversation(5, [1, 2, 3, 4]), "5m").message


@pytest.mark.parametrize(("automatic", "marked"), [("1h", "5m"), ("5m", "1h")])
def test_an_automatic_mark_may_not_contradict_its_target(automatic: Ttl, marked: Ttl) -> None:
    error = refused(conversation(3, {3: marked}), automatic)
    assert "top-level cache_control has ttl" in error.message
    assert "already has ttl" in error.message
    assert error.message.index(automatic) < error.message.index(marked)


def test_an_hour_may_not_stand_behind_five_minutes() -> None:
    assert breakpoints_of(conversation(3, {1: "1h", 3: "5m"}), None, AnthropicRules())
    error = refused(conversation(3, {1: "5m", 3: "1h"}))
    assert error.field == "path.of.block 3.cache_control.ttl"
    assert all(word in error.message for word in ("1h", "5m", "`tools`, `system`, `messages`"))


def test_the_order_holds_from_tools_over_system_to_messages() -> None:
    assert refused([block("T", level="tools", ttl="5m"), block("S", level="system", ttl="1h")])
    assert refused([block("S", level="system", ttl="5m"), *conversation(1, {1: "1h"})])


def test_an_automatic_hour_behind_five_minutes_is_refused_by_its_own_name() -> None:
    assert refused(conversation(3, {1: "5m"}), "1h").field == "cache_control.ttl"
