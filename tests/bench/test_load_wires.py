"""Requests are spelled as each API wants them, and streamed answers are read as each API tells them.

Method: bodies and events as data.
"""

import json
from typing import Any

import pytest

from anaphora.bench.load.calls import Ask
from anaphora.bench.load.wires import Anthropic, Broke, Chat, Completions, Counted, Ended, Said, Wire, wire_named

TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
TALK = (
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "blue", "tool_call_id": "c1"},
    {"role": "user", "content": "And now?"},
)
ASK = Ask("agent", "Be brief.", TALK, 9, (TOOL,))


def read(wire: Wire, event: Any) -> list[object]:
    return list(wire.read(event if isinstance(event, str) else json.dumps(event)))


def test_chat_sends_the_talk_as_it_is_and_asks_for_usage() -> None:
    body = Chat(full_length=True).body(ASK, "m")
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, *TALK]
    assert body["tools"] == [{"type": "function", "function": TOOL}]
    assert body["stream_options"] == {"include_usage": True}
    assert (body["max_tokens"], body["ignore_eos"], body["temperature"]) == (9, True, 0)
    assert "ignore_eos" not in Chat(full_length=False).body(ASK, "m")


def test_completions_sends_bare_text() -> None:
    ask = Ask("x", "One.", ({"role": "user", "content": "Two."},), 3)
    assert Completions(full_length=False).body(ask, "m")["prompt"] == "One.\n\nTwo."


def test_anthropic_gets_content_parts_results_from_the_user_and_two_marks() -> None:
    body = Anthropic().body(ASK, "m")
    mark = {"cache_control": {"type": "ephemeral"}}
    assert body["system"] == [{"type": "text", "text": "Be brief.", **mark}]
    assert body["tools"] == [{"name": "look", "description": "Looks.", "input_schema": TOOL["parameters"]}]
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "sky"}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "blue"},
                {"type": "text", "text": "And now?", **mark},
            ],
        },
    ]


def test_only_pieces_of_the_answer_count_as_its_beginning() -> None:
    chat = Chat(full_length=True)
    assert read(chat, {"choices": [{"delta": {"role": "assistant", "content": ""}}]}) == []
    assert read(chat, {"choices": [{"delta": {"content": "a"}}]}) == [Said("a")]
    assert read(chat, {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}) == [Said("")]
    assert read(chat, {"choices": [{"delta": {"reasoning_content": "hm"}}]}) == [Said("")]
    assert read(chat, {"choices": [{"delta": {}, "finish_reason": "stop"}]}) == []
    assert read(Completions(full_length=True), {"choices": [{"text": "a"}]}) == [Said("a")]
    anthropic = Anthropic()
    assert read(anthropic, {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}) == []
    assert read(anthropic, {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}) == [Said("a")]
    call = {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}
    assert read(anthropic, call) == [Said("")]
    assert read(anthropic, {"type": "ping"}) == []


def test_usage_is_told_in_each_apis_fields() -> None:
    chat = Chat(full_length=True)
    counts = {"prompt_tokens": 10, "completion_tokens": 2}
    told = {**counts, "prompt_tokens_details": {"cached_tokens": 7}}
    assert read(chat, {"choices": [], "usage": told}) == [Counted(10, 7, 2)]
    assert read(chat, {"choices": [], "usage": counts}) == [Counted(10, None, 2)]
    assert read(chat, {"choices": [], "usage": {**counts, "prompt_tokens_details": None}}) == [Counted(10, None, 2)]
    usage = {"input_tokens": 1, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 2, "output_tokens": 1}
    assert read(Anthropic(), {"type": "message_start", "message": {"usage": usage}}) == [Counted(10, 7, 1)]
    assert read(Anthropic(), {"type": "message_delta", "usage": {"output_tokens": 5}}) == [Counted(output_tokens=5)]


def test_ends_and_errors_are_told_apart() -> None:
    chat = Chat(full_length=True)
    assert read(chat, "[DONE]") == [Ended()]
    assert read(Anthropic(), {"type": "message_stop"}) == [Ended()]
    assert read(chat, {"error": {"type": "server_error", "code": None, "message": "no"}}) == [
        Broke("server_error", "no")
    ]
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    assert read(Anthropic(), error) == [Broke("overloaded_error", "busy")]


@pytest.mark.parametrize("name", ["chat", "completions", "anthropic"])
def test_every_api_has_its_name_and_its_key(name: str) -> None:
    wire = wire_named(name, full_length=True)
    assert wire is not None
    assert "secret" in "".join(wire.headers("secret").values())
    assert wire_named("other", full_length=True) is None
