"""Goal: the grammar of an answer is what the request asks for. Method: sentences are offered to the compiled grammar,
piece by piece as tokens of a tiny byte-level vocabulary, and it says whether they are taken and whether they may end.
"""

import json
from typing import Any

import pytest

from anaphora.engine.detokenise import TokenTexts
from anaphora.engine.grammar import Grammars
from anaphora.engine.request import Sampling
from anaphora.prompt.answer_grammar import answer_grammar
from anaphora.prompt.canonical import AnswerSchema, Message, Prompt, Text, Tool, ToolChoice
from anaphora.prompt.template import CallStyle
from anaphora.prompt.tool_calls import parse_answer, write_call, write_opening
from anaphora.testing.random_models import byte_tokenizer

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOKENIZER = byte_tokenizer(384)
END = 383
GRAMMARS = Grammars(
    TokenTexts(TOKENIZER),
    lambda text: TOKENIZER(text, add_special_tokens=False).input_ids,
    vocab_size=384,
    end_ids=frozenset({END}),
)
ROME = '{"city": "Rome"}'


def tool(name: str, schema: Any = CITY, *, is_strict: bool = False) -> Tool:
    return Tool(name, "", json.dumps(schema), "tools[0]", is_strict=is_strict)


def prompt(*tools: Tool, choice: ToolChoice | None = None, answer: Any = None) -> Prompt:
    schema = None if answer is None else AnswerSchema(json.dumps(answer), "format")
    messages = (Message("user", (Text("hi", "messages[0]"),), "messages[0]"),)
    return Prompt(messages, tools=tools, tool_choice=choice or ToolChoice(), answer=schema)


def takes(grammar: str | None, text: str) -> str:
    """What a grammar says to a text: `no`, `more` (it can't end here), `may end`, or `ended`."""
    assert grammar is not None
    matcher = GRAMMARS.matcher(Sampling(grammar=grammar))
    assert matcher is not None
    for token_id in TOKENIZER(text, add_special_tokens=False).input_ids:
        if matcher.is_finished or token_id not in matcher.allowed:
            return "no"
        matcher.took(token_id)
    return "ended" if matcher.is_finished else "may end" if END in matcher.allowed else "more"


def test_without_tools_and_schema_anything_goes() -> None:
    assert answer_grammar(prompt(), "hermes") is None
    assert answer_grammar(prompt(tool("f"), choice=ToolChoice("none")), "hermes") is None


@pytest.mark.parametrize("style", ["hermes", "mistral", "llama"])
@pytest.mark.parametrize("choice", [ToolChoice("any"), ToolChoice("tool", "f")])
def test_a_demanded_call_is_taken_as_the_style_writes_it(style: CallStyle, choice: ToolChoice) -> None:
    opening = write_opening("f" if choice.name else None, style)
    grammar = answer_grammar(prompt(tool("f"), tool("g"), choice=choice), style, opening=opening)
    call = write_call("f", ROME, style)
    assert call.startswith(opening)
    rest = call.removeprefix(opening)
    assert takes(grammar, rest) in ("may end", "ended")
    assert takes(grammar, rest[:-1]) == "more"
    assert takes(grammar, rest + "and") == "no"
    assert takes(grammar, " 7") == "no"
    other = write_call("g", ROME, style).removeprefix(write_opening(None, style))
    assert takes(grammar, other) == ("no" if choice.name else takes(grammar, rest))


@pytest.mark.parametrize(("is_parallel", "said"), [(True, "may end"), (False, "no")])
def test_more_than_one_call_unless_refused(is_parallel: bool, said: str) -> None:
    choice = ToolChoice("any", parallel=is_parallel)
    grammar = answer_grammar(prompt(tool("f"), choice=choice), "hermes")
    one = write_call("f", ROME)
    assert takes(grammar, one) == ("may end" if is_parallel else "ended")
    assert takes(grammar, f"{one}\n{one}") == said


def test_only_allowed_tools_are_called() -> None:
    choice = ToolChoice("any", allowed=("g",))
    grammar = answer_grammar(prompt(tool("f"), tool("g"), choice=choice), "hermes")
    assert takes(grammar, write_call("g", ROME)) == "may end"
    assert takes(grammar, write_call("f", ROME)) == "no"


def test_text_may_turn_into_a_call_and_then_nothing_follows() -> None:
    grammar = answer_grammar(prompt(tool("f"), choice=ToolChoice(parallel=False)), "hermes")
    assert takes(grammar, "") == takes(grammar, 'No <call>, {"no": "call"}.') == "may end"
    assert takes(grammar, "Let me see. " + write_call("f", ROME)) == "ended"
    assert takes(grammar, "Let me see. <tool_call> no") == "no"
    assert takes(grammar, write_call("other", ROME)) == "no"
    assert takes(grammar, write_call("f", '{"town": 1}')) == "no"


@pytest.mark.parametrize(("style", "has_trigger"), [("llama", True), ("hermes", False)])
def test_where_nothing_tells_that_a_call_begins_anything_goes(style: CallStyle, has_trigger: bool) -> None:
    assert answer_grammar(prompt(tool("f")), style, has_trigger=has_trigger) is None


def test_an_answer_with_a_schema_is_json_or_a_call() -> None:
    grammar = answer_grammar(prompt(tool("f"), answer=CITY), "hermes")
    assert takes(grammar, ROME) == "ended"
    assert takes(grammar, write_call("f", ROME)) == "may end"
    assert takes(grammar, "Rome") == "no"
    alone = answer_grammar(prompt(tool("f"), choice=ToolChoice("none"), answer=CITY), "hermes")
    assert takes(alone, ROME) == "ended"
    assert takes(alone, write_call("f", ROME)) == "no"


def test_json_comes_on_one_line_whatever_the_schema_says_of_that() -> None:
    flexible = {**CITY, "x-guidance": {"whitespace_flexible": True, "lenient": True}}
    grammar = answer_grammar(prompt(answer=flexible), "hermes")
    assert takes(grammar, ROME) == "ended"
    assert takes(grammar, '{ "city": "Rome"}') == "no"
    assert takes(grammar, '{"city": "\\ud800"}') == "no"  # half a character
    assert takes(grammar, '{"city": "\\n\\"é"}') == "ended"


def test_arguments_are_an_object_said_or_unsaid() -> None:
    grammar = answer_grammar(prompt(tool("f", {}), choice=ToolChoice("any")), "hermes")
    assert takes(grammar, write_call("f", '{"a": [1, null]}')) == "may end"
    assert takes(grammar, write_call("f", "[1]")) == "no"


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (CITY, ROME, '{"city": "Rome", "more": 1}'),
        ({**CITY, "additionalProperties": True}, '{"city": "Rome", "more": 1}', '{"more": 1}'),
        ({"type": "object", "properties": {"in": {**CITY}}}, '{"in": {"city": "a"}}', '{"in": {"city": "a", "b": 1}}'),
        ({"properties": {"l": {"items": CITY}}}, '{"l": [{"city": "a"}]}', '{"l": [{"city": "a", "b": 1}]}'),
        (
            {"properties": {"r": {"$ref": "#/$defs/c"}}, "$defs": {"c": CITY}},
            '{"r": {"city": "a"}}',
            '{"r": {"city": "a", "b": 1}}',
        ),
        ({"properties": {"properties": {"type": "object"}}}, '{"properties": {"x": 1}}', '{"x": 1}'),
        ({"allOf": [CITY, {"properties": {"n": {"type": "null"}}}]}, '{"city": "a", "n": null}', '{"n": 1}'),
        ({"anyOf": [CITY, {"properties": {"n": {}}}]}, '{"n": 1}', '{"n": 1, "m": 2}'),
    ],
)
def test_arguments_have_no_properties_but_those_named_unless_the_schema_says_so(
    schema: Any, taken: str, refused: str
) -> None:
    grammar = answer_grammar(prompt(tool("f", schema), choice=ToolChoice("any")), "hermes")
    assert takes(grammar, write_call("f", taken)) == "may end"
    assert takes(grammar, write_call("f", refused)) == "no"


def test_a_tool_that_is_let_loose_takes_any_object() -> None:
    grammar = answer_grammar(prompt(tool("f", {"type": "string"})), "hermes", loose=("f",))
    assert takes(grammar, write_call("f", '{"a": 1}')) == "may end"


def test_names_and_keys_of_any_characters_are_written_as_they_are() -> None:
    name, key = 'say "ö"', 'k"é\\'
    schema = {"type": "object", "properties": {key: {"const": 1}}, "required": [key], "additionalProperties": False}
    grammar = answer_grammar(prompt(tool(name, schema), choice=ToolChoice("any")), "hermes")
    call = write_call(name, json.dumps({key: 1}, ensure_ascii=False))
    assert takes(grammar, call) == "may end"
    assert parse_answer(call, [name])[0].name == name  # type: ignore[union-attr]
