"""Recorded requests: bodies of three APIs as they were sent, alone or in logs of servers, gateways and agents. Pure.

| what                         | is known by                                   | the request is                       |
|------------------------------|-----------------------------------------------|--------------------------------------|
| a body                       | `messages` or `input`                         | itself                               |
| our request log, batch lines | `body`                                        | in there                             |
| a recording proxy            | `request` with a `body`                       | in there                             |
| LiteLLM's log                | `model_parameters`, or `proxy_server_request` | messages and parameters; or in there |
| an agent's transcript        | `message` with a `role`, `sessionId`          | all messages in front of each answer |

What no model here takes is not refused: pictures, documents and hosted tools get a text that stands for them, so that a
change of one is seen. Prompts are rendered without a model; a token is a word or a sign.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np

from anaphora.api.anthropic import read_count
from anaphora.api.openai import read_chat
from anaphora.api.responses import read_input_tokens
from anaphora.contract.prices import Tokens
from anaphora.contract.usage_records import NoUsage, tokens_of
from anaphora.errors import RequestError
from anaphora.explain.divergence import num_common
from anaphora.explain.reasons import Side, stand_in
from anaphora.explain.words import encode_words
from anaphora.prompt.canonical import Prompt
from anaphora.prompt.render import Encoded, Encoder, Renderer
from anaphora.prompt.strict_json import NotJson, check_depth

Api = Literal["messages", "chat", "responses"]

_ANTHROPIC_ONLY = frozenset(
    {"cache_control", "input_schema", "tool_use", "tool_result", "tool_use_id", "anthropic_version"}
)
_NEAR = 4
"""Texts that a new one is compared with before it is cut into words: conversations take turns."""

_LARGEST = 1e20
"""Nanoseconds since 1970 are less. What is larger is no time and no duration, and may be too large to reckon with."""

_KEPT = ("model", "messages", "input", "instructions", "system", "tools", "tool_choice", "thinking", "cache_control")
"""Fields that are part of a prompt. Others may be such as a server refuses, and say nothing on caching here."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of a log, and what the log says of it."""

    side: Side
    body: Mapping[str, Any]  # as it was sent
    api: Api
    at_s: float | None = None  # unix time of its arrival; None: not told
    began_s: float | None = None  # its answer's first token, or its end where only that is told
    usage: Tokens | None = None
    session: str = ""


class RecordedReader:
    """Reads records of one log, in order. Prompts read by one reader can be compared."""

    def __init__(self, encoder: Encoder | None = None) -> None:
        """`encoder`: a model's own tokenizer, where one is at hand."""
        self._renderer = Renderer(None, encoder or _NearEncoder())
        self._sessions: dict[str, _Transcript] = {}

    def read(self, value: object) -> Iterator[Recorded]:
        """The requests in one JSON value: most hold one, a line of a transcript one or none.

        Raises: RequestError saying what is wrong with it.
        """
        if not isinstance(value, dict):
            raise RequestError("this is no JSON object.")
        try:
            check_depth(value)
        except NotJson as error:
            raise RequestError(f"{error}.") from None
        if isinstance(value.get("message"), dict) and "sessionId" in value:
            yield from self._of_transcript(value)
            return
        yield self._recorded(_body_of(value), value)

    def _recorded(self, body: dict[str, Any], record: Mapping[str, Any]) -> Recorded:
        prompt, api = prompt_of({"model": "", **body})
        names = {"model": body.get("model") or record.get("model"), "tenant": _tenant_of(record)}
        names["adapter"] = body.get("adapter") or record.get("adapter")
        scope = {name: str(value) for name, value in names.items() if value}
        at_s, began_s = _times_of(record)
        return Recorded(
            side=Side(prompt, self._renderer.render(prompt), scope),
            body=body,
            api=api,
            at_s=at_s,
            began_s=began_s,
            usage=_usage_of(record),
            session=str(record.get("session_id") or record.get("sessionId") or ""),
        )

    def _of_transcript(self, record: Mapping[str, Any]) -> Iterator[Recorded]:
        """A line of a transcript: an answer is a request of all that stood in front of it."""
        session = self._sessions.setdefault(str(record["sessionId"]), _Transcript())
        message = record["message"]
        if message.get("role") == "assistant" and session.begins_answer(message):
            body = {"model": message.get("model") or "", "max_tokens": 1, "messages": session.messages()}
            if body["messages"]:
                yield self._recorded(body, {**record, "usage": message.get("usage")})
        session.add(message)


class _Transcript:
    """The messages of one session so far. Lines of one answer share its id."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._answer_id: object = None

    def begins_answer(self, message: Mapping[str, Any]) -> bool:
        return message.get("id") is None or message.get("id") != self._answer_id

    def messages(self) -> list[dict[str, Any]]:
        return list(self._messages)

    def add(self, message: Mapping[str, Any]) -> None:
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            blocks = []
        role = message.get("role")
        is_same = role == "assistant" and not self.begins_answer(message)
        if is_same and self._messages and self._messages[-1]["role"] == "assistant":
            self._messages[-1] = {"role": role, "content": [*self._messages[-1]["content"], *blocks]}
        elif blocks:
            self._messages.append({"role": role, "content": blocks})
        self._answer_id = message.get("id") if role == "assistant" else None


class _NearEncoder:
    """Cuts texts into words. What a text shares with one of the last few is not cut again."""

    def __init__(self) -> None:
        self._last: deque[tuple[str, Encoded]] = deque(maxlen=_NEAR)

    def __call__(self, text: str, *, opens_text: bool) -> Encoded:
        near = max(self._last, key=lambda one: num_common(one[0], text), default=None)
        encoded = encode_words(text) if near is None else _continued(near[1], num_common(near[0], text), text)
        self._last.append((text, encoded))
        return encoded


def _continued(near: Encoded, num_alike: int, text: str) -> Encoded:
    """Tokens of a text of which the first characters are cut already: all but the last two tokens in there are kept."""
    num_kept = max(0, int(np.searchsorted(near.offsets[:, 1], num_alike, side="right")) - 2)
    if not num_kept:
        return encode_words(text)
    start = int(near.offsets[num_kept - 1, 1])
    rest = encode_words(text[start:])
    return Encoded(
        np.concatenate((near.tokens[:num_kept], rest.tokens)),
        np.concatenate((near.offsets[:num_kept], rest.offsets + start)),
    )


def prompt_of(body: Mapping[str, Any]) -> tuple[Prompt, Api]:
    """The prompt of a body, by the API whose body it is.

    Raises: RequestError naming the field.
    """
    plain = {name: body[name] for name in _KEPT if body.get(name) is not None}
    if "input" in body:
        return read_input_tokens(_with_stand_ins(plain, "responses"))[1], "responses"
    if "messages" not in body:
        raise RequestError("a body without messages or input.")
    if body.get("system") is not None or not _ANTHROPIC_ONLY.isdisjoint(_words_in(body)):
        return read_count(_with_stand_ins(plain, "messages")).prompt, "messages"
    return read_chat(_with_stand_ins(plain, "chat")).prompt, "chat"


def _words_in(body: Mapping[str, Any]) -> Iterator[str]:
    """The names in a body, and the texts."""
    waiting: list[object] = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield from value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            yield value


def _body_of(record: dict[str, Any]) -> dict[str, Any]:
    """The body in a record."""
    for name in ("body", "request", "proxy_server_request"):
        inner = record.get(name)
        if isinstance(inner, dict):
            return inner["body"] if isinstance(inner.get("body"), dict) else inner
    parameters = record.get("model_parameters") or record.get("optional_params")
    if isinstance(parameters, dict) and "messages" in record:
        named = {name: record[name] for name in ("model", "messages", "system") if record.get(name) is not None}
        return {**parameters, **named}
    return record


def _tenant_of(record: Mapping[str, Any]) -> object:
    metadata = record.get("metadata")
    key = metadata.get("user_api_key_hash") if isinstance(metadata, dict) else None
    return record.get("tenant") or key


def _times_of(record: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """When a request arrived and when its answer began, where a record says so."""
    at_s = _first_time(record, ("startTime", "started_at", "timestamp", "time_s", "created", "time"))
    began_s = _first_time(record, ("completionStartTime", "completion_start_time", "endTime", "end_time"))
    own = record.get("anaphora")
    total_ms = _number(own.get("total_ms")) if isinstance(own, dict) else None
    if isinstance(own, dict) and total_ms is not None and at_s is not None:
        at_s -= total_ms / 1000  # our log has the time of the line: the end
        began_s = at_s + (_number(own.get("time_to_first_token_ms")) or total_ms) / 1000
    return at_s, began_s


def _first_time(record: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        value = record.get(name)
        number = _number(value)
        if number is not None:
            while number > 1e11:  # milliseconds, microseconds, nanoseconds
                number /= 1000
            return number
        if isinstance(value, str):
            try:
                return datetime.fromisoformat(value).timestamp()
            except (ValueError, OverflowError):  # a year that no clock counts
                continue
    return None


def _number(value: object) -> float | None:
    """A number that can be reckoned with: JSON has larger ones, and logs have words in its place."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _LARGEST:
        return None
    return float(value)


def _usage_of(record: Mapping[str, Any]) -> Tokens | None:
    response = record.get("response")
    for holder in (record, response if isinstance(response, dict) else {}):
        usage = holder.get("usage")
        if isinstance(usage, dict):
            try:
                return tokens_of(usage)
            except NoUsage:
                return None
    return None


def _with_stand_ins(body: dict[str, Any], api: Api) -> dict[str, Any]:
    """A body in which text stands for whatever else its messages and tools hold."""
    name = "input" if api == "responses" else "messages"
    turns = body.get(name)
    if isinstance(turns, list):
        body = {**body, name: [_turn(turn, api) for turn in turns if not _is_unreadable(turn)]}
    if api == "messages" and body.get("system") is not None:
        body = {**body, "system": _system(body["system"])}
    tools = body.get("tools")
    if isinstance(tools, list):
        body = {**body, "tools": [_tool(tool, api) for tool in tools]}
    return body


def _system(system: object) -> object:
    """System text with the line that our server drops, since others don't. Its first letter tells it apart there."""
    if isinstance(system, str):
        return "X" + system[1:] if system.startswith("x-anthropic-billing-header:") else system
    if isinstance(system, list) and system and isinstance(system[0], dict) and isinstance(system[0].get("text"), str):
        return [{**system[0], "text": _system(system[0]["text"])}, *system[1:]]
    return system


def _is_unreadable(turn: object) -> bool:
    """Items of which there is nothing to read but an id: encrypted reasoning, references."""
    kinds = ("item_reference", "compaction")
    return isinstance(turn, dict) and turn.get("type") in kinds


def _turn(turn: object, api: Api) -> object:
    if not isinstance(turn, dict):
        return turn
    for name in ("content", "output"):
        content = turn.get(name)
        if isinstance(content, list):
            turn = {**turn, name: [_part(part, api) for part in content]}
    known = ("message", "function_call", "function_call_output", "reasoning", None)
    if api == "responses" and turn.get("type") not in known:
        return {"type": "message", "role": "assistant", "content": json.dumps(turn, ensure_ascii=False)}
    return turn


_READABLE = {
    "messages": ("text", "tool_use", "tool_result", "thinking", "redacted_thinking", "search_result"),
    "chat": ("text", "refusal"),
    "responses": ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"),
}


def _part(part: object, api: Api) -> object:
    if not isinstance(part, dict):
        return part
    kind = str(part.get("type"))
    if kind == "tool_result" and isinstance(part.get("content"), list):
        return {**part, "content": [_part(one, api) for one in part["content"]]}
    if kind in _READABLE[api] or (kind == "document" and _is_text(part)):
        return part
    said = stand_in("image" if "image" in kind else "document", kind, json.dumps(_unmarked(part), sort_keys=True))
    marks = {name: part[name] for name in ("cache_control", "prompt_cache_breakpoint") if part.get(name) is not None}
    return {"type": "input_text" if api == "responses" else "text", "text": said, **marks}


def _is_text(part: Mapping[str, Any]) -> bool:
    source = part.get("source")
    return isinstance(source, dict) and source.get("type") in ("text", "content")


def _unmarked(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in ("cache_control", "prompt_cache_breakpoint")}


def _tool(tool: object, api: Api) -> object:
    """A tool that only a host could run, as a tool of that name whose description is all that was said of it."""
    if not isinstance(tool, dict) or api == "responses":
        return tool
    kind = tool.get("type")
    if api == "messages" and kind not in (None, "custom"):
        marks = {"cache_control": tool["cache_control"]} if tool.get("cache_control") is not None else {}
        said = json.dumps(_unmarked(tool), ensure_ascii=False)
        name = str(tool.get("name") or kind)
        return {"name": name, "description": said, "input_schema": {"type": "object"}, **marks}
    if api == "chat" and kind != "function":
        said = json.dumps(tool, ensure_ascii=False)
        return {"type": "function", "function": {"name": str(kind), "description": said}}
    return tool
