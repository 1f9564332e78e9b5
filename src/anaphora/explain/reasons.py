"""Name why the second of two prompts missed where it did: one reason, the first that holds.

scope        model, tenant, ... differ: nothing can be shared
tools        added | removed | reordered | edited
messages     history truncated | reasoning dropped | a message inserted | edited
answer       what the model wrote came back otherwise: reasoning dropped | key order | spacing | other words or tokens
text         picture | white space | key order | time | date | uuid | nonce | number | grew | cut | other words
template     no part differs, yet the text does: a role, the way tools are called
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from anaphora.core.index import common_length
from anaphora.explain.divergence import ANSWER, Divergence, Pair, num_common, text_of
from anaphora.explain.volatile import VolatileKind, volatile_at
from anaphora.prompt.canonical import Message, Part, Prompt, Thinking, Tool, ToolResult, ToolUse
from anaphora.prompt.render import Rendered

Reason = Literal[
    "none",
    "scope_changed",
    "tool_added",
    "tool_removed",
    "tools_reordered",
    "tool_edited",
    "history_truncated",
    "reasoning_dropped",
    "message_inserted",
    "message_removed",
    "history_edited",
    "answer_changed",
    "retokenised",
    "part_added",
    "part_removed",
    "image_changed",
    "document_changed",
    "whitespace",
    "unicode_form",
    "key_order",
    "json_spacing",
    "time",
    "date",
    "uuid",
    "nonce",
    "number",
    "text_grew",
    "text_cut",
    "text_changed",
    "template",
]

SAYS: Mapping[Reason, str] = MappingProxyType(
    {
        "none": "Nothing differs: one prompt goes on where the other ends.",
        "scope_changed": "The requests go to different caches, whatever they say.",
        "tool_added": "A tool was added.",
        "tool_removed": "A tool was removed.",
        "tools_reordered": "The same tools stand in another order.",
        "tool_edited": "A tool's description or schema was edited.",
        "history_truncated": "Earlier messages were dropped from the history.",
        "reasoning_dropped": "Reasoning that an earlier answer carried was left out.",
        "message_inserted": "A message was put between those of the history.",
        "message_removed": "A message was taken out of the history.",
        "history_edited": "A message of the history was edited.",
        "answer_changed": "What the model wrote did not come back as it was.",
        "retokenised": "The same text was cut into other tokens than those that the model wrote.",
        "part_added": "A part was added.",
        "part_removed": "A part was left out.",
        "image_changed": "Another picture stands there.",
        "document_changed": "Another document stands there.",
        "whitespace": "Only white space differs.",
        "unicode_form": "The same characters are encoded in another Unicode form.",
        "key_order": "The same JSON was written with its keys in another order.",
        "json_spacing": "The same JSON was written with other spacing or escapes.",
        "time": "A time differs.",
        "date": "A date differs.",
        "uuid": "A UUID differs.",
        "nonce": "A random id differs.",
        "number": "A number differs, and nothing else.",
        "text_grew": "Text was added to the end of a part.",
        "text_cut": "The end of a part was cut off.",
        "text_changed": "The text differs.",
        "template": "No part differs, but what the chat template writes does: a role, or how tools may be called.",
    }
)

_MOVE = "Move it behind everything that stays the same, into the last user message."
_KEEP = "Keep earlier messages as they were sent, and append."
ADVICE: Mapping[Reason, str] = MappingProxyType(
    {
        "scope_changed": "Keep to one model and one key for requests that should share.",
        "tool_added": "Send all tools from the first call on, and choose among them with tool_choice.",
        "tool_removed": "Keep sending all tools, and choose among them with tool_choice.",
        "tools_reordered": "Sort tools by name before sending them.",
        "tool_edited": "Write a tool's description and schema once, and put what changes into a message.",
        "history_truncated": "Drop history seldom and much at once, behind a part that stays.",
        "reasoning_dropped": "Send reasoning back as it came, or leave it out from the first turn on.",
        "message_inserted": _KEEP,
        "message_removed": _KEEP,
        "history_edited": _KEEP,
        "answer_changed": "Send answers back as they came, byte for byte.",
        "whitespace": "Build the text in one place, so that it comes out the same byte for byte.",
        "unicode_form": "Normalise text once, before it is first sent.",
        "key_order": "Write JSON with sorted keys.",
        "json_spacing": "Write JSON with one set of separators and escapes.",
        "time": _MOVE,
        "date": _MOVE,
        "uuid": _MOVE,
        "nonce": _MOVE,
        "number": _MOVE,
    }
)


_WITHIN_A_PART: frozenset[Reason] = frozenset(
    {"whitespace", "unicode_form", "key_order", "json_spacing", "time", "date", "uuid", "nonce", "number"}
)
"""What differs is a small piece of a part; the rest of it was sent before."""

PLAIN: frozenset[Reason] = frozenset({"text_changed", "text_grew", "text_cut", "part_added", "part_removed"})
"""Other words, as every new question has: a loss only where something behind them was sent before."""

_LEAST_TAIL = 16
"""Tokens at the end of a part that both sides have, where other words in front of them count as one change."""

OPENING = "tool_choice"
"""The path of the beginning of an answer that was put in front of the model."""

_MARGIN = 8
"""Characters kept on either side of a difference: more than any sign is made of."""

_STAND_IN = re.compile(r"\[(image|document) [^\]\n]*sha256:[0-9a-f]{16}\]")
_THOUGHTS = re.compile(r"\A\s*<(think|thinking|reasoning)>.*?</\1>\s*", re.DOTALL)


def stand_in(kind: Literal["image", "document"], media: str, data: bytes | str) -> str:
    """Text in the place of what is no text: what it is, its size and its digest."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return f"[{kind} {media} {len(raw):,} bytes sha256:{hashlib.sha256(raw).hexdigest()[:16]}]"


@dataclass(frozen=True, slots=True)
class Side:
    """One of two requests. `scope`: settings that keep caches apart, by name: model, tenant, adapter."""

    prompt: Prompt
    rendered: Rendered
    scope: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the second request could not reuse more of the first."""

    reason: Reason
    where: str  # "system", "tools[2]", "messages[3].content[0]", the name of a setting; "" where nothing differs
    num_reused: int  # tokens that both open with
    num_tokens: int  # of the second
    num_lost: int = 0  # tokens behind the difference that both have: whole parts, and the rest of the part it is in
    divergence: Divergence | None = None

    @property
    def says(self) -> str:
        return SAYS[self.reason]

    @property
    def advice(self) -> str:
        """What to change, or nothing where the change is likely to be meant."""
        return ADVICE.get(self.reason, "")


def explain(first: Side, second: Side) -> Explanation:
    """Why the second request reuses as much of the first as it does, and no more.

    Cost: one pass over tokens and parts, and one over the text of the part that differs.
    """
    old, new = first.rendered.tokens, second.rendered.tokens
    num_alike = common_length(old, new)
    names = sorted({*first.scope, *second.scope})
    changed = next((name for name in names if first.scope.get(name) != second.scope.get(name)), None)
    if changed is not None:
        return Explanation("scope_changed", changed, 0, len(new), num_alike)
    if num_alike == min(len(old), len(new)):
        return Explanation("none", "", num_alike, len(new))
    return explain_from(first, second, num_alike)


def explain_from(first: Side, second: Side, num_alike: int) -> Explanation:
    """The same for requests of one scope that are known to part behind `num_alike` tokens.

    The first's tokens are not looked at.
    """
    pair = Pair(first.rendered, second.rendered)
    divergence = pair.diverge(num_alike)
    found = Explanation(
        "template",
        divergence.path or "",
        num_alike,
        len(second.rendered.tokens),
        pair.repeated_tokens(num_alike),
        divergence,
    )
    if divergence.path is None:
        return found
    reason = _reason(first, second, divergence)
    num_tail = 0
    if text_of(first.rendered, divergence.path) is None and text_of(first.rendered, ANSWER) is not None:
        num_tail = pair.rest_of_part(divergence)
    else:
        num_tail = pair.tail_tokens(divergence)
        if reason not in _WITHIN_A_PART and num_tail < _LEAST_TAIL:
            num_tail = 0  # other words may end alike by chance
    return replace(found, reason=reason, num_lost=found.num_lost + num_tail)


def text_reason(old: str, new: str) -> Reason:
    """How one text became the other."""
    kinds = [match[1] for text in (old, new) if (match := _STAND_IN.fullmatch(text)) is not None]
    if kinds:
        return "document_changed" if kinds[-1] == "document" else "image_changed"
    if old.lstrip()[:1] in ("{", "[") and (same := _json_reason(old, new)) is not None:
        return same
    at = num_common(old, new)
    one, other = _middles(old, new, at)
    if _may_be_space(old, new, at) and "".join(one.split()) == "".join(other.split()):
        return _json_reason(old, new) or "whitespace"
    is_ascii = one.isascii() and other.isascii()
    if not is_ascii and unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other):
        return "unicode_form"
    if (same := _json_reason(old, new)) is not None:
        return same
    is_end = at == min(len(old), len(new))
    if (kind := _volatile_reason(old, new, at)) is not None:
        return kind
    if is_end:
        return "text_grew" if len(new) > len(old) else "text_cut"
    return "text_changed"


def _may_be_space(old: str, new: str, at: int) -> bool:
    """Whether two texts that part at a place could differ in white space alone: a look at the next signs."""
    one, other = (text[at : at + 64].lstrip()[:1] for text in (old, new))
    return one == other or not one or not other


def _middles(old: str, new: str, at: int) -> tuple[str, str]:
    """What is left of two texts without their common opening and ending, but for signs that may belong together."""
    start = max(0, at - _MARGIN)
    num_end = num_common(old[: start - 1 if start else None : -1], new[: start - 1 if start else None : -1])
    num_end = max(0, num_end - _MARGIN)
    return old[start : len(old) - num_end], new[start : len(new) - num_end]


def _reason(first: Side, second: Side, divergence: Divergence) -> Reason:
    path = divergence.path or ""
    if path.startswith("tools"):
        return _tools_reason(first.prompt.tools, second.prompt.tools, path)
    message_reason = _messages_reason(first.prompt.messages, second.prompt.messages, path)
    if message_reason is not None:
        return message_reason
    old, new = text_of(first.rendered, path), text_of(second.rendered, path)
    if old is None and new is not None and (wrote := text_of(first.rendered, ANSWER)) is not None:
        return _answer_reason((text_of(first.rendered, OPENING) or "") + wrote, new)
    if old is None or new is None:
        return "part_added" if old is None else "part_removed"
    if old == new:
        return "template"
    before, after = _part_at(first.prompt, path), _part_at(second.prompt, path)
    if isinstance(before, ToolUse) and isinstance(after, ToolUse) and before.name == after.name:
        old, new = before.arguments, after.arguments
    reason = text_reason(old, new)
    is_edited = reason in PLAIN and _is_edited(first.prompt.messages, second.prompt.messages, path, (old, new))
    return "history_edited" if is_edited else reason


def _part_at(prompt: Prompt, path: str) -> Tool | Part | None:
    return next((part for part in prompt.parts if part.path == path), None)


def _is_edited(old: Sequence[Message], new: Sequence[Message], path: str, texts: tuple[str, str]) -> bool:
    """Whether a message that was sent before, and is followed by others now, says nearly what it said."""
    index = next((index for index, one in enumerate(new) if _is_in(path, one.path)), len(new))
    if index >= len(new) - 1 or index >= len(old) or new[index].role == "system":
        return False
    if index + 1 < len(old):
        return _said(old[index + 1]) == _said(new[index + 1])
    one, other = texts
    return 2 * (num_common(one, other) + num_common(one[::-1], other[::-1])) >= max(len(one), len(other))


def _answer_reason(wrote: str, came_back: str) -> Reason:
    """How a message differs from what the model wrote in its place."""
    wrote = wrote.lstrip() if came_back[:1].strip() else wrote  # a template may write the space in front
    if wrote == came_back:
        return "retokenised"
    if _THOUGHTS.sub("", wrote).strip() == came_back.strip() != wrote.strip():
        return "reasoning_dropped"
    reason = text_reason(wrote, came_back)
    return "answer_changed" if reason in PLAIN else reason


def structure_reason(old: Prompt, new: Prompt, path: str) -> Reason:
    """What can be told of a change at a path where texts are digests: that two are equal, or not."""
    if path.startswith("tools"):
        return _names_reason(old.tools, new.tools) or "tool_edited"
    if (reason := _messages_reason(old.messages, new.messages, path)) is not None:
        return reason
    before, after = _part_at(old, path), _part_at(new, path)
    if before is None or after is None:
        return "part_added" if before is None else "part_removed"
    if replace(before, mark=None) == replace(after, mark=None):
        return "template"
    return "history_edited" if _is_edited(old.messages, new.messages, path, ("old", "new")) else "text_changed"


def _tools_reason(old: Sequence[Tool], new: Sequence[Tool], path: str) -> Reason:
    if (reason := _names_reason(old, new)) is not None:
        return reason
    before = next((tool for tool in old if tool.path == path), None)
    after = next((tool for tool in new if tool.path == path), None)
    if before is None or after is None:
        return "tool_edited"
    if before.description != after.description:
        reason = text_reason(before.description, after.description)
        return "tool_edited" if reason in ("text_changed", "text_grew", "text_cut", "number") else reason
    return _json_reason(before.schema, after.schema) or "tool_edited"


def _names_reason(old: Sequence[Tool], new: Sequence[Tool]) -> Reason | None:
    """How the list of tools changed, or None where the same stand in the same order."""
    old_names, new_names = [tool.name for tool in old], [tool.name for tool in new]
    if old_names == new_names:
        return None
    if sorted(old_names) == sorted(new_names):
        return "tools_reordered"
    return "tool_added" if set(new_names) - set(old_names) else "tool_removed"


def _messages_reason(old: Sequence[Message], new: Sequence[Message], path: str) -> Reason | None:
    """How the list of messages changed, or None where one message's text did."""
    index = next((index for index, one in enumerate(new) if _is_in(path, one.path)), len(new))
    if index == len(new) and not any(_is_in(path, one.path) for one in old):
        return None
    if index < min(len(old), len(new)) and _without_thinking(old[index]) == _without_thinking(new[index]):
        return "reasoning_dropped" if _thinks(old[index]) and not _thinks(new[index]) else None
    said_before, said_now = [_said(one) for one in old[index:]], [_said(one) for one in new[index:]]
    num_skipped = _skipped(said_now, said_before)
    if num_skipped is not None:
        starts_history = all(one.role == "system" for one in old[:index])
        return "history_truncated" if starts_history or num_skipped > 1 else "message_removed"
    return "message_inserted" if _skipped(said_before, said_now) is not None else None


def _skipped(wanted: Sequence[object], among: Sequence[object]) -> int | None:
    """How many of `among` stand in front of the next two of `wanted`. None: no such place, or nothing in front."""
    next_two = list(wanted[:2])
    places = range(1, len(among) - len(next_two) + 1) if next_two else ()
    return next((place for place in places if list(among[place : place + 2])[: len(next_two)] == next_two), None)


def _is_in(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


def _said(message: Message) -> tuple[Any, ...]:
    """A message without the places of its parts, which change where messages are dropped."""
    return (message.role, *(_words(part) for part in message.parts))


def _words(part: Part) -> tuple[Any, ...]:
    if isinstance(part, ToolUse):
        return (part.call_id, part.name, part.arguments)
    if isinstance(part, ToolResult):
        return (part.call_id, part.text, part.name, part.is_error)
    return (type(part), part.text)


def _without_thinking(message: Message) -> tuple[Any, ...]:
    return tuple(_words(part) for part in message.parts if not isinstance(part, Thinking))


def _thinks(message: Message) -> bool:
    return any(isinstance(part, Thinking) for part in message.parts)


def _json_reason(old: str, new: str) -> Reason | None:
    """How the same JSON was written differently, or None where it is not JSON or not the same.

    Words around it, such as the marks of a tool call, have to be the same.
    """
    one, other = _braced(old), _braced(new)
    if one is None or other is None or (one[0], one[2]) != (other[0], other[2]):
        return None
    try:
        before, after = json.loads(one[1]), json.loads(other[1])
    except (ValueError, RecursionError):
        return None
    if before != after or old == new:
        return None
    return "json_spacing" if json.dumps(before) == json.dumps(after) else "key_order"


def _braced(text: str) -> tuple[str, str, str] | None:
    """A text as what stands in front of its outermost braces or brackets, these, and what is behind."""
    start = min((place for sign in "{[" if (place := text.find(sign)) >= 0), default=-1)
    stop = max(text.rfind("}"), text.rfind("]")) + 1
    return (text[:start], text[start:stop], text[stop:]) if 0 <= start < stop else None


def _volatile_reason(old: str, new: str, at: int) -> VolatileKind | None:
    """The kind of value that both texts have at the first difference, where its look says that it changes."""
    before, after = volatile_at(old, at), volatile_at(new, at)
    if before is None or after is None or (before.kind, before.start) != (after.kind, after.start):
        return None
    if old[before.start : before.stop] == new[after.start : after.stop]:
        return None
    if before.kind == "number" and old[before.stop :] != new[after.stop :]:
        return None
    return before.kind
