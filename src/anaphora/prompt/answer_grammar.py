"""What an answer may look like, as a grammar: calls of tools, JSON by a schema, or text that may turn into calls.

    tool_choice        no schema for the answer          a schema
    none, no tools     (no grammar)                      JSON
    auto               text, then calls, then the end    calls, or JSON
    any, tool          calls                             calls

Calls are written as the model's own style has them, so that `tool_calls.CallParser` reads them back. What was put in
front of the answer already (the opening of a demanded call) is left out of the grammar.

The text is Lark in the dialect of the `llguidance` package: rules, strings, and JSON schemas inline. JSON comes on one
line, spaced as Python writes it, without escapes that no text has.
"""

import json
from collections.abc import Collection, Iterator
from typing import Any

from anaphora.prompt.canonical import AnswerSchema, Prompt, Tool
from anaphora.prompt.tool_calls import CallStyle, call_frame, call_head

_SPACING = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',  # an escape by number may stand for half a character
}


def answer_grammar(
    prompt: Prompt, style: CallStyle, *, opening: str = "", loose: Collection[str] = (), has_trigger: bool = True
) -> str | None:
    """The grammar of the answer to a prompt; None: anything goes.

    `opening` is the beginning of the answer that stands in the prompt. Tools named in `loose` take any object.
    `has_trigger`: what opens a call is text to the model, so that text can be watched for it.
    """
    tools = callable_tools(prompt)
    rules = [f"args_{index}: {_arguments(tool, loose)}" for index, tool in enumerate(tools)]
    answer = prompt.answer
    if answer is not None:
        rules.append(f"json: %json {answer_schema(answer)}")
    is_single = not prompt.tool_choice.parallel
    if not tools:
        return None if answer is None else _grammar("json", rules)
    if prompt.tool_choice.mode in ("any", "tool"):
        return _grammar("calls", [*_calls(tools, style, opening, is_single=is_single), *rules])
    if answer is not None:
        return _grammar("calls | json", [*_calls(tools, style, "", is_single=is_single), *rules])
    trigger = call_frame(style).opener.rstrip()
    if not (trigger and has_trigger):
        return None  # nothing tells where a call begins: text may be JSON too
    calls = _calls(tools, style, trigger, is_single=is_single)
    text = ["text: TEXT", "TEXT: /(.|\\n)*/", f"head[lazy]: TEXT {_quoted(trigger)}"]
    return _grammar("text | head calls", [*text, *calls, *rules])


def callable_tools(prompt: Prompt) -> tuple[Tool, ...]:
    """The tools that an answer may call."""
    choice = prompt.tool_choice
    if choice.mode == "none":
        return ()
    if choice.mode == "tool":
        return tuple(tool for tool in prompt.tools if tool.name == choice.name)
    return tuple(tool for tool in prompt.tools if choice.allowed is None or tool.name in choice.allowed)


def _calls(tools: tuple[Tool, ...], style: CallStyle, opening: str, *, is_single: bool) -> Iterator[str]:
    """Rules for one or more calls. The first one goes on from `opening`."""
    frame = call_frame(style)
    heads = [call_head(tool.name, style) for tool in tools]
    first = [(frame.opener + head).removeprefix(opening) for head in heads]
    yield "first: " + " | ".join(f'{_quoted(head)} args_{n} "}}"' for n, head in enumerate(first))
    after = f" {_quoted(frame.closer)}" if frame.closer else ""
    if is_single or frame.between is None:
        yield f"calls: first{after}"
        return
    yield "other: " + " | ".join(f'{_quoted(frame.between + head)} args_{n} "}}"' for n, head in enumerate(heads))
    yield f"calls: first other*{after}"


def arguments_schema(tool: Tool) -> str:
    """The schema of a tool's arguments as a grammar has it. Arguments are an object, said or unsaid."""
    return _spaced({"type": "object", **json.loads(tool.schema)}, is_strict=tool.is_strict)


def answer_schema(schema: AnswerSchema) -> str:
    """The schema of an answer as a grammar has it."""
    return _spaced(json.loads(schema.schema), is_strict=schema.is_strict)


def _arguments(tool: Tool, loose: Collection[str]) -> str:
    if tool.name in loose:
        return "%json " + _spaced({"type": "object"}, is_strict=True)
    return "%json " + arguments_schema(tool)


def _spaced(schema: dict[str, Any], *, is_strict: bool) -> str:
    """With our spacing, whatever the schema says of that itself. Not strict: what can't be enforced is passed over."""
    own = {key: value for key, value in schema.items() if key != "x-guidance"}
    return json.dumps({**_closed(own), "x-guidance": {**_SPACING, "lenient": not is_strict}})


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """With no more properties than are named, where the schema is silent on others: a small model would go on for ever.

    What satisfies this satisfies the schema. One whose parts are put together is left as it is: none may close alone.
    """
    return schema if _joins(schema) else _with_own_alone(schema)


def _joins(schema: Any) -> bool:
    if isinstance(schema, dict):
        joins = {"allOf", "if", "dependentSchemas", "unevaluatedProperties"} & schema.keys()
        return bool(joins) or ("$ref" in schema and "properties" in schema) or any(map(_joins, schema.values()))
    return isinstance(schema, list) and any(map(_joins, schema))


def _with_own_alone(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for name in ("properties", "patternProperties", "$defs", "definitions"):
        if isinstance(inner := schema.get(name), dict):
            closed[name] = {key: _with_own_alone(value) for key, value in inner.items()}
    for name in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(inner := schema.get(name), list) and "properties" not in schema:
            closed[name] = [_with_own_alone(value) for value in inner]
    for name in ("items", "additionalProperties"):
        if name in schema:
            closed[name] = _with_own_alone(schema[name])
    if isinstance(schema.get("properties"), dict) and not {"anyOf", "oneOf", "patternProperties"} & schema.keys():
        closed.setdefault("additionalProperties", False)
    return closed


def _grammar(start: str, rules: list[str]) -> str:
    return "\n".join(["%llguidance {}", f"start: {start}", *rules])


def _quoted(text: str) -> str:
    return json.dumps(text)
