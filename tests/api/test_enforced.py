"""Goal: a call or a JSON answer that was asked for is one, whatever the model would rather say; and where it can't be,
the request is refused by field, or the answer says that it was cut. Method: a tiny random model, which never calls a
tool by itself, behind the application, and the official clients.
"""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from hosted_world import MODEL, Hosted, hosted
from pydantic import BaseModel

from anaphora.engine.engine import Engine

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
NOTE = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
        "additionalProperties": False}  # fmt: skip
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "note", "parameters": NOTE, "strict": True}},
]
RESPONSES_TOOLS: Any = [{"type": "function", **tool["function"]} for tool in CHAT_TOOLS]
MESSAGES_TOOLS: Any = [
    {"name": "weather", "input_schema": CITY},
    {"name": "note", "input_schema": NOTE, "strict": True},
]
HELLO: Any = [{"role": "user", "content": "Hello"}]
BROKEN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}}


class City(BaseModel):
    city: Literal["Rome", "Oslo"]
    celsius: bool


@pytest.fixture(scope="module")
def server(roomy: Engine) -> Iterator[Hosted]:
    with hosted(roomy) as running:
        yield running


def fits(name: str, arguments: Any) -> bool:
    if name == "weather":
        return set(arguments) == {"city", "unit"} and len(arguments["city"]) <= 8 and arguments["unit"] in ("C", "F")
    return set(arguments) == {"n"} and arguments["n"] in range(10)


def chat(server: Hosted, **fields: Any) -> Any:
    return server.chat(HELLO, **{"max_tokens": 200, "seed": 1, **fields})


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "note"}),
        ({"type": "function", "function": {"name": "note"}}, {"note"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "weather"}}],
                },
            },
            {"weather"},
        ),
    ],
)
def test_chat_calls_what_it_has_to(server: Hosted, choice: Any, names: set[str]) -> None:
    answer = chat(server, tools=CHAT_TOOLS, tool_choice=choice, parallel_tool_calls=False, n=5)
    for one in answer.choices:
        [call] = one.message.tool_calls
        assert call.function.name in names
        assert fits(call.function.name, json.loads(call.function.arguments))
        assert (one.finish_reason, one.message.content) == ("tool_calls", None)


def test_a_streamed_call_is_the_same_call(server: Hosted) -> None:
    fields = {"tools": CHAT_TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    whole = chat(server, **fields).choices[0].message.tool_calls[0].function
    request = {"model": MODEL, "messages": HELLO, "max_tokens": 200, "seed": 1, **fields}
    chunks = list(server.gpt().chat.completions.create(stream=True, **request))
    pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(piece.function.arguments for piece in pieces) == whole.arguments
    assert pieces[0].function.name == whole.name
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(("choice", "names"), [("any", {"weather", "note"}), ("tool", {"weather"})])
def test_messages_calls_what_it_has_to(server: Hosted, choice: str, names: set[str]) -> None:
    wanted = {"type": choice, "disable_parallel_tool_use": True} | ({"name": "weather"} if choice == "tool" else {})
    for _ in range(4):
        answer = server.message(HELLO, max_tokens=200, tools=MESSAGES_TOOLS, tool_choice=wanted)
        [block] = answer.content
        assert (block.type, answer.stop_reason) == ("tool_use", "tool_use")
        assert block.name in names
        assert fits(block.name, block.input)


def test_responses_calls_what_it_has_to(server: Hosted) -> None:
    client = server.gpt().responses
    for choice in (
        "required",
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "note"}]},
    ):
        answer = client.create(
            model=MODEL, input="Hello", tools=RESPONSES_TOOLS, tool_choice=choice, parallel_tool_calls=False,  # type: ignore[arg-type]
            max_output_tokens=200,
        )  # fmt: skip
        [call] = answer.output
        assert call.type == "function_call"
        assert fits(call.name, json.loads(call.arguments))
        assert answer.status == "completed"
        assert isinstance(choice, str) or call.name == "note"


def test_a_model_of_the_clients_is_what_chat_and_responses_answer_with(server: Hosted) -> None:
    parsed = server.gpt().chat.completions.parse(model=MODEL, messages=HELLO, response_format=City, max_tokens=200)
    assert isinstance(parsed.choices[0].message.parsed, City)
    assert parsed.choices[0].finish_reason == "stop"
    answer = server.gpt().responses.parse(model=MODEL, input="Hello", text_format=City, max_output_tokens=200)
    assert isinstance(answer.output_parsed, City)


def test_a_model_of_the_clients_is_what_messages_answers_with(server: Hosted) -> None:
    answer = server.claude().messages.parse(model=MODEL, messages=HELLO, max_tokens=200, output_format=City)
    assert isinstance(answer.parsed_output, City)
    assert answer.stop_reason == "end_turn"
    schema = {"type": "json_schema", "schema": NOTE}
    older = server.message(HELLO, max_tokens=99, extra_body={"output_format": schema})
    assert fits("note", json.loads(older.content[0].text))


def test_json_mode_answers_with_an_object_or_says_that_it_was_cut(server: Hosted) -> None:
    answer = chat(server, response_format={"type": "json_object"}, n=8, max_tokens=60)
    reasons = set()
    for choice in answer.choices:
        reasons.add(choice.finish_reason)
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
    assert reasons <= {"stop", "length"}


def test_a_call_that_is_cut_says_so(server: Hosted) -> None:
    few = {"tool_choice": "required", "tools": CHAT_TOOLS, "max_tokens": 3}
    [choice] = chat(server, **few).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    answer = server.message(HELLO, max_tokens=3, tools=MESSAGES_TOOLS, tool_choice={"type": "any"})
    assert answer.stop_reason == "max_tokens"
    assert {block.type for block in answer.content} == {"text"}


def test_a_call_that_is_cut_in_its_closing_tag_is_a_call_and_no_text(server: Hosted) -> None:
    form: Any = [{"type": "function", "function": {"name": "f", "parameters": {"enum": [{}], "type": "object"}}}]
    fields: dict[str, Any] = {"tools": form, "tool_choice": "required", "parallel_tool_calls": False}
    whole = chat(server, **fields)
    contents = []
    for max_tokens in range(1, whole.usage.completion_tokens):
        [choice] = chat(server, max_tokens=max_tokens, **fields).choices
        assert choice.finish_reason == "length"
        if choice.message.tool_calls:
            contents.append(choice.message.content)
    assert len(contents) > 1
    assert set(contents) == {None}


def test_tools_or_json_as_the_model_likes(server: Hosted) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "note", "schema": NOTE, "strict": True}}
    answer = chat(server, tools=CHAT_TOOLS, response_format=form, n=8, temperature=2)
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            assert fits("note", json.loads(choice.message.content))
        elif choice.finish_reason == "tool_calls":
            assert all(fits(one.function.name, json.loads(one.function.arguments)) for one in choice.message.tool_calls)


def chat_tool(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BROKEN, "strict": True}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}}},
         "response_format.json_schema.schema"),
        ({"tools": chat_tool(parameters=BROKEN), "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": chat_tool(parameters=BROKEN, strict=True)}, "tools[0].function.parameters"),
        ({"tools": chat_tool(parameters={"type": "array"}, strict=True)}, "tools[0].function.parameters.type"),
        ({"tools": chat_tool(parameters={"allOf": [{"pattern": f"a{n}"} for n in range(30)]}, strict=True)},
         "tools[0].function.parameters"),
    ],
)  # fmt: skip
def test_a_schema_that_can_not_be_followed_is_refused_by_field(server: Hosted, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(server, **fields)
    assert caught.value.param == param
    assert param in caught.value.message
    assert chat(server, max_tokens=1).choices


WIDE = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2000)}}
LONG = {"type": "object", "properties": {"a": {"const": "x" * (5 * 2**20)}}}


@pytest.mark.parametrize("schema", [{"$ref": "#"}, WIDE, LONG], ids=["empty", "wide", "long"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_form_that_takes_too_much_is_refused_by_field_too(server: Hosted, schema: Any, is_streamed: bool) -> None:
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 9, "messages": HELLO, "stream": is_streamed}
    key = {"authorization": "Bearer red-key"}
    form = {"type": "json_schema", "schema": schema}
    answer = server.http.post("/v1/messages", json={**body, "output_config": {"format": form}}, headers=key)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("output_config.format.schema: ")
    chat_form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = server.http.post("/v1/chat/completions", json={**body, "response_format": chat_form}, headers=key)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format.json_schema.schema")


def test_messages_refuses_by_its_own_paths(server: Hosted) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format\.schema: "):
        server.message(HELLO, output_config={"format": {"type": "json_schema", "schema": BROKEN}})
    with pytest.raises(anthropic.BadRequestError, match=r"tools\.0\.input_schema: "):
        server.message(HELLO, tools=[{"name": "f", "input_schema": BROKEN, "strict": True}])
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": BROKEN}}
    with pytest.raises(openai.BadRequestError, match=r"text\.format\.schema: "):
        server.gpt().responses.create(model=MODEL, input="Hello", text=form)


def test_a_tool_that_promised_nothing_may_have_any_schema(server: Hosted) -> None:
    for schema in (BROKEN, {"type": "array"}, {"not": {}}, {"type": "object", "properties": {"d": {"format": "odd"}}}):
        assert chat(server, tools=chat_tool(parameters=schema), max_tokens=1).choices


def test_a_beginning_of_the_answer_and_a_format_exclude_each_other(server: Hosted) -> None:
    begun: Any = [*HELLO, {"role": "assistant", "content": "{"}]
    with pytest.raises(anthropic.BadRequestError, match="output_config"):
        server.message(begun, output_config={"format": {"type": "json_schema", "schema": NOTE}})
