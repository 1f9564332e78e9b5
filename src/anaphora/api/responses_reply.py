"""Responses answers: neutral events -> wire, whole or as events. Pure.

response.created  response.in_progress
    (output_item.added  content_part.added  output_text.delta*  output_text.done  content_part.done  output_item.done
    | output_item.added  function_call_arguments.delta  function_call_arguments.done  output_item.done)*
response.completed | response.incomplete
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anaphora.api.account import Account
from anaphora.api.answers import Answer, AnswerEvent, CallPiece, Finish, TextPiece
from anaphora.api.openai_reply import scored
from anaphora.api.responses import ResponsesCall
from anaphora.engine.request import TokenLogprob

Event = dict[str, Any]
Keep = Callable[[dict[str, Any]], None]
Diagnose = Callable[[Account], Mapping[str, Any]]
"""The fields that tell how a request compares with another, where that was asked for."""


class ResponseReply:
    """Write one request's answer. Streamed: `opening`, `piece` for each event, `closing`.

    `keep` is handed the finished response. `new_id` makes the ids of items.
    """

    def __init__(
        self,
        *,
        response_id: str,
        created: int,
        call: ResponsesCall,
        new_id: Callable[[str], str],
        keep: Keep,
        diagnose: Diagnose = lambda _: {},
    ) -> None:
        self._call = call
        self._diagnose = diagnose
        self._head = {"id": response_id, "object": "response", "created_at": created, "model": call.model}
        self._new_id = new_id
        self._keep = keep
        self._num_events = 0
        self._output: list[dict[str, Any]] = []
        self._texts: list[str] = []  # of the message item that is being written
        self._logprobs: list[TokenLogprob] = []
        self._message_id = ""
        self._finish: Finish | None = None

    def whole(self, answer: Answer, account: Account) -> dict[str, Any]:
        """The body of an answer that isn't streamed."""
        logprobs = answer.logprobs
        for block in answer.blocks:
            if isinstance(block, TextPiece):
                self._output.append(self._message(self._new_id("msg_"), block.text, logprobs))
                logprobs = ()
            else:
                self._output.append(self._function_call(block))
        return self._finished(answer.finish, account)

    def opening(self) -> list[Event]:
        """The events before any output."""
        response = self._response("in_progress")
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def piece(self, event: AnswerEvent) -> list[Event]:
        """The events for a piece of the answer."""
        if isinstance(event, TextPiece):
            return self._text_events(event)
        if isinstance(event, CallPiece):
            return [*self._end_message(), *self._call_events(event)]
        if isinstance(event, Finish):
            self._finish = event
            self._logprobs += event.logprobs
            return self._end_message()
        return []

    def closing(self, account: Account) -> list[Event]:
        """The last event, with the whole response."""
        assert self._finish is not None, "a finished answer has a finished sequence"
        response = self._finished(self._finish, account)
        return [self._event(f"response.{response['status']}", response=response)]

    def _response(self, status: str) -> dict[str, Any]:
        return {
            **self._head,
            **self._call.echoed,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "output": list(self._output),
            "service_tier": "default",
            "usage": None,
        }

    def _finished(self, finish: Finish, account: Account) -> dict[str, Any]:
        is_cut = finish.reason == "length" and not self._call.is_prewarm
        response = {
            **self._response("incomplete" if is_cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": response_usage(account),
            **self._diagnose(account),
            "anaphora": account.extension(),
        }
        self._keep(response)
        return response

    def _text_events(self, piece: TextPiece) -> list[Event]:
        index, events = len(self._output), []
        if not self._message_id:
            self._message_id = self._new_id("msg_")
            item = {**self._message(self._message_id, "", ()), "status": "in_progress", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            place = {"item_id": self._message_id, "output_index": index, "content_index": 0}
            events.append(self._event("response.output_item.added", output_index=index, item=item))
            events.append(self._event("response.content_part.added", **place, part=part))
        self._texts.append(piece.text)
        self._logprobs += piece.logprobs
        place = {"item_id": self._message_id, "output_index": index, "content_index": 0}
        logprobs = self._scores(piece.logprobs)
        return [*events, self._event("response.output_text.delta", **place, delta=piece.text, logprobs=logprobs)]

    def _end_message(self) -> list[Event]:
        if not self._message_id:
            return []
        index, item = len(self._output), self._message(self._message_id, "".join(self._texts), self._logprobs)
        place = {"item_id": self._message_id, "output_index": index, "content_index": 0}
        part = item["content"][0]
        self._output.append(item)
        self._message_id, self._texts, self._logprobs = "", [], []
        return [
            self._event("response.output_text.done", **place, text=part["text"], logprobs=part["logprobs"]),
            self._event("response.content_part.done", **place, part=part),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _call_events(self, piece: CallPiece) -> list[Event]:
        index, item = len(self._output), self._function_call(piece)
        self._output.append(item)
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return [
            self._event("response.output_item.added", output_index=index, item=begun),
            self._event("response.function_call_arguments.delta", **place, delta=piece.arguments),
            self._event("response.function_call_arguments.done", **place, arguments=piece.arguments),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _message(self, item_id: str, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": self._scores(logprobs)}
        return {"id": item_id, "type": "message", "role": "assistant", "status": "completed", "content": [part]}

    def _function_call(self, piece: CallPiece) -> dict[str, Any]:
        return {
            "id": self._new_id("fc_"),
            "type": "function_call",
            "status": "completed",
            "call_id": piece.call_id,
            "name": piece.name,
            "arguments": piece.arguments,
        }

    def _scores(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [] if self._call.sampling.num_logprobs is None else [scored(entry) for entry in logprobs]

    def _event(self, kind: str, **fields: Any) -> Event:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **fields}


def response_usage(account: Account) -> dict[str, Any]:
    """Usage as Responses spells it: cached and written tokens are part of the input's."""
    tokens = account.tokens
    long = tokens.writes.get("12h", 0)
    return {
        "input_tokens": tokens.input,
        "input_tokens_details": {
            "cached_tokens": tokens.read,
            "cache_write_tokens": tokens.written,
            "cache_write_tokens_details": {"ttl_30m_tokens": tokens.written - long, "ttl_12h_tokens": long},
        },
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens.input + tokens.output,
    }
