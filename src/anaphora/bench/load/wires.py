"""Requests and streamed answers as the APIs spell them. Pure.

chat         OpenAI Chat Completions
completions  OpenAI Completions: bare text, no chat template
anthropic    Anthropic Messages, with marks where coding agents set them: tools and system, and the last message
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from anaphora.bench.load.calls import Ask, Message

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of the answer. A piece of a tool call has no text."""

    text: str


@dataclass(frozen=True, slots=True)
class Counted:
    """Numbers of a usage object; None for those it does not tell."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Broke:
    """The server reports an error within the stream."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is whole."""


Sign = Said | Counted | Broke | Ended


class Wire(Protocol):
    """One way to ask."""

    @property
    def path(self) -> str:
        """Where requests go, below the server's address."""

    def headers(self, api_key: str) -> dict[str, str]:
        """Name the key as this API wants it."""

    def body(self, ask: Ask, model: str) -> dict[str, Any]:
        """Spell a request, streamed and greedy."""

    def read(self, data: str) -> Iterator[Sign]:
        """Read the data of one event.

        Raises: ValueError, LookupError, TypeError or AttributeError if it is not of this API.
        """


@dataclass(frozen=True, slots=True)
class Chat:
    full_length: bool  # asks for all of max_tokens, past the end that the model would make
    path: str = "/v1/chat/completions"

    def headers(self, api_key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    def body(self, ask: Ask, model: str) -> dict[str, Any]:
        system = [{"role": "system", "content": ask.system}] if ask.system else []
        tools = {"tools": [{"type": "function", "function": tool} for tool in ask.tools]} if ask.tools else {}
        return {"model": model, "messages": [*system, *ask.messages], **tools, **_openai_fields(self, ask)}

    def read(self, data: str) -> Iterator[Sign]:
        return _openai_signs(data, _delta_of)


@dataclass(frozen=True, slots=True)
class Completions:
    full_length: bool
    path: str = "/v1/completions"

    def headers(self, api_key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    def body(self, ask: Ask, model: str) -> dict[str, Any]:
        prompt = "\n\n".join([ask.system, *(str(message["content"]) for message in ask.messages)])
        return {"model": model, "prompt": prompt, **_openai_fields(self, ask)}

    def read(self, data: str) -> Iterator[Sign]:
        return _openai_signs(data, _text_of)


@dataclass(frozen=True, slots=True)
class Anthropic:
    path: str = "/v1/messages"

    def headers(self, api_key: str) -> dict[str, str]:
        return {"x-api-key": api_key, "anthropic-version": "2023-06-01"}

    def body(self, ask: Ask, model: str) -> dict[str, Any]:
        system = {"system": [_marked({"type": "text", "text": ask.system})]} if ask.system else {}
        tools = [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in ask.tools
        ]
        messages = _anthropic_messages(ask.messages)
        messages[-1]["content"][-1] = _marked(messages[-1]["content"][-1])
        return {
            "model": model,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": True,
            **system,
            **({"tools": tools} if tools else {}),
            "messages": messages,
        }

    def read(self, data: str) -> Iterator[Sign]:
        event = json.loads(data)
        kind = event["type"]
        if kind == "error":
            yield Broke(str(event["error"]["type"]), str(event["error"]["message"]))
        elif kind == "content_block_delta":
            yield Said(event["delta"].get("text") or "")
        elif kind == "message_start":
            yield _anthropic_counts(event["message"]["usage"])
        elif kind == "message_delta":
            yield _anthropic_counts(event.get("usage") or {})
        elif kind == "message_stop":
            yield Ended()


def wire_named(name: str, *, full_length: bool) -> Wire | None:
    """Give the wire of a name in this module's list; None for any other name."""
    wires: dict[str, Wire] = {
        "chat": Chat(full_length),
        "completions": Completions(full_length),
        "anthropic": Anthropic(),
    }
    return wires.get(name)


def _openai_fields(wire: Chat | Completions, ask: Ask) -> dict[str, Any]:
    fields = {
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return {**fields, "ignore_eos": True} if wire.full_length else fields


def _openai_signs(data: str, piece_of: Any) -> Iterator[Sign]:
    if data == "[DONE]":
        yield Ended()
        return
    chunk = json.loads(data)
    if error := chunk.get("error"):
        yield Broke(str(error.get("code") or error.get("type")), str(error.get("message")))
        return
    for choice in chunk.get("choices") or ():
        piece = piece_of(choice)
        if piece is not None:
            yield Said(piece)
    if usage := chunk.get("usage"):
        details = usage.get("prompt_tokens_details") or {}
        yield Counted(usage["prompt_tokens"], details.get("cached_tokens"), usage["completion_tokens"])


def _delta_of(choice: Json) -> str | None:
    """The text of a chunk, "" for a piece of a tool call or of reasoning, None if nothing is said in it."""
    delta = choice.get("delta") or {}
    if delta.get("content"):
        return str(delta["content"])
    is_something = delta.get("tool_calls") or delta.get("reasoning_content") or delta.get("reasoning")
    return "" if is_something else None


def _text_of(choice: Json) -> str | None:
    return choice.get("text") or None


def _anthropic_counts(usage: Json) -> Counted:
    """Anthropic counts tokens read and tokens written beside input tokens; here they are parts of the prompt."""
    if usage.get("input_tokens") is None:
        return Counted(output_tokens=usage.get("output_tokens"))
    read, written = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    return Counted(usage["input_tokens"] + read + written, read, usage.get("output_tokens"))


def _marked(block: Json) -> dict[str, Any]:
    return {**block, "cache_control": {"type": "ephemeral"}}


def _anthropic_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as lists of content parts; results of tools are the user's, neighbours of one role are joined."""
    found: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message["role"] == "assistant" else "user"
        if not found or found[-1]["role"] != role:
            found.append({"role": role, "content": []})
        found[-1]["content"] += _anthropic_content(message)
    return found


def _anthropic_content(message: Message) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        yield {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return
    if message["content"]:
        yield {"type": "text", "text": message["content"]}
    for call in message.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"])
        yield {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments}
