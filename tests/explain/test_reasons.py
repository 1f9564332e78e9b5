"""The reason of a miss. Method: a labelled pair for each reason, both from whole requests and from bare texts."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompts import prompt_of, side, tool

from anaphora.explain.reasons import ADVICE, SAYS, Explanation, Reason, explain, text_reason
from anaphora.explain.volatile import find_volatile, volatile_at
from anaphora.prompt.canonical import Message, Prompt, Text, Thinking, Tool, ToolChoice

LOOK, FIND = tool("look", 0), tool("find", 1)
HISTORY = ("one", "two", "three", "four", "five")


def explained(first: Prompt, second: Prompt) -> Explanation:
    return explain(side(first), side(second))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("It is 2026-12-01T10:00:00Z.", "It is 2026-12-01T10:00:07Z.", "time"),
        ("Now: 2026-12-01 10:00:00.123456", "Now: 2026-12-02 09:59:59.000001", "time"),
        ("Now: December 1, 2026 at 10:00 AM. Go.", "Now: December 1, 2026 at 10:01 AM. Go.", "time"),
        ("At 10:00 sharp", "At 11:30 sharp", "time"),
        ("ts=1764583200", "ts=1764583201", "time"),
        ("Today is 2026-12-01.", "Today is 2026-12-02.", "date"),
        ("Today is 1 December 2026.", "Today is 2 December 2026.", "date"),
        ("Today is Dec 1, 2026.", "Today is Nov 30, 2026.", "date"),
        ("id 0b9c8d7e-1111-4222-8333-444455556666", "id 1b9c8d7e-1111-4222-8333-444455556666", "uuid"),
        ("cch=7f9c2a1be4d03a55;", "cch=00aa2a1be4d03a55;", "nonce"),
        ("req_01AbCdEfGh2345", "req_09zzCdEfGh2345", "nonce"),
        ("You have 9 tries.", "You have 10 tries.", "number"),
        ("Step 9", "Step 98", "number"),
        ("Chapter 1. Rain.", "Chapter 2. The sun came out.", "text_changed"),
        ("Be kind. ", "Be kind.\n", "whitespace"),
        ("caf\u00e9", "cafe\u0301", "unicode_form"),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', "key_order"),
        ('{"a": 1, "b": "\u00e9"}', '{"a": 1, "b": "\\u00e9"}', "json_spacing"),
        ("Be kind.", "Be kind. And brief.", "text_grew"),
        ("Be kind. And brief.", "Be kind.", "text_cut"),
        ("Be kind.", "Be stern.", "text_changed"),
    ],
)
def test_texts(old: str, new: str, reason: Reason) -> None:
    assert text_reason(old, new) == reason
    found = explained(prompt_of("Hi", system=old), prompt_of("Hi", system=new))
    assert (found.reason, found.where) == (reason, "system")


@pytest.mark.parametrize(
    ("old", "new", "reason", "where"),
    [
        ((LOOK,), (LOOK, FIND), "tool_added", "tools[1]"),
        ((LOOK, FIND), (LOOK,), "tool_removed", "tools[1]"),
        ((LOOK, FIND), (tool("find", 0), tool("look", 1)), "tools_reordered", "tools[0]"),
        ((LOOK,), (tool("look", 0, description="Does that."),), "tool_edited", "tools[0]"),
        ((LOOK,), (tool("look", 0, schema='{"type": "object", "required": []}'),), "tool_edited", "tools[0]"),
        (
            (tool("look", 0, schema='{"type": "object", "required": []}'),),
            (tool("look", 0, schema='{"required": [], "type": "object"}'),),
            "key_order",
            "tools[0]",
        ),
        (
            (tool("look", 0, description="Day: 2026-12-01"),),
            (tool("look", 0, description="Day: 2026-12-02"),),
            "date",
            "tools[0]",
        ),
    ],
)
def test_tools(old: tuple[Tool, ...], new: tuple[Tool, ...], reason: Reason, where: str) -> None:
    found = explained(prompt_of("Hi", tools=old), prompt_of("Hi", tools=new))
    assert (found.reason, found.where) == (reason, where)


@pytest.mark.parametrize(
    ("messages", "reason", "where"),
    [
        (HISTORY[2:], "history_truncated", "messages[0].content"),
        ((*HISTORY[:3], "for", "five"), "history_edited", "messages[3].content"),
    ],
)
def test_history(messages: tuple[str, ...], reason: Reason, where: str) -> None:
    found = explained(prompt_of(*HISTORY), prompt_of(*messages))
    assert (found.reason, found.where) == (reason, where)


def test_message_put_in_or_taken_out() -> None:
    short = spoken("user one", "assistant two", "user three", "assistant four", "user five")
    long = spoken("user one", "user note", "assistant two", "user three", "assistant four", "user five")
    put_in, taken_out = explained(short, long), explained(long, short)
    assert (put_in.reason, put_in.where) == ("message_inserted", "messages[1].content")
    assert (taken_out.reason, taken_out.where) == ("message_removed", "messages[1].content")


def spoken(*turns: str) -> Prompt:
    """Messages from lines of a role and a word."""
    messages = []
    for index, (role, word) in enumerate(turn.split() for turn in turns):
        path = f"messages[{index}]"
        messages.append(Message(role, (Text(word, f"{path}.content"),), path))  # type: ignore[arg-type]
    return prompt_of(*messages)


def test_reasoning_that_is_left_out() -> None:
    with_it, without = (
        (
            Message("user", (Text("a", "messages[0].content"),), "messages[0]"),
            Message("assistant", (*thoughts, Text("b", "messages[1].content[1]")), "messages[1]"),
            Message("user", (Text("c", "messages[2].content"),), "messages[2]"),
        )
        for thoughts in ((Thinking("hm", "messages[1].content[0]"),), ())
    )
    first, second = side(Prompt(with_it)), side(Prompt(without))
    assert explain(first, second).reason == "none", "this template writes no reasoning"
    shown = replace(Prompt(with_it), messages=(with_it[0], _shown(with_it[1]), with_it[2]))
    found = explain(replace(side(shown), prompt=Prompt(with_it)), second)
    assert (found.reason, found.where) == ("reasoning_dropped", "messages[1].content[0]")


def _shown(message: Message) -> Message:
    """The message as a template writes it that shows reasoning."""
    parts = tuple(Text(one.text, one.path) for one in message.parts if isinstance(one, Text | Thinking))
    return replace(message, parts=parts)


def test_part_that_is_added_or_left_out() -> None:
    one = prompt_of("Hi")
    two = replace(one, system=(Text("Be kind.", "system"), Text("Be brief.", "system[1]")))
    assert (explained(one, two).reason, explained(one, two).where) == ("part_added", "system[1]")
    assert (explained(two, one).reason, explained(two, one).where) == ("part_removed", "system[1]")


def test_settings_that_keep_caches_apart_come_first() -> None:
    first, second = prompt_of("a"), prompt_of("b")
    found = explain(side(first, model="m", tenant="t"), side(second, model="n", tenant="t"))
    assert (found.reason, found.where, found.num_reused) == ("scope_changed", "model", 0)
    assert explain(side(first, model="m"), side(first, model="m")).reason == "none"


def test_what_only_the_template_writes() -> None:
    tools = (LOOK, FIND)
    first = replace(prompt_of("Hi", tools=tools), tool_choice=ToolChoice("tool", "look"))
    second = replace(prompt_of("Hi", tools=tools), tool_choice=ToolChoice("tool", "find"))
    found = explained(first, second)
    assert (found.reason, found.where) == ("text_changed", "tool_choice")


def test_reused_tokens_are_those_in_front_of_the_difference() -> None:
    found = explained(prompt_of("Hello"), prompt_of("Help"))
    assert found.divergence is not None
    assert (
        found.num_reused
        == found.divergence.token_index
        == found.num_tokens - len("p<|im_end|>\n<|im_start|>assistant\n")
    )
    same = explained(prompt_of("Hello"), prompt_of("Hello", "Hi", "So?"))
    assert (same.reason, same.where, same.divergence) == ("none", "", None)
    assert same.num_reused == len(side(prompt_of("Hello")).rendered.tokens)


@pytest.mark.parametrize(
    ("old", "new", "num_lost"),
    [
        ("At 10:05 we eat.", "At 11:30 we eat.", len(" we eat.")),
        ("At 10:05", "At 11:30", 0),
        ("step 9 of", "step 10 of", len(" of")),
        ("We swim in the sea.", "We eat in the sea.", 0),  # words that were meant to differ
    ],
)
def test_lost_is_what_both_have_behind_a_small_change(old: str, new: str, num_lost: int) -> None:
    found = explained(prompt_of("Hello", system=old), prompt_of("Hello", system=new))
    assert found.num_lost == num_lost + len("Hello")


def test_every_reason_says_something() -> None:
    assert set(SAYS) == set(get_args(Reason))
    assert set(ADVICE) <= set(SAYS)
    assert explained(prompt_of("Hi", system="At 10:00"), prompt_of("Hi", system="At 10:01")).advice == ADVICE["time"]
    assert explained(prompt_of("Hi"), prompt_of("Ho")).advice == ""


@pytest.mark.parametrize("text", ["temperature2m_max_value", "get_weather", "version v2", "utf8", "a-b-c-d", ""])
def test_plain_words_do_not_look_volatile(text: str) -> None:
    assert list(find_volatile(text)) == []


def test_looks_are_found_in_order_and_whole() -> None:
    text = "Session 7f9c2a1be4d0, 2026-12-01T10:00:00Z, step 4"
    found = [(one.kind, text[one.start : one.stop]) for one in find_volatile(text)]
    assert found == [("nonce", "7f9c2a1be4d0"), ("time", "2026-12-01T10:00:00Z"), ("number", "4")]


@given(st.text(alphabet="a1:- ", max_size=40), st.integers(0, 40), st.sampled_from(["", "word " * 60]))
def test_value_at_a_place_is_the_one_that_is_found_there(text: str, place: int, before: str) -> None:
    whole, place = before + text, len(before) + min(place, len(text))
    holding = [one for one in find_volatile(whole) if one.start <= place <= one.stop]
    assert volatile_at(whole, place) == (holding[0] if holding else None)
