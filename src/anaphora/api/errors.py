"""Every error in the shape and with the status of the protocol that was spoken.

error               OpenAI status, type, code                               Anthropic status, type
──────────────────────────────────────────────────────────────────────────────────────────────────────
RequestError        400 invalid_request_error                               400 invalid_request_error
PromptTooLong       400 invalid_request_error, context_length_exceeded      400 invalid_request_error
UnsupportedSetting  400 invalid_request_error, invalid_parameter            400 invalid_request_error
UnknownModel        404 invalid_request_error, model_not_found              404 not_found_error
UnknownResponse     404 invalid_request_error                               404 not_found_error
UnknownObject       404 invalid_request_error                               404 not_found_error
NotAuthenticated    401 invalid_request_error, invalid_api_key              401 authentication_error
BodyTooLarge        413 invalid_request_error, request_too_large            413 request_too_large
Overloaded          429 rate_limit_error, rate_limit_exceeded, retry-after  529 overloaded_error, retry-after
RequestTimeout      408 timeout_error, request_timeout                      504 timeout_error
EngineStopped       503 server_error, engine_stopped                        503 api_error
anything else       500 server_error                                        500 api_error
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from anaphora.errors import (
    BodyTooLarge,
    EngineStopped,
    NotAuthenticated,
    Overloaded,
    PromptTooLong,
    RequestError,
    RequestTimeout,
    UnknownModel,
    UnknownObject,
    UnknownResponse,
    UnsupportedSetting,
)

INTERNAL_MESSAGE = "The server failed while answering this request. Other requests are not affected."


class Protocol(StrEnum):
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error ready to be sent."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def event(self) -> str:
        """The error as it is sent when the answer has already begun to stream."""
        text = json.dumps(self.body, ensure_ascii=False)
        return f"event: error\ndata: {text}\n\n" if self.body.get("type") == "error" else f"data: {text}\n\n"


@dataclass(frozen=True, slots=True)
class _Kind:
    openai: tuple[int, str, str | None]  # status, type, code
    anthropic: tuple[int, str]


# Order matters: the first class that fits is taken, so subclasses stand before RequestError.
_KINDS: tuple[tuple[type[Exception], _Kind], ...] = (
    (PromptTooLong, _Kind((400, "invalid_request_error", "context_length_exceeded"), (400, "invalid_request_error"))),
    (UnsupportedSetting, _Kind((400, "invalid_request_error", "invalid_parameter"), (400, "invalid_request_error"))),
    (UnknownModel, _Kind((404, "invalid_request_error", "model_not_found"), (404, "not_found_error"))),
    (UnknownObject, _Kind((404, "invalid_request_error", None), (404, "not_found_error"))),
    (UnknownResponse, _Kind((404, "invalid_request_error", None), (404, "not_found_error"))),
    (NotAuthenticated, _Kind((401, "invalid_request_error", "invalid_api_key"), (401, "authentication_error"))),
    (BodyTooLarge, _Kind((413, "invalid_request_error", "request_too_large"), (413, "request_too_large"))),
    (RequestError, _Kind((400, "invalid_request_error", None), (400, "invalid_request_error"))),
    (Overloaded, _Kind((429, "rate_limit_error", "rate_limit_exceeded"), (529, "overloaded_error"))),
    (RequestTimeout, _Kind((408, "timeout_error", "request_timeout"), (504, "timeout_error"))),
    (EngineStopped, _Kind((503, "server_error", "engine_stopped"), (503, "api_error"))),
)
_INTERNAL = _Kind((500, "server_error", None), (500, "api_error"))


def error_reply(error: Exception, protocol: Protocol, request_id: str) -> ErrorReply:
    """What to send for this error. Only errors raised on purpose show their message."""
    kind = next((kind for wanted, kind in _KINDS if isinstance(error, wanted)), _INTERNAL)
    message = INTERNAL_MESSAGE if kind is _INTERNAL else str(error)
    path = error.field if isinstance(error, RequestError) else None
    headers = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, NotAuthenticated):
        headers["www-authenticate"] = "Bearer"
    if protocol is Protocol.ANTHROPIC:
        status, name = kind.anthropic
        # Clients look for these words to know that they should shorten the conversation.
        message = f"prompt is too long: {message}" if isinstance(error, PromptTooLong) else message
        shown = dotted(message, path)
        body = {"type": "error", "error": {"type": name, "message": shown}, "request_id": request_id}
        return ErrorReply(status, body, headers)
    status, name, code = kind.openai
    return ErrorReply(status, openai_body(message, name, path, code), headers)


def route_error_reply(status: int, protocol: Protocol, request_id: str) -> ErrorReply:
    """What to send where no route fits: 404 for an unknown path, 405 for a wrong method."""
    message = "There is no such path here." if status == 404 else "This path does not take this method."
    if protocol is Protocol.ANTHROPIC:
        name = "not_found_error" if status == 404 else "invalid_request_error"
        return ErrorReply(
            status, {"type": "error", "error": {"type": name, "message": message}, "request_id": request_id}
        )
    return ErrorReply(status, openai_body(message, "invalid_request_error", None, None))


def openai_body(message: str, name: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": name, "param": param, "code": code}}


def dotted(message: str, path: str | None) -> str:
    """The message with its field in front, spelled as Anthropic spells paths: `messages.3.content.1: ...`."""
    if path is None:
        return message
    spelled = re.sub(r"\[(\d+)\]", r".\1", path)
    return f"{spelled}: {message.removeprefix(f'{path}: ')}"
