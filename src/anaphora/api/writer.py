"""How each protocol's reply is put on the wire: one small value, so that the routes share one way through."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anaphora.api.account import Account
from anaphora.api.answers import Answer, AnswerEvent, Begin
from anaphora.api.anthropic_reply import MessageReply, message_usage
from anaphora.api.openai_completions import CompletionReply, PromptText, usage_of
from anaphora.api.openai_reply import ChatReply
from anaphora.api.responses_reply import ResponseReply, response_usage
from anaphora.api.source import Source

Chunk = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Writer:
    """A reply as functions: whole, or opening, pieces and closing, and how a chunk is framed."""

    model: str  # as the client called it
    usage: Callable[[Account], Chunk]
    whole: Callable[[Sequence[Answer], Account], Chunk]
    opening: Callable[[Account], list[Chunk]]
    piece: Callable[[AnswerEvent], list[Chunk]]
    closing: Callable[[Account], list[Chunk]]
    frame: Callable[[Chunk], str]
    last_frame: str


def chat_writer(reply: ChatReply, model: str) -> Writer:
    return Writer(
        model, usage_of, reply.whole, lambda _: reply.opening(), reply.piece, reply.closing, _data_frame, _DONE
    )


def completion_writer(reply: CompletionReply, model: str, prompts: Sequence[PromptText], source: Source) -> Writer:
    """`prompts` are the prompts to give back (`echo`), or none."""

    def whole(answers: Sequence[Answer], account: Account) -> Chunk:
        echoed = [(prompt, source.prompt_logprobs(index)) for index, prompt in enumerate(prompts)]
        return reply.whole(answers, echoed, account)

    def piece(event: AnswerEvent) -> list[Chunk]:
        if isinstance(event, Begin) and prompts:
            index = event.request_index
            return reply.echo(index, prompts[index], source.prompt_logprobs(index))
        return reply.piece(event)

    return Writer(model, usage_of, whole, lambda _: [], piece, reply.closing, _data_frame, _DONE)


def response_writer(reply: ResponseReply, model: str) -> Writer:
    return Writer(
        model,
        response_usage,
        lambda answers, account: reply.whole(answers[0], account),
        lambda _: reply.opening(),
        reply.piece,
        reply.closing,
        _event_frame,
        "",
    )


def message_writer(reply: MessageReply, model: str) -> Writer:
    return Writer(
        model,
        message_usage,
        lambda answers, account: reply.whole(answers[0], account),
        reply.opening,
        reply.piece,
        reply.closing,
        _event_frame,
        "",
    )


_DONE = "data: [DONE]\n\n"


def _data_frame(chunk: Chunk) -> str:
    return f"data: {_compact(chunk)}\n\n"


def _event_frame(chunk: Chunk) -> str:
    return f"event: {chunk['type']}\ndata: {_compact(chunk)}\n\n"


def _compact(chunk: Chunk) -> str:
    return json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
