"""Chat Completions answers: neutral events -> wire, whole or in chunks. Pure."""

from collections.abc import Sequence
from typing import Any

from anaphora.api.account import Account
from anaphora.api.answers import Answer, AnswerEvent, CallPiece, Finish, TextPiece
from anaphora.api.openai import ChatCall
from anaphora.api.openai_completions import usage_of
from anaphora.engine.request import TokenLogprob


class ChatReply:
    """Write one request's answers. Streamed: `opening`, `piece` for each event, `closing`."""

    def __init__(self, *, response_id: str, created: int, call: ChatCall) -> None:
        self._call = call
        self._response_id = response_id
        self._created = created
        self._num_calls = [0] * call.sampling.num_sequences
        self._held: dict[str, Any] | None = None

    def whole(self, answers: Sequence[Answer], account: Account) -> dict[str, Any]:
        """The body of an answer that isn't streamed."""
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
            "usage": usage_of(account),
            "service_tier": "default",
            "anaphora": account.extension(),
        }

    def opening(self) -> list[dict[str, Any]]:
        """The chunks before any text: the role of every choice."""
        delta = {"role": "assistant", "content": ""}
        return [self._chunk(index, dict(delta)) for index in range(self._call.sampling.num_sequences)]

    def piece(self, event: AnswerEvent) -> list[dict[str, Any]]:
        """The chunks for one event. The last end is held until `closing`, which has the receipt."""
        if isinstance(event, TextPiece):
            return [self._chunk(event.sequence_index, {"content": event.text}, logprobs=event.logprobs)]
        if isinstance(event, CallPiece):
            return self._call_chunks(event)
        if not isinstance(event, Finish):
            return []
        last = self._chunk(event.sequence_index, {}, logprobs=event.logprobs, finish=_finish_reason(event))
        ready, self._held = self._held, last
        return [ready] if ready else []

    def closing(self, account: Account) -> list[dict[str, Any]]:
        """The last chunks: the held end, and the usage in a chunk of its own where it was asked for."""
        assert self._held is not None, "a finished answer has a finished sequence"
        if not self._call.includes_usage:
            return [{**self._held, "anaphora": account.extension()}]
        usage = {"choices": [], "usage": usage_of(account), "anaphora": account.extension()}
        return [self._held, {**self._head("chat.completion.chunk"), **usage}]

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._response_id, "object": kind, "created": self._created, "model": self._call.model}

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.calls:
            message["content"] = answer.text or None
            message["tool_calls"] = [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.calls
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": _finish_reason(answer.finish),
        }

    def _call_chunks(self, event: CallPiece) -> list[dict[str, Any]]:
        """A call in two chunks, as clients expect: who is called, then with what."""
        number = self._num_calls[event.sequence_index]
        self._num_calls[event.sequence_index] += 1
        named = {
            "index": number,
            "id": event.call_id,
            "type": "function",
            "function": {"name": event.name, "arguments": ""},
        }
        filled = {"index": number, "function": {"arguments": event.arguments}}
        return [self._chunk(event.sequence_index, {"tool_calls": [entry]}) for entry in (named, filled)]

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: Sequence[TokenLogprob] = (),
        finish: str | None = None,
    ) -> dict[str, Any]:
        scores = self._logprobs(logprobs) if logprobs else None
        choice = {"index": index, "delta": delta, "logprobs": scores, "finish_reason": finish}
        chunk: dict[str, Any] = {**self._head("chat.completion.chunk"), "choices": [choice]}
        if self._call.includes_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if self._call.sampling.num_logprobs is None:
            return None
        return {"content": [scored(entry) for entry in entries], "refusal": None}


def scored(entry: TokenLogprob) -> dict[str, Any]:
    """A token's scores, as Chat Completions and Responses write them."""
    top = [_token(token, token_bytes, logprob) for _, token, token_bytes, logprob in entry.top]
    return {**_token(entry.token, entry.token_bytes, entry.logprob), "top_logprobs": top}


def _token(token: str, token_bytes: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token, "bytes": list(token_bytes), "logprob": logprob}


def _finish_reason(finish: Finish) -> str:
    if finish.reason == "length":
        return "length"
    return "tool_calls" if finish.calls_tools else "stop"
