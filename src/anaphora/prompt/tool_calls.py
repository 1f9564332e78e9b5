"""Read tool calls back out of generated text, whole or piece by piece, and write them as models do.

Styles understood, whatever the model's own (`arguments` may be called `parameters`):

    Hermes, Qwen, SmolLM2   <tool_call>{"name": "f", "arguments": {...}}</tool_call>, or a list of such objects
    Mistral                 [TOOL_CALLS][{"name": "f", "arguments": {...}}]
    Llama 3                 <|python_tag|>{"name": "f", "parameters": {...}}
    bare                    the answer *opens* with such an object or list, and names a tool of the request

The text of `arguments` is handed out byte for byte as generated. Text that turns out not to be a call comes
out as text: nothing the model wrote is lost, except whitespace around calls.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from anaphora.prompt.strict_json import read_json

CallStyle = Literal["hermes", "mistral", "llama"]

_OPENERS = {"<tool_call>": "</tool_call>", "[TOOL_CALLS]": "", "<|python_tag|>": ""}


@dataclass(frozen=True, slots=True)
class CallFrame:
    """What a model of one style writes around the objects of its calls."""

    opener: str
    key: str  # of the arguments
    between: str | None  # two calls; None: there is only ever one
    closer: str


_WRITTEN: dict[CallStyle, CallFrame] = {
    "hermes": CallFrame("<tool_call>\n", "arguments", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
    "mistral": CallFrame("[TOOL_CALLS][", "arguments", ", ", "]"),
    "llama": CallFrame("", "parameters", None, ""),
}
_LONGEST_OPENER = max(len(opener) for opener in _OPENERS)
_KEYS = ('"name"', '"arguments"', '"parameters"', '"type"', '"id"', '"function"')
_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call as the model wrote it. `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedText:
    text: str


Parsed = ParsedCall | ParsedText


class CallParser:
    """Split one answer into text and calls while it is being generated.

    Text that may be the start of a call is held back until it is decided. `finish` decides what is left.
    """

    def __init__(self, tool_names: Sequence[str], *, opening: str = "") -> None:
        self._tool_names = frozenset(tool_names)
        self._held = ""  # text not handed out yet; starts at a possible call, or is whitespace
        self._is_fresh = True  # nothing but whitespace so far: a bare call may still open the answer
        self._num_calls = 0
        self._feed_opening = opening

    def feed(self, text: str) -> tuple[Parsed, ...]:
        """Take the next piece of the answer; get what is decided by now."""
        self._held += self._feed_opening + text
        self._feed_opening = ""
        return tuple(self._drain(final=False))

    def finish(self) -> tuple[Parsed, ...]:
        """Say that the answer is over; get the rest."""
        self._held += self._feed_opening
        self._feed_opening = ""
        parsed = list(self._drain(final=True))
        rest, self._held = self._held, ""
        if rest and (rest.strip(_SPACE) or not self._num_calls):
            parsed.append(ParsedText(rest))
        return tuple(parsed)

    def _drain(self, *, final: bool) -> list[Parsed]:
        parsed: list[Parsed] = []
        while self._held:
            start = self._next_start(final=final)
            if start > 0:
                parsed.extend(self._as_text(start))
                continue
            outcome = self._take_call(final=final)
            if outcome is None:
                break
            parsed.extend(outcome)
        return parsed

    def _next_start(self, *, final: bool) -> int:
        """How many characters are plain text for sure. 0: a call may start here, or nothing is sure yet."""
        held = self._held
        body = len(held) - len(held.lstrip(_SPACE))
        if body == len(held):
            return 0
        if self._is_fresh and held[body] in "{[":
            return 0 if self._may_be_bare(held[body:], final=final) else self._until_opener(body + 1, final)
        return self._until_opener(0, final)

    def _until_opener(self, start: int, final: bool) -> int:
        """Where the text in front of a possible call ends. White space in front of a call is the call's."""
        held = self._held
        found = [at for opener in _OPENERS if (at := held.find(opener)) >= 0]
        if found:
            return len(held[: min(found)].rstrip(_SPACE))
        if final:
            return len(held)
        for at in range(max(start, len(held) - _LONGEST_OPENER + 1), len(held)):
            if any(opener.startswith(held[at:]) for opener in _OPENERS):
                return len(held[:at].rstrip(_SPACE))
        return len(held.rstrip(_SPACE))

    def _may_be_bare(self, text: str, *, final: bool) -> bool:
        if any(text.startswith(opener[: len(text)]) for opener in _OPENERS):
            return True
        calls = _read_calls(text, 0)
        if calls is not None:
            return all(call.name in self._tool_names for call in calls[0])
        return not final and _may_become_call(text)

    def _take_call(self, *, final: bool) -> list[Parsed] | None:
        """Read one call (or list of calls) off the front. None: undecided, wait for more."""
        held = self._held
        body = len(held) - len(held.lstrip(_SPACE))
        opener = next((opener for opener in _OPENERS if held.startswith(opener, body)), None)
        if opener is None and (body == len(held) or held[body] not in "{["):
            return None
        start = body + len(opener or "")
        closer = _OPENERS[opener] if opener else ""
        calls = _read_calls(held, start)
        if calls is not None:
            return self._after_call(calls[0], end=calls[1], closer=closer, final=final)
        if not final and _may_become_call(held[start:]):
            return None
        if opener is not None and not final:
            # What follows is no call and never will be: it is what the model said, so it goes out as text.
            end = held.find(closer, start) if closer else -1
            return self._as_text(end + len(closer) if end >= 0 else len(held))
        return None

    def _after_call(self, calls: list[ParsedCall], *, end: int, closer: str, final: bool) -> list[Parsed] | None:
        rest = self._held[end:].lstrip(_SPACE)
        if closer and rest.startswith(closer):
            end = len(self._held) - len(rest) + len(closer)
        elif closer and closer.startswith(rest):
            if not final:
                return None
            end = len(self._held)  # cut inside the closer: that is part of the call, no text
        self._held = self._held[end:]
        self._is_fresh = False
        self._num_calls += len(calls)
        return list(calls)

    def _as_text(self, length: int) -> list[Parsed]:
        text, self._held = self._held[:length], self._held[length:]
        self._is_fresh = False
        return [ParsedText(text)]


def parse_answer(text: str, tool_names: Sequence[str]) -> tuple[Parsed, ...]:
    """Split a whole answer into text and calls."""
    parser = CallParser(tool_names)
    return parser.feed(text) + parser.finish()


def write_call(name: str, arguments: str, style: CallStyle = "hermes") -> str:
    """One call as a model of this style would have generated it."""
    frame = _WRITTEN[style]
    return f"{frame.opener}{call_head(name, style)}{arguments}}}{frame.closer}"


def write_opening(name: str | None, style: CallStyle = "hermes") -> str:
    """The beginning of a call, for an answer that must call a tool. None: the model picks the tool.

    Ends at a colon, because models join the space after it to the next token.
    """
    opener = _WRITTEN[style].opener
    return f'{opener}{{"name":' if name is None else f"{opener}{call_head(name, style)}".rstrip()


def call_frame(style: CallStyle) -> CallFrame:
    """What stands around calls of this style."""
    return _WRITTEN[style]


def call_head(name: str, style: CallStyle) -> str:
    """A call's object up to its arguments."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{_WRITTEN[style].key}": '


def _read_calls(text: str, start: int) -> tuple[list[ParsedCall], int] | None:
    """The call or list of calls at `start` and where it ends. None: not complete, or none at all."""
    start = _skip_space(text, start)
    try:
        if text.startswith("[", start):
            return _read_list(text, start)
        call, end = _read_object(text, start)
    except (ValueError, IndexError, RecursionError):
        return None
    return ([call], end)


def _read_list(text: str, start: int) -> tuple[list[ParsedCall], int]:
    calls: list[ParsedCall] = []
    position = _skip_space(text, start + 1)
    while True:
        call, position = _read_object(text, position)
        calls.append(call)
        position = _skip_space(text, position)
        if text[position] == "]":
            return calls, position + 1
        if text[position] != ",":
            raise ValueError("a list of calls has a comma between calls")
        position = _skip_space(text, position + 1)


def _read_object(text: str, start: int) -> tuple[ParsedCall, int]:
    """Read `{"name": ..., "arguments": ...}`, keeping the arguments' own bytes."""
    if text[start] != "{":
        raise ValueError("a call is an object")
    name: object = None
    arguments = "{}"
    position = _skip_space(text, start + 1)
    while text[position] != "}":
        key, position = _DECODER.raw_decode(text, position)
        position = _skip_space(text, position)
        if not isinstance(key, str) or text[position] != ":":
            raise ValueError("a key and a colon")
        position = _skip_space(text, position + 1)
        value, end = _DECODER.raw_decode(text, position)
        if key == "name":
            name = value
        elif key in ("arguments", "parameters"):
            # Some models write the arguments as a string of JSON.
            arguments = value if isinstance(value, str) else text[position:end]
        position = _skip_space(text, end)
        if text[position] == ",":
            position = _skip_space(text, position + 1)
    if not isinstance(name, str) or not name:
        raise ValueError("a call has a name")
    if not isinstance(read_json(arguments), dict):
        raise ValueError("arguments are an object")
    return ParsedCall(name=name, arguments=arguments), position + 1


def _may_become_call(text: str) -> bool:
    """Whether more text could make this the beginning of a call or of a list of calls."""
    compact = text.lstrip(_SPACE)
    is_list = compact.startswith("[")
    if is_list:
        compact = compact[1:].lstrip(_SPACE)
    if not compact:
        return True
    if not compact.startswith("{"):
        return False
    inner = compact[1:].lstrip(_SPACE)
    if not any(key.startswith(inner[: len(key)]) for key in _KEYS):
        return False
    try:
        _, end = _DECODER.raw_decode(compact)
    except RecursionError:
        return False
    except ValueError as error:
        # An error near the end may be cured by more text (a literal or an escape cut short); one before can't.
        position = getattr(error, "pos", len(compact))
        return position >= len(compact) - len("\\uffff") or "Unterminated" in str(error)
    return is_list and compact[end:].lstrip(_SPACE)[:1] in ("", ",")


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position
