"""Anthropic Messages answers: neutral events -> wire, whole or as events. Pure.

    message_start  (content_block_start  content_block_delta*  content_block_stop)*  message_delta  message_stop

A `ping` follows `message_start`. Usage in `message_start` is complete for the prompt; in `message_delta` it is
cumulative. Tokens read from the cache and written to it are not part of `input_tokens`.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from anaphora.api.account import Account
from anaphora.api.answers import Answer, AnswerEvent, CallPiece, Finish, TextPiece

Event = dict[str, Any]


class MessageReply:
    """Write one request's answer. Streamed: `opening`, `piece` for each event, `closing`."""

    def __init__(
        self, *, response_id: str, model: str, fills_context: bool, more: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._response_id = response_id
        self._more = more  # fields of the message besides
        self._model = model
        self._fills_context = fills_context  # the context ends before max_tokens does
        self._num_blocks = 0
        self._is_in_text = False
        self._finish: Finish | None = None

    def whole(self, answer: Answer, account: Account) -> dict[str, Any]:
        """The body of an answer that isn't streamed."""
        content = [
            {"type": "text", "text": block.text, "citations": None} if isinstance(block, TextPiece) else _use(block)
            for block in answer.blocks
        ]
        return {
            **self._message(content, account),
            "stop_reason": self._stop_reason(answer.finish),
            "stop_sequence": answer.finish.stop_string,
            "anaphora": account.extension(),
        }

    def opening(self, account: Account) -> list[Event]:
        """The events before any content."""
        message = {**self._message([], account), "stop_reason": None, "stop_sequence": None}
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def piece(self, event: AnswerEvent) -> list[Event]:
        """The events for a piece of the answer."""
        if isinstance(event, TextPiece):
            return self._text_events(event.text)
        if isinstance(event, CallPiece):
            block = {**_use(event), "input": {}}
            delta = {"type": "input_json_delta", "partial_json": event.arguments}
            return [*self._end_text(), *self._start(block), self._delta(delta), *self._stop()]
        if isinstance(event, Finish):
            self._finish = event
            return self._end_text()
        return []

    def closing(self, account: Account) -> list[Event]:
        """The last events, with the final counts."""
        assert self._finish is not None, "a finished answer has a finished sequence"
        usage = message_usage(account)
        counts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
        delta = {
            "type": "message_delta",
            "delta": {"stop_reason": self._stop_reason(self._finish), "stop_sequence": self._finish.stop_string},
            "usage": {name: usage[name] for name in counts},
            "anaphora": account.extension(),
        }
        return [delta, {"type": "message_stop"}]

    def _message(self, content: list[dict[str, Any]], account: Account) -> dict[str, Any]:
        return {
            "id": self._response_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "usage": message_usage(account),
            **self._more,
        }

    def _stop_reason(self, finish: Finish) -> str:
        if finish.reason == "length":
            return "model_context_window_exceeded" if self._fills_context else "max_tokens"
        if finish.calls_tools:
            return "tool_use"
        if finish.reason == "stop_string" and finish.stop_string is not None:
            return "stop_sequence"
        return "end_turn"

    def _text_events(self, text: str) -> list[Event]:
        begun = [] if self._is_in_text else self._start({"type": "text", "text": ""})
        self._is_in_text = True
        return [*begun, self._delta({"type": "text_delta", "text": text})]

    def _end_text(self) -> list[Event]:
        if not self._is_in_text:
            return []
        self._is_in_text = False
        return self._stop()

    def _start(self, block: dict[str, Any]) -> list[Event]:
        return [{"type": "content_block_start", "index": self._num_blocks, "content_block": block}]

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._num_blocks, "delta": delta}

    def _stop(self) -> list[Event]:
        self._num_blocks += 1
        return [{"type": "content_block_stop", "index": self._num_blocks - 1}]


def _use(call: CallPiece) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": json.loads(call.arguments)}


def message_usage(account: Account) -> dict[str, Any]:
    """Anthropic's usage: tokens read and tokens written stand apart from input tokens."""
    tokens = account.tokens
    return {
        "input_tokens": tokens.ordinary,
        "cache_creation_input_tokens": tokens.written,
        "cache_read_input_tokens": tokens.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": tokens.writes.get("5m", 0),
            "ephemeral_1h_input_tokens": tokens.writes.get("1h", 0),
        },
        "output_tokens": tokens.output,
        "service_tier": "standard",
    }
