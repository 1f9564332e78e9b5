"""Fit a canonical prompt to what a template can do: an ordered list of turns, each of known segments.

    prompt --fit--> turns --messages_of--> what the template takes

Rules, each a function of the template's traits and of the messages so far, so that a longer conversation is
fitted as the shorter one was:

- Nothing is moved. A late system message the template refuses becomes a user turn between `<system>` tags.
- A template without a system role gets the system text in front of the first user turn.
- Text parts of one message are joined by a newline, those of an assistant's message by nothing (they are
  pieces of one generated text).
- Tools the template doesn't know go to the front of the system text as a `<tools>` list with instructions,
  calls are written as `<tool_call>` and results as `<tool_response>` inside user turns.
- An answer that called tools is rendered from the text the model generated, where that is still known.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anaphora.prompt.canonical import Message, Prompt, Text, Thinking, Tool, ToolResult, ToolUse
from anaphora.prompt.strict_json import NotJson, read_json
from anaphora.prompt.template import TemplateTraits
from anaphora.prompt.tool_calls import write_call

Recall = Callable[[Message], str | None]
"""The text that the model generated for this message, or None when it is not known (any more)."""

TOOLS_BEFORE = (
    "You may call functions to answer. They are listed as JSON signatures between <tools> and </tools>:\n<tools>\n"
)
TOOLS_AFTER = (
    "\n</tools>\n\nTo call a function, write its name and arguments as one JSON object between <tool_call> and "
    '</tool_call>:\n<tool_call>\n{"name": "function-name", "arguments": {"argument": "value"}}\n</tool_call>'
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a turn's content. `path` names the part it comes from; None: glue of ours."""

    text: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One message for the template."""

    role: str
    segments: tuple[Segment, ...]
    calls: tuple[ToolUse, ...] = ()  # only for templates that know tools
    reasoning: Thinking | None = None
    call_id: str | None = None  # of a tool's result
    name: str | None = None

    @property
    def content(self) -> str:
        return "".join(segment.text for segment in self.segments)


def no_recall(message: Message) -> str | None:
    """Know of no generated text."""
    return None


def fit(prompt: Prompt, traits: TemplateTraits, recall: Recall = no_recall) -> tuple[Turn, ...]:
    """The turns a template of these traits is given for this prompt."""
    turns = list(_turns(prompt, traits, recall))
    if not traits.takes_late_system:
        turns = [_as_user(turn) if turn.role == "system" and index else turn for index, turn in enumerate(turns)]
    if not traits.takes_system and turns and turns[0].role == "system":
        turns = _fold_system(turns)
    if not traits.takes_repeated_roles:
        turns = _merge_repeated(turns)
    return tuple(turns)


def messages_of(turns: Sequence[Turn], traits: TemplateTraits, contents: Sequence[str]) -> list[dict[str, Any]]:
    """Turns in the form templates take, with these contents."""
    messages: list[dict[str, Any]] = []
    for turn, content in zip(turns, contents, strict=True):
        message: dict[str, Any] = {"role": turn.role, "content": content}
        if turn.calls:
            message["tool_calls"] = [_call_entry(call, traits) for call in turn.calls]
        if turn.reasoning is not None:
            message["reasoning_content"] = turn.reasoning.text
        if turn.call_id is not None:
            message["tool_call_id"] = _call_id(turn.call_id, traits)
        if turn.name:
            message["name"] = turn.name
        messages.append(message)
    return messages


def tool_entry(tool: Tool) -> dict[str, Any]:
    """A tool in the form templates take. The same for both wire protocols."""
    function: Mapping[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": json.loads(tool.schema),
    }
    return {"type": "function", "function": function}


def tool_json(tool: Tool) -> str:
    """The one-line JSON of a tool, as the generic rendering shows it."""
    return json.dumps(tool_entry(tool), ensure_ascii=False)


def _turns(prompt: Prompt, traits: TemplateTraits, recall: Recall) -> Iterator[Turn]:
    opening = _tool_segments(prompt.tools) if prompt.tools and not traits.knows_tools else ()
    messages = list(prompt.messages)
    system: tuple[Segment, ...] = _joined(prompt.system)
    if not system and opening and messages and messages[0].role == "system":
        system = _joined(messages.pop(0).parts)
    if opening or system:
        glue = (Segment("\n\n"),) if opening and system else ()
        yield Turn("system", (*opening, *glue, *system))
    results: list[Segment] = []
    for message in messages:
        if results and message.role != "tool":
            yield Turn("user", tuple(results))
            results = []
        if message.role == "assistant":
            yield _answer_turn(message, traits, recall)
        elif message.role == "system":
            yield Turn("system", _joined(message.parts))
        elif message.role == "tool" and not traits.knows_tools:
            for part in message.parts:
                results += _result_segments(part, is_first=not results)
        else:
            yield from _asking_turns(message, traits)
    if results:
        yield Turn("user", tuple(results))


def _tool_segments(tools: Sequence[Tool]) -> tuple[Segment, ...]:
    segments = [Segment(TOOLS_BEFORE)]
    for index, tool in enumerate(tools):
        segments += [Segment("\n")] if index else []
        segments.append(Segment(tool_json(tool), tool.path))
    return (*segments, Segment(TOOLS_AFTER))


def _joined(parts: Sequence[Any]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for part in parts:
        if segments:
            segments.append(Segment("\n"))
        segments.append(Segment(part.text, part.path))
    return tuple(segments)


def _answer_turn(message: Message, traits: TemplateTraits, recall: Recall) -> Turn:
    reasoning = next((part for part in message.parts if isinstance(part, Thinking)), None)
    calls = tuple(part for part in message.parts if isinstance(part, ToolUse))
    if calls and (generated := recall(message)) is not None:
        return Turn("assistant", (Segment(generated, message.path),), reasoning=reasoning)
    segments = [Segment(part.text, part.path) for part in message.parts if isinstance(part, Text)]
    if traits.knows_tools or not calls:
        return Turn("assistant", tuple(segments), calls=calls, reasoning=reasoning)
    for call in calls:
        if segments and not segments[-1].text.endswith("\n"):
            segments.append(Segment("\n"))
        segments.append(Segment(write_call(call.name, call.arguments), call.path))
    return Turn("assistant", tuple(segments), reasoning=reasoning)


def _asking_turns(message: Message, traits: TemplateTraits) -> Iterator[Turn]:
    """A user's message, or a tool's where the template knows them: results apart from text, in order."""
    texts: list[Text] = []
    results: list[Segment] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            if texts:
                yield Turn("user", _joined(texts))
                texts = []
            if traits.knows_tools:
                yield Turn("tool", _plain_result(part), call_id=part.call_id, name=part.name or None)
            else:
                results += _result_segments(part, is_first=not results)
        elif isinstance(part, Text):
            if results:
                yield Turn("user", tuple(results))
                results = []
            texts.append(part)
    if results:
        yield Turn("user", tuple(results))
    if texts:
        yield Turn("user", _joined(texts))


def _plain_result(part: ToolResult) -> tuple[Segment, ...]:
    text = Segment(part.text, part.path)
    return (Segment("Error: "), text) if part.is_error else (text,)


def _result_segments(part: Any, *, is_first: bool) -> list[Segment]:
    before = ("" if is_first else "\n") + "<tool_response>\n"
    return [Segment(before), *_plain_result(part), Segment("\n</tool_response>")]


def _as_user(turn: Turn) -> Turn:
    return replace(turn, role="user", segments=(Segment("<system>\n"), *turn.segments, Segment("\n</system>")))


def _fold_system(turns: list[Turn]) -> list[Turn]:
    system, rest = turns[0], turns[1:]
    if rest and rest[0].role == "user":
        first = replace(rest[0], segments=(*system.segments, Segment("\n\n"), *rest[0].segments))
        return [first, *rest[1:]]
    return [replace(system, role="user"), *rest]


def _merge_repeated(turns: list[Turn]) -> list[Turn]:
    merged: list[Turn] = []
    for turn in turns:
        last = merged[-1] if merged else None
        if last and last.role == turn.role in ("user", "assistant") and not last.calls and not turn.calls:
            merged[-1] = replace(last, segments=(*last.segments, Segment("\n\n"), *turn.segments))
        else:
            merged.append(turn)
    return merged


def _call_entry(call: ToolUse, traits: TemplateTraits) -> dict[str, Any]:
    arguments = _arguments(call.arguments)
    return {
        "id": _call_id(call.call_id, traits),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _arguments(text: str) -> Any:
    """Arguments as templates want them: an object, or the text itself where it isn't one."""
    try:
        value = read_json(text)
    except NotJson:
        return text
    return value if isinstance(value, dict) else text


def _call_id(call_id: str, traits: TemplateTraits) -> str:
    return hashlib.sha256(call_id.encode()).hexdigest()[:9] if traits.wants_short_ids else call_id
