"""Golden tests of the OpenAI wire, both directions. The types of the `openai` package are the schema of record."""

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from wire_world import EXTENSION, account, delta, score

from anaphora.api.answers import AnswerReader, Begin, CallReading, collect
from anaphora.api.openai import read_chat
from anaphora.api.openai_completions import CompletionReply, PromptText, read_completion
from anaphora.api.openai_reply import ChatReply
from anaphora.engine.request import Delta, Sampling
from anaphora.errors import RequestError
from anaphora.prompt.canonical import CacheMark, Message, Prompt, Text, Tool, ToolChoice, ToolResult, ToolUse

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather now.",
        "parameters": {"type": "object", "b": 1, "a": 2},
    },
}
HELLO = [{"role": "user", "content": "Hello"}]
USAGE = {
    "prompt_tokens": 26,
    "completion_tokens": 3,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HELLO, **fields}


def answers_of(deltas: list[Delta], *, calls: CallReading | None = None, num_sequences: int = 1) -> list[Any]:
    reader = AnswerReader(num_sequences, calls, lambda: "call_1")
    return [event for piece in deltas for event in reader.read(piece)]


def chat_reply(**fields: Any) -> ChatReply:
    return ChatReply(response_id="chatcmpl-1", created=1700000000, call=read_chat(chat_body(**fields)))


def test_chat_request_becomes_a_prompt_part_by_part() -> None:
    call = read_chat(
        chat_body(
            messages=[
                {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
                {"role": "user", "content": [{"type": "text", "text": "A", "prompt_cache_breakpoint": {"ttl": "12h"}}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1,"a":2}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "7"},
                {"role": "system", "content": "late"},
            ],
            tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
            parallel_tool_calls=False,
        )
    )
    assert call.prompt == Prompt(
        messages=(
            Message("system", (Text("Be kind.", "messages[0].content[0]"),), "messages[0]"),
            Message("user", (Text("A", "messages[1].content[0]", CacheMark("12h")),), "messages[1]"),
            Message("assistant", (ToolUse("c1", "f", '{"b": 1,"a":2}', "messages[2].tool_calls[0]"),), "messages[2]"),
            Message("tool", (ToolResult("c1", "7", "messages[3].content"),), "messages[3]"),
            Message("system", (Text("late", "messages[4].content"),), "messages[4]"),
        ),
        tools=(
            Tool(
                "get_weather",
                "Weather now.",
                '{"type": "object", "b": 1, "a": 2}',
                "tools[0]",
                schema_path="tools[0].function.parameters",
            ),
        ),
        tool_choice=ToolChoice("tool", "get_weather", parallel=False),
    )


def test_sampling_fields_become_the_engines() -> None:
    call = read_chat(
        chat_body(
            n=2, temperature=0.5, top_p=0.9, presence_penalty=1, frequency_penalty=-1, seed=7, logit_bias={"5": -100},
            stop=["a", "b"], max_tokens=9, max_completion_tokens=8, logprobs=True, top_logprobs=3, stream=True,
            stream_options={"include_usage": True}, top_k=4, min_p=0.1, repetition_penalty=1.1, ignore_eos=True,
            stop_token_ids=[3], unheard_of={"x": 1},
        )
    )  # fmt: skip
    assert call.sampling == Sampling(
        max_tokens=8, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, presence_penalty=1.0, frequency_penalty=-1.0,
        repetition_penalty=1.1, seed=7, logit_bias={5: -100.0}, num_logprobs=3, stop=("a", "b"), stop_token_ids=(3,),
        ignore_end=True, num_sequences=2,
    )  # fmt: skip
    assert (call.is_streamed, call.includes_usage) == (True, True)


def test_fields_left_out_or_null_mean_the_defaults() -> None:
    nulls = dict.fromkeys(["n", "temperature", "top_p", "seed", "stop", "max_tokens", "logit_bias", "tools", "stream"])
    assert read_chat(chat_body(**nulls)) == read_chat(chat_body())
    assert read_chat(chat_body()).sampling == Sampling()


def test_top_p_of_zero_leaves_the_likeliest_token() -> None:
    sampling = read_chat(chat_body(top_p=0)).sampling
    assert (sampling.top_p, sampling.top_k) == (1.0, 1)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]}, "messages[1].content[0].type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {}}}]}
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"model": 3}, "model"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 200}}, "logit_bias.1"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": []}}},
            "response_format.json_schema.schema",
        ),
        (
            {
                "response_format": {"type": "json_object"},
                "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            },
            "response_format",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none"}}},
            "tool_choice.allowed_tools.mode",
        ),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
    ],
)
def test_wrong_field_is_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_chat(chat_body(**fields))
    assert caught.value.field is not None
    assert caught.value.field.startswith(path)
    assert caught.value.message.startswith(caught.value.field)


def test_whole_chat_answer() -> None:
    events = answers_of(
        [delta("Hel", logprobs=(score("Hel", others=(("Yo", -1.5),)),)), delta("lo", finish_reason="stop")]
    )
    body = chat_reply(logprobs=True, top_logprobs=2).whole(collect(events, 1), account())
    top = [
        {"token": "Hel", "bytes": [72, 101, 108], "logprob": -0.5},
        {"token": "Yo", "bytes": [89, 111], "logprob": -1.5},
    ]
    assert body == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": {
                    "content": [{"token": "Hel", "bytes": [72, 101, 108], "logprob": -0.5, "top_logprobs": top}],
                    "refusal": None,
                },
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
        "service_tier": "default",
        "anaphora": EXTENSION,
    }
    ChatCompletion.model_validate(body)


def test_whole_chat_answer_with_a_call() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"b": 1,"a":2}}</tool_call>'
    events = answers_of([delta(text, finish_reason="stop")], calls=CallReading(("get_weather",)))
    body = chat_reply(tools=[WEATHER]).whole(collect(events, 1), account())
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"b": 1,"a":2}'},
            }
        ],
    }
    ChatCompletion.model_validate(body)


def streamed(reply: ChatReply, events: list[Any]) -> list[dict[str, Any]]:
    chunks = reply.opening() + [chunk for event in events for chunk in reply.piece(event)] + reply.closing(account())
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        json.dumps(chunk)
    return chunks


def choice_of(delta: dict[str, Any], finish: str | None = None, index: int = 0) -> list[dict[str, Any]]:
    return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}]


def test_streamed_chat_answer_with_usage() -> None:
    reply = chat_reply(stream=True, stream_options={"include_usage": True})
    chunks = streamed(reply, answers_of([delta("Hel"), delta(""), delta("lo", finish_reason="length")]))
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m"}
    assert chunks == [
        {**head, "choices": choice_of({"role": "assistant", "content": ""}), "usage": None},
        {**head, "choices": choice_of({"content": "Hel"}), "usage": None},
        {**head, "choices": choice_of({"content": "lo"}), "usage": None},
        {**head, "choices": choice_of({}, "length"), "usage": None},
        {**head, "choices": [], "usage": USAGE, "anaphora": EXTENSION},
    ]


def test_streamed_chat_answer_without_usage_carries_the_receipt_at_its_end() -> None:
    chunks = streamed(chat_reply(stream=True), answers_of([delta("Hi", finish_reason="stop")]))
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[-1]["choices"] == choice_of({}, "stop")
    assert chunks[-1]["anaphora"] == EXTENSION


def test_streamed_call_is_named_first_and_then_filled() -> None:
    text = 'Sure. <tool_call>{"name": "get_weather", "arguments": {"a":2}}</tool_call>'
    deltas = [*(delta(character) for character in text), delta("", finish_reason="stop")]
    events = answers_of(deltas, calls=CallReading(("get_weather",)))
    chunks = [chunk["choices"] for chunk in streamed(chat_reply(tools=[WEATHER], stream=True), events)]
    named = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    assert chunks[-3:] == [
        choice_of({"tool_calls": [named]}),
        choice_of({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":2}'}}]}),
        choice_of({}, "tool_calls"),
    ]
    texts = [choices[0]["delta"].get("content") or "" for choices in chunks]
    assert "".join(texts) == "Sure."


def test_only_one_call_where_parallel_calls_are_off() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2 + "more"
    (answer,) = collect(answers_of([delta(text, finish_reason="stop")], calls=CallReading(("f",), is_single=True)), 1)
    assert (len(answer.calls), answer.text) == (1, "")


def test_scores_of_tokens_without_text_go_out_with_the_next_text() -> None:
    events = answers_of([delta("", logprobs=(score("x"),)), delta("y", logprobs=(score("y"),), finish_reason="stop")])
    chunks = streamed(chat_reply(stream=True, logprobs=True), events)
    scored = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [[entry["token"] for entry in scores["content"]] for scores in scored if scores] == [["x", "y"]]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_completion_prompts_in_all_four_forms(prompt: Any, expected: Any) -> None:
    assert read_completion({"model": "m", "prompt": prompt}).prompts == expected


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
def test_wrong_completion_field_is_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_completion({"model": "m", "prompt": "a", **fields})
    assert caught.value.field is not None
    assert caught.value.field.startswith(path)


def completion_reply(**fields: Any) -> CompletionReply:
    call = read_completion({"model": "m", "prompt": "ab", **fields})
    return CompletionReply(response_id="cmpl-1", created=1700000000, call=call)


def test_whole_completion_with_echo_and_scores() -> None:
    events = answers_of([delta("c", logprobs=(score("c", -0.25, others=(("d", -2.0),)),), finish_reason="length")])
    echoed = [(PromptText("ab", (0, 1)), (None, score("b", -1.0, others=(("z", -0.5),))))]
    body = completion_reply(echo=True, logprobs=1).whole(collect(events, 1), echoed, account())
    assert body == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1700000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "abc",
                "logprobs": {
                    "tokens": ["a", "b", "c"],
                    "token_logprobs": [None, -1.0, -0.25],
                    "top_logprobs": [None, {"b": -1.0, "z": -0.5}, {"c": -0.25, "d": -2.0}],
                    "text_offset": [0, 1, 2],
                },
                "finish_reason": "length",
            }
        ],
        "usage": USAGE,
        "anaphora": EXTENSION,
    }


def test_streamed_completion_gives_the_prompt_back_first() -> None:
    reply = completion_reply(echo=True, stream=True, n=2)
    events = answers_of(
        [
            delta("c", sequence_index=1),
            delta("", finish_reason="stop"),
            delta("", sequence_index=1, finish_reason="stop"),
        ],
        num_sequences=2,
    )
    chunks = reply.echo(0, PromptText("ab", ()), ())
    chunks += [chunk for event in events if not isinstance(event, Begin) for chunk in reply.piece(event)]
    chunks += reply.closing(account())
    seen = [
        (choice["index"], choice["text"], choice["finish_reason"]) for chunk in chunks for choice in chunk["choices"]
    ]
    assert seen == [(0, "ab", None), (1, "ab", None), (1, "c", None), (0, "", "stop"), (1, "", "stop")]
    assert chunks[-1]["anaphora"] == EXTENSION
    for chunk in chunks:
        assert Completion.construct(**chunk).object == "text_completion"


def test_part_of_a_character_is_named_by_its_bytes() -> None:
    broken = score("�")
    partial = [delta("", logprobs=(type(broken)(1, "�", b"\xe2\x82", -0.5),), finish_reason="length")]
    body = completion_reply(logprobs=0).whole(collect(answers_of(partial), 1), [], account())
    assert body["choices"][0]["logprobs"]["tokens"] == ["bytes:\\xe2\\x82"]
