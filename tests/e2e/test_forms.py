"""Goal: the small default model, which seldom calls a tool or writes JSON by itself, does so whenever it has to, and
stops there. Method: the real packages against a real server process.
"""

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from server_world import MODEL, Server

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
QUESTIONS = ["forms: weather in Oslo, please", "forms: hello there", "forms: write a poem about the sea"]


class Invoice(BaseModel):
    """Every field has an end: one of the packages leaves out the bounds of lists and texts."""

    customer: Literal["Ada", "Grace"]
    currency: Literal["EUR", "USD"]
    item: Literal["lens", "camera", "bag"]


def turn(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_demanded_call_is_valid_whatever_was_asked(server: Server, question: str) -> None:
    tool: Any = {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": WEATHER}}
    answer = server.openai().chat.completions.create(
        model=MODEL, messages=turn(question), tools=[tool], tool_choice="required", parallel_tool_calls=False, n=2,
        temperature=0, max_tokens=80,
    )  # fmt: skip
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls or ()
        arguments = json.loads(call.function.arguments)  # type: ignore[union-attr]
        assert set(arguments) == {"city", "unit"}
        assert arguments["unit"] in ("C", "F")


def test_messages_stream_a_valid_call_and_nothing_behind_it(server: Server) -> None:
    tools: Any = [{"name": "get_weather", "description": "Now.", "input_schema": WEATHER}]
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    fields: Any = {"model": MODEL, "messages": turn("forms: any weather"), "tools": tools, "tool_choice": choice}
    with server.anthropic().messages.stream(max_tokens=80, extra_body={"temperature": 0}, **fields) as stream:
        answer = stream.get_final_message()
    [block] = answer.content
    assert (block.type, answer.stop_reason) == ("tool_use", "tool_use")
    assert set(block.input) == {"city", "unit"}  # type: ignore[union-attr, arg-type]


def test_all_three_apis_answer_in_the_clients_own_form(server: Server) -> None:
    text = "forms: an invoice for Ada, one lens, in euros"
    chat = server.openai().chat.completions.parse(
        model=MODEL, messages=turn(text), response_format=Invoice, max_tokens=120
    )
    response = server.openai().responses.parse(model=MODEL, input=text, text_format=Invoice, max_output_tokens=120)
    message = server.anthropic().messages.parse(model=MODEL, messages=turn(text), output_format=Invoice, max_tokens=120)
    for parsed in (chat.choices[0].message.parsed, response.output_parsed, message.parsed_output):
        assert isinstance(parsed, Invoice)


def test_an_answer_with_tools_at_hand_ends_by_itself_or_with_its_calls(server: Server) -> None:
    tool: Any = {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": WEATHER}}
    answer = server.openai().chat.completions.create(
        model=MODEL, messages=turn("forms: call get_weather for Oslo"), tools=[tool], temperature=0, max_tokens=120
    )
    [choice] = answer.choices
    if choice.finish_reason == "tool_calls":
        assert all(json.loads(call.function.arguments)["city"] for call in choice.message.tool_calls or ())  # type: ignore[union-attr]
    else:
        assert choice.message.content
