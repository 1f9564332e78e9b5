"""Golden tests of the Anthropic wire, both ways. The types of the `anthropic` package are the schema of record."""

from typing import Any

import pytest
from anthropic.types import Message as SdkMessage
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter
from wire_world import EXTENSION, account, delta

from anaphora.api.account import Account
from anaphora.api.answers import AnswerReader, CallReading, collect
from anaphora.api.anthropic import read_count, read_messages
from anaphora.api.anthropic_reply import MessageReply
from anaphora.engine.request import Delta, Sampling
from anaphora.errors import RequestError
from anaphora.prompt.canonical import (
    CacheMark,
    Message,
    Prompt,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "b": 1, "a": 2}}
USAGE = {
    "input_tokens": 6,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 20,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 3,
    "service_tier": "standard",
}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 16, "messages": HELLO, **fields}


def events_of(deltas: list[Delta], *, calls: CallReading | None = None) -> list[Any]:
    reader = AnswerReader(1, calls, lambda: "toolu_1")
    return [event for piece in deltas for event in reader.read(piece)]


def reply(*, fills_context: bool = False) -> MessageReply:
    return MessageReply(response_id="msg_1", model="m", fills_context=fills_context)


def test_request_becomes_a_prompt_part_by_part() -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    call = read_messages(
        body(
            system=[{"type": "text", "text": "Be kind.", "cache_control": mark}],
            tools=[{**TOOL, "cache_control": {"type": "ephemeral"}}],
            tool_choice={"type": "auto", "disable_parallel_tool_use": True},
            messages=[
                {"role": "user", "content": "A"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "redacted_thinking", "data": "x"},
                        {"type": "text", "text": "Let me see."},
                        {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": [2]}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": "7", "cache_control": mark},
                        {"type": "tool_result", "tool_use_id": "t2", "is_error": True,
                         "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
                        {"type": "text", "text": "And?"},
                    ],
                },
                {"role": "system", "content": "late"},
            ],
        )
    )  # fmt: skip
    assert call.prompt == Prompt(
        messages=(
            Message("user", (Text("A", "messages[0].content"),), "messages[0]"),
            Message(
                "assistant",
                (
                    Thinking("hm", "messages[1].content[0]"),
                    Text("Let me see.", "messages[1].content[2]"),
                    ToolUse("t1", "f", '{"b": 1, "a": [2]}', "messages[1].content[3]"),
                ),
                "messages[1]",
            ),
            Message(
                "user",
                (
                    ToolResult("t1", "7", "messages[2].content[0]", mark=CacheMark("1h")),
                    ToolResult("t2", "x\ny", "messages[2].content[1]", is_error=True),
                    Text("And?", "messages[2].content[2]"),
                ),
                "messages[2]",
            ),
            Message("system", (Text("late", "messages[3].content"),), "messages[3]"),
        ),
        system=(Text("Be kind.", "system[0]", CacheMark("1h")),),
        tools=(
            Tool(
                "f",
                "d",
                '{"type": "object", "b": 1, "a": 2}',
                "tools[0]",
                CacheMark(),
                schema_path="tools[0].input_schema",
            ),
        ),
        tool_choice=ToolChoice("auto", parallel=False),
    )


def test_sampling_fields_become_the_engines() -> None:
    call = read_messages(
        body(temperature=0.5, top_p=0.9, top_k=4, stop_sequences=["x"], stream=True, metadata={"u": 1})
    )
    assert call.sampling == Sampling(max_tokens=16, temperature=0.5, top_p=0.9, top_k=4, stop=("x",))
    assert call.is_streamed


@pytest.mark.parametrize(
    ("system", "left"),
    [
        ("x-anthropic-billing-header: v=1; cch=9f3;\nBe kind.", ["Be kind."]),
        (
            [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, {"type": "text", "text": "Be kind."}],
            ["Be kind."],
        ),
        ("Be kind.\nx-anthropic-billing-header: no", ["Be kind.\nx-anthropic-billing-header: no"]),
        ("", []),
        ([], []),
    ],
)
def test_billing_line_in_front_of_the_system_prompt_is_dropped(system: Any, left: list[str]) -> None:
    assert [part.text for part in read_messages(body(system=system)).prompt.system] == left


def test_text_documents_become_text() -> None:
    content = [
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
        {"type": "search_result", "title": "S", "source": "src", "content": [{"type": "text", "text": "R"}]},
    ]
    (message,) = read_messages(body(messages=[{"role": "user", "content": content}])).prompt.messages
    assert [part.text for part in message.parts if isinstance(part, Text)] == ["T\nD", "S\nsrc\nR"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            "messages[0].content[0].source.type",
        ),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": 0, "stream": True}, "max_tokens"),
        ({"max_tokens": 0, "tools": [TOOL], "tool_choice": {"type": "any"}}, "max_tokens"),
        ({"max_tokens": 0, "thinking": {"type": "enabled", "budget_tokens": 1024}}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": [" "]}, "stop_sequences"),
        ({"system": 7}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "x"}}, "tool_choice.type"),
        ({"cache_control": {"type": "eternal"}}, "cache_control.type"),
        ({"tools": [{**TOOL, "cache_control": {"type": "ephemeral", "ttl": "2h"}}]}, "tools[0].cache_control.ttl"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_format": {"type": "json_schema", "schema": 3}}, "output_format.schema"),
        ({"output_format": SCHEMA, "output_config": {"format": SCHEMA}}, "output_format"),
        ({"output_config": {"format": SCHEMA}, "max_tokens": 0}, "max_tokens"),
        (
            {
                "output_config": {"format": SCHEMA},
                "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            },
            "output_config.format",
        ),
        ({"tools": [{**TOOL, "strict": "yes"}]}, "tools[0].strict"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
    ],
)
def test_wrong_field_is_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_messages(body(**fields))
    assert caught.value.field is not None
    assert caught.value.field.startswith(path)


def test_counting_needs_no_max_tokens() -> None:
    assert read_count({"model": "m", "messages": HELLO}).prompt == read_messages(body()).prompt


def test_max_tokens_beyond_the_context_is_cut_to_it() -> None:
    call = read_messages(body(max_tokens=100))
    assert call.sampling_within(40) == (Sampling(max_tokens=40), True)
    assert call.sampling_within(100) == (Sampling(max_tokens=100), False)
    assert call.sampling_within(0) == (Sampling(max_tokens=100), False)


def test_whole_answer() -> None:
    events = events_of([delta("Hel"), delta("lo", finish_reason="stop")])
    written = reply().whole(collect(events, 1)[0], account())
    assert written == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
        "anaphora": EXTENSION,
    }
    SdkMessage.model_validate(written)


def test_whole_answer_with_a_call() -> None:
    text = 'Sure. <tool_call>{"name": "f", "arguments": {"b": 1, "a": 2}}</tool_call>'
    events = events_of([delta(text, finish_reason="stop")], calls=CallReading(("f",)))
    written = reply().whole(collect(events, 1)[0], account())
    assert written["content"] == [
        {"type": "text", "text": "Sure.", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": 2}},
    ]
    assert list(written["content"][1]["input"]) == ["b", "a"]
    assert written["stop_reason"] == "tool_use"
    SdkMessage.model_validate(written)


@pytest.mark.parametrize(
    ("last", "fills_context", "reason", "sequence"),
    [
        (delta("", finish_reason="stop"), False, "end_turn", None),
        (delta("", finish_reason="length"), False, "max_tokens", None),
        (delta("", finish_reason="length"), True, "model_context_window_exceeded", None),
        (delta("", finish_reason="stop_string", stop_string="END"), False, "stop_sequence", "END"),
    ],
)
def test_stop_reasons(last: Delta, fills_context: bool, reason: str, sequence: str | None) -> None:
    written = reply(fills_context=fills_context).whole(collect(events_of([last]), 1)[0], account())
    assert (written["stop_reason"], written["stop_sequence"], written["content"]) == (reason, sequence, [])


def streamed(events: list[Any], first: Account, last: Account) -> list[dict[str, Any]]:
    writer = reply()
    written = writer.opening(first) + [item for event in events for item in writer.piece(event)] + writer.closing(last)
    for event in written:
        if event["type"] != "ping":
            EVENT.validate_python(event)
    return written


def test_streamed_answer_in_the_order_clients_expect() -> None:
    text = 'Sure. <tool_call>{"name": "f", "arguments": {"a": 2}}</tool_call>'
    events = events_of([*(delta(c) for c in text), delta("", finish_reason="stop")], calls=CallReading(("f",)))
    written = streamed(events, account(generated=0), account())
    assert written[:2] == [
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {**USAGE, "output_tokens": 0},
            },
        },
        {"type": "ping"},
    ]
    texts = [event["delta"]["text"] for event in written if event.get("delta", {}).get("type") == "text_delta"]
    assert "".join(texts) == "Sure."
    rest = [event for event in written[2:] if event.get("delta", {}).get("type") != "text_delta"]
    assert rest == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a": 2}'}},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {
                "input_tokens": 6,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 20,
                "output_tokens": 3,
            },
            "anaphora": EXTENSION,
        },
        {"type": "message_stop"},
    ]
