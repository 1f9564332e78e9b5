"""OpenAI's Responses endpoint with the official client: answers, streams, kept turns, counting, prewarming, caching."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from hosted_world import MODEL, Hosted, hosted
from wire_world import account, delta

from anaphora.api.answers import AnswerReader, CallReading
from anaphora.api.response_store import ResponseStore
from anaphora.api.responses import read_responses
from anaphora.api.responses_reply import ResponseReply
from anaphora.contract.profiles import profile_named
from anaphora.engine.engine import Engine
from anaphora.engine.request import Tenant
from anaphora.errors import RequestError, UnknownResponse
from anaphora.prompt.canonical import Message, Text, Thinking, ToolResult, ToolUse

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture
def local(roomy: Engine) -> Iterator[Hosted]:
    with hosted(roomy) as one:
        yield one


@pytest.fixture
def paid(roomy: Engine) -> Iterator[Hosted]:
    profile = profile_named("openai:gpt-5.6")
    with hosted(roomy, replace(profile, openai=replace(profile.openai, min_tokens=16))) as one:
        yield one


def respond(host: Hosted, said: Any, *, key: str = "red-key", **fields: Any) -> Any:
    request = {"model": MODEL, "max_output_tokens": 4, "temperature": 0, **fields}
    answer: Any = host.gpt(key).responses.create(input=said, **request)
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens == answer.anaphora["prompt_tokens"]
    split = usage.input_tokens_details.cache_write_tokens_details
    assert usage.input_tokens_details.cache_write_tokens == split.ttl_30m_tokens + split.ttl_12h_tokens
    assert usage.input_tokens_details.cached_tokens <= answer.anaphora["reused_tokens"]
    return answer


def cached(answer: Any) -> tuple[int, int]:
    details = answer.usage.input_tokens_details
    return details.cached_tokens, details.cache_write_tokens


# Reading.


def read(said: Any, earlier: Any = (), **fields: Any) -> Any:
    return read_responses({"model": MODEL, "input": said, **fields}, earlier)


def test_a_string_is_one_users_message() -> None:
    call = read("hi", instructions="be kind")
    assert call.prompt.system == (Text("be kind", "instructions"),)
    assert call.prompt.messages == (Message("user", (Text("hi", "input.content"),), "input"),)
    assert (call.is_stored, call.is_streamed, call.is_prewarm) == (True, False, False)


def test_items_of_one_answer_become_one_message() -> None:
    said = [
        {"role": "developer", "content": "rules"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "42"}]},
    ]
    system, user, answer, result = read(said).prompt.messages
    assert (system.role, user.role, answer.role, result.role) == ("system", "user", "assistant", "tool")
    assert answer.parts == (
        Thinking("hm", "input[2].content[0]"),
        Text("a", "input[3].content[0]"),
        ToolUse("c", "f", '{"x": 1}', "input[4]"),
    )
    assert result.parts == (ToolResult("c", "42", "input[5].output"),)


def test_earlier_items_stand_in_front() -> None:
    call = read("next", [{"role": "user", "content": "before"}])
    assert [message.path for message in call.prompt.messages] == ["previous[0]", "input"]


def test_tools_that_only_the_host_could_run_are_left_out_and_namespaces_opened() -> None:
    tools = [TOOL, {"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [{**TOOL, "name": "g"}]}]
    assert [tool.name for tool in read("hi", tools=tools).prompt.tools] == ["f", "g"]


def test_a_real_agents_request_is_read() -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "agent-requests" / "codex.json"
    if not path.exists():
        pytest.skip("the recorded requests are not beside this checkout")
    body = json.loads(path.read_text())[0]["body"]
    call = read_responses(body if isinstance(body, dict) else json.loads(body))
    assert len(call.prompt.tools) > 7
    assert call.prompt.messages[-1].text == "say hi"
    assert not call.is_stored


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "x", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": 3}}}, "text.format.schema"),
        ({"tools": [TOOL | {"strict": 1}]}, "tools[0].strict"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_responses({"model": MODEL, "input": "hi", **fields})
    assert caught.value.field == field


# Answering.


def test_an_answer_has_the_official_shape(local: Hosted) -> None:
    answer = respond(local, "hello", metadata={"a": "b"}, tools=[TOOL], tool_choice="none")
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].content[0].text == answer.output_text
    assert answer.usage.output_tokens == 4
    assert (answer.metadata, answer.tools[0].name, answer.tool_choice) == ({"a": "b"}, "f", "none")
    openai.types.responses.Response.model_validate(answer.model_dump(exclude={"output_text"}), strict=False)


def test_second_identical_request_computes_one_token(local: Hosted) -> None:
    respond(local, "twice")
    answer = respond(local, "twice")
    assert cached(answer) == (answer.usage.input_tokens - 1, 0)


def test_all_three_apis_count_one_request_alike(local: Hosted) -> None:
    turns = [{"role": "user", "content": "alike"}]
    answer = respond(local, turns, instructions="S")
    counted = local.gpt().responses.input_tokens.count(model=MODEL, input="alike", instructions="S")
    chat = local.chat([{"role": "system", "content": "S"}, *turns])
    assert answer.usage.input_tokens == counted.input_tokens == chat.usage.prompt_tokens
    message = local.message(turns, system="S")
    assert message.usage.input_tokens == counted.input_tokens


def test_a_stream_ends_with_the_whole_response(local: Hosted) -> None:
    whole = respond(local, "stream it")
    with local.gpt().responses.stream(model=MODEL, input="stream it", max_output_tokens=4, temperature=0) as stream:
        events: list[Any] = list(stream)
        final: Any = stream.get_final_response() if events[-1].type == "response.completed" else events[-1].response
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if not event.type.endswith(".delta")]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == final.output[0].content[0].text
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_kept_response_is_gone_on_from_and_its_tokens_reused(local: Hosted) -> None:
    first = respond(local, "remember me")
    second = respond(local, "and now?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert second.anaphora["reused_tokens"] >= first.usage.input_tokens
    third = respond(local, "again?", previous_response_id=second.id)
    spelled = [
        {"role": "user", "content": "remember me"},
        *[item.model_dump(exclude_none=True) for item in first.output],
        {"role": "user", "content": "and now?"},
        *[item.model_dump(exclude_none=True) for item in second.output],
        {"role": "user", "content": "again?"},
    ]
    assert respond(local, spelled).output_text == third.output_text


def test_kept_responses_are_shown_deleted_and_apart(local: Hosted) -> None:
    answer = respond(local, "keep this")
    client = local.gpt().responses
    assert client.retrieve(answer.id).output_text == answer.output_text
    for lost in (lambda: local.gpt("blue-key").responses.retrieve(answer.id), lambda: client.retrieve("resp_x")):
        with pytest.raises(openai.NotFoundError):
            lost()
    client.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.retrieve(answer.id)
    with pytest.raises(openai.BadRequestError) as caught:
        respond(local, "go on", previous_response_id=answer.id)
    assert caught.value.param == "previous_response_id"
    unkept = respond(local, "don't keep", store=False)
    with pytest.raises(openai.NotFoundError):
        client.retrieve(unkept.id)


def test_log_probabilities_where_they_are_asked_for(local: Hosted) -> None:
    answer = respond(local, "scores", include=["message.output_text.logprobs"], top_logprobs=2)
    scores = answer.output[0].content[0].logprobs
    assert len(scores) == 4
    assert all(len(score.top_logprobs) >= 2 for score in scores)


# Caching.


def test_breakpoints_are_written_and_read(paid: Hosted) -> None:
    first = respond(paid, "a question that is long enough")
    read, written = cached(first)
    assert (read, written > 16) == (0, True)
    second = respond(paid, "another one", previous_response_id=first.id)
    assert cached(second)[0] == written


def test_explicit_breakpoints_and_long_lifetimes(paid: Hosted) -> None:
    part = {"type": "input_text", "text": "a shared handbook", "prompt_cache_breakpoint": {"mode": "explicit"}}
    options = {"extra_body": {"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}}}

    def ask(question: str) -> Any:
        return respond(paid, [{"role": "user", "content": [part, {"type": "input_text", "text": question}]}], **options)

    first = ask("a?")
    written = first.usage.input_tokens_details.cache_write_tokens_details.ttl_12h_tokens
    assert written == cached(first)[1] > 0
    paid.at(43_200)
    assert cached(ask("b?")) == (written, 0)
    assert first.prompt_cache_options.model_dump(exclude_none=True) == {"mode": "explicit", "ttl": "12h"}


def test_prewarming_writes_generates_nothing_and_can_be_gone_on_from(paid: Hosted) -> None:
    options = {"extra_body": {"prompt_cache_options": {"prewarm": True}}}
    warm = respond(paid, [{"role": "developer", "content": "a handbook to be warm"}], **options)
    assert (warm.status, warm.output, warm.usage.output_tokens) == ("completed", [], 0)
    assert cached(warm)[1] > 0
    real = respond(paid, "a question", previous_response_id=warm.id)
    assert cached(real)[0] == cached(warm)[1]


@pytest.mark.parametrize(
    "change",
    [
        {"reasoning": {"effort": "low"}},
        {"text": {"verbosity": "low"}},
        {"parallel_tool_calls": False},
        {"service_tier": "flex"},
        {"prompt_cache_key": "other"},
        {"tools": [TOOL]},
        {"instructions": "other"},
    ],
)
def test_settings_that_are_part_of_the_prefix(paid: Hosted, change: dict[str, Any]) -> None:
    said = f"settings of responses {change}"
    respond(paid, said)
    assert cached(respond(paid, said, **change))[0] == 0
    assert cached(respond(paid, said, max_output_tokens=2, metadata={"a": "b"}))[0] > 0


# Calls: a model of random weights makes none, so its words are made up here.


def reply(**fields: Any) -> ResponseReply:
    call = read("hi", tools=[TOOL], **fields)
    numbers = iter(range(100))
    return ResponseReply(
        response_id="resp_1",
        created=1,
        call=call,
        new_id=lambda prefix: f"{prefix}{next(numbers)}",
        keep=lambda _: None,
    )


def test_text_and_calls_are_items_in_the_order_generated() -> None:
    one = reply()
    reader = AnswerReader(1, CallReading(("f",)), lambda: "call_1")
    words = ["Let me ", 'see.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n', "</tool_call>"]
    events = [event for text in words for event in reader.read(delta(text))]
    events += reader.read(delta("", finish_reason="stop"))
    sent = [*one.opening(), *(chunk for event in events for chunk in one.piece(event)), *one.closing(account())]
    assert [item["type"] for item in sent[-1]["response"]["output"]] == ["message", "function_call"]
    call = sent[-1]["response"]["output"][1]
    assert (call["call_id"], call["name"], json.loads(call["arguments"])) == ("call_1", "f", {"x": 1})
    assert sent[-1]["type"] == "response.completed"
    done = [event for event in sent if event["type"] == "response.function_call_arguments.done"]
    assert [(event["output_index"], event["arguments"]) for event in done] == [(1, call["arguments"])]
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))


# The store.


def test_the_oldest_responses_make_room() -> None:
    store = ResponseStore(max_bytes=300)
    for name in ("a", "b", "c"):
        store.keep(Tenant("t"), [{"role": "user", "content": "x" * 60}], {"id": name, "output": []})
    with pytest.raises(UnknownResponse):
        store.get(Tenant("t"), "a")
    assert store.get(Tenant("t"), "c").response["id"] == "c"
    assert store.items_to_continue(Tenant("t"), None) == ()
