"""What invalidates what: a host with a breakpoint at the end of tools, of system and of messages, then one change.

Kept levels are read: tools is block 1, system block 2, messages blocks 3 and 4.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from ledger_world import Host, block, host

from anaphora.contract.anthropic import AnthropicSettings
from anaphora.contract.layout import Block, scope_of

TOOLS, SYSTEM, ALL, NOTHING = 1000, 2000, 4000, 0


def request(
    *, tool: str = '{"a": 1, "b": 2}', system: str = "S", first: str = "M", second: str = '{"x": 1, "y": 2}'
) -> list[Block]:
    return [
        block(tool, level="tools", kind="tool", ttl="5m"),
        block(system, level="system", ttl="5m"),
        block(first, message_index=0),
        block(second, kind="tool_use", message_index=1, role="assistant", ttl="5m"),
    ]


def kept(before: Sequence[Block], after: Sequence[Block], *settings: AnthropicSettings | None, **rules: Any) -> int:
    """Tokens that the second request reads of what the first wrote."""
    one: Host = host(**rules)
    first, second = settings or (None, None)
    one.answered(before, settings=first)
    return one.answered(after, settings=second).read


def changed(**setting: Any) -> int:
    """What is kept when a setting is given that was not."""
    return kept(request(), request(), None, AnthropicSettings(**setting))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"has_web_search": True}, TOOLS),
        ({"has_web_fetch": True}, TOOLS),
        ({"has_citations": True}, TOOLS),
        ({"speed": "fast"}, TOOLS),
        ({"tool_choice": '{"type": "any"}'}, SYSTEM),
        ({"disables_parallel_tools": True}, SYSTEM),
        ({"has_images": True}, SYSTEM),
        ({"thinking": '{"type": "enabled", "budget_tokens": 2000}'}, SYSTEM),
        ({"effort": "low"}, SYSTEM),
        ({"task_budget": "10000"}, SYSTEM),
        ({"output_format": '{"type": "json_schema"}'}, TOOLS),
        ({}, ALL),
    ],
)
def test_a_changed_setting_loses_the_levels_from_its_own_on(setting: dict[str, Any], expected: int) -> None:
    assert changed(**setting) == expected


def test_another_thinking_budget_is_another_setting() -> None:
    few, many = (AnthropicSettings(thinking=f'{{"budget_tokens": {n}}}') for n in (1000, 2000))
    assert kept(request(), request(), few, many) == SYSTEM
    assert kept(request(), request(), many, many) == ALL


def test_a_default_that_is_spelled_out_is_no_change() -> None:
    spelled = AnthropicSettings(effort="high", thinking='{"type": "disabled"}', speed="standard", tool_choice="auto")
    assert kept(request(), request(), None, spelled) == ALL


@pytest.mark.parametrize(("level", "expected"), [("tools", NOTHING), ("system", TOOLS), ("messages", SYSTEM)])
@pytest.mark.parametrize(
    ("rule", "setting"),
    [
        ("thinking_level", {"thinking": "{}"}),
        ("effort_level", {"effort": "low"}),
        ("task_budget_level", {"task_budget": "9"}),
        ("format_level", {"output_format": "{}"}),
    ],
)
def test_a_profile_says_at_which_level_a_setting_counts(
    rule: str, setting: dict[str, Any], level: str, expected: int
) -> None:
    assert kept(request(), request(), None, AnthropicSettings(**setting), **{rule: level}) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tool": '{"a": 1, "b": 3}'}, NOTHING),
        ({"tool": '{"b": 2, "a": 1}'}, NOTHING),  # key order of a schema
        ({"system": "S2"}, TOOLS),
        ({"first": "M2"}, SYSTEM),  # an early message edited
        ({"second": '{"y": 2, "x": 1}'}, SYSTEM),  # key order of a call's input
    ],
)
def test_changed_content_loses_everything_behind_it(change: dict[str, str], expected: int) -> None:
    assert kept(request(), request(**change)) == expected


def test_another_model_loses_everything() -> None:
    one = host()
    one.answered(request())
    one.scope = scope_of("me", "another model")
    assert one.answered(request()).read == NOTHING


def test_a_tool_added_removed_or_reordered_loses_everything() -> None:
    other = block("other tool", level="tools", kind="tool")
    tool, *rest = request()
    two = [block("t1", level="tools", kind="tool"), tool, *rest]
    assert kept(request(), [other, *request()]) == NOTHING
    assert kept([other, *request()], request()) == NOTHING
    assert kept(two, [tool, block("t1", level="tools", kind="tool"), *rest]) == NOTHING


def test_a_tool_added_behind_the_marked_one_keeps_the_marked_ones_prefix() -> None:
    tool, *rest = request()
    assert kept(request(), [tool, block("late", level="tools", kind="tool"), *rest]) == TOOLS


def test_messages_that_change_places_or_vanish_lose_from_there_on() -> None:
    tool, system, first, second = request()
    extra = block("extra", message_index=5)
    assert kept(request(), [tool, system, second, first]) == SYSTEM
    assert kept([tool, system, first, extra, second], request()) == SYSTEM


def test_the_same_text_in_another_role_is_another_prefix() -> None:
    tool, system, _, second = request()
    by_assistant = block("M", message_index=0, role="assistant")
    assert kept(request(), [tool, system, by_assistant, second]) == SYSTEM


def test_cleared_or_compacted_history_keeps_tools_and_system() -> None:
    tool, system, *_ = request()
    assert kept(request(), [tool, system, block("summary", message_index=0, ttl="5m")]) == SYSTEM


def thinking_turns(*, new_question: str | None, result: str | None = None) -> list[Block]:
    """A question answered with thinking, then a tool's result or the user's next words, marked at the end."""
    turns = [
        block("S", level="system", ttl="5m"),
        block("question", message_index=0),
        block("thought", kind="thinking", message_index=1, role="assistant", can_be_marked=False),
        block("call", kind="tool_use", message_index=1, role="assistant", ttl="5m" if not new_question else None),
    ]
    if result:
        turns.append(block(result, kind="tool_result", message_index=2, ttl="5m"))
    if new_question:
        turns.append(block(new_question, message_index=2, ttl="5m"))
    return turns


@pytest.mark.parametrize(("keeps", "expected"), [(True, 4000), (False, 1000)])
def test_new_words_of_the_user_drop_earlier_thinking_on_models_that_do(keeps: bool, expected: int) -> None:
    before = thinking_turns(new_question=None)
    assert kept(before, thinking_turns(new_question="next"), keeps_thinking=keeps) == expected


def test_a_tools_result_keeps_thinking_on_every_model() -> None:
    before = thinking_turns(new_question=None)
    assert kept(before, thinking_turns(new_question=None, result="42"), keeps_thinking=False) == 4000
