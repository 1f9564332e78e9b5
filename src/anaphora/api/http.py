"""What HTTP needs around a handler: bodies within bounds, clients that leave, errors in shape, event streams."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from anaphora.api.errors import ErrorReply, Protocol, error_reply
from anaphora.errors import AnaphoraError, BodyTooLarge, RequestError

logger = logging.getLogger("anaphora.api")

Result = TypeVar("Result")

_DRAINED_BODIES = 8
"""A body over the limit is read on and thrown away, up to this many times the limit: a client that is still
sending would otherwise see a broken connection instead of the answer."""

STATUS_CLIENT_GONE = 499


class ClientGone(Exception):
    """The client closed the connection before it was answered."""


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The whole body.

    Raises: RequestError for a body that isn't sent as JSON, BodyTooLarge, ClientGone.
    """
    _check_headers(request.headers)
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= max_bytes:
                chunks.append(chunk)
            elif size > _DRAINED_BODIES * max_bytes:
                break
            else:
                chunks.clear()
    except ClientDisconnect:
        raise ClientGone from None
    if size > max_bytes:
        raise BodyTooLarge(f"The body has more than {max_bytes} bytes, the most this server takes.")
    return b"".join(chunks)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file sent as a form, with the form's other fields."""

    name: str
    content: bytes
    fields: Mapping[str, str]


async def read_upload(request: Request, *, max_bytes: int) -> Upload:
    """The form's field `file`, whole, and what else it says.

    Raises: RequestError for another kind of body, BodyTooLarge, ClientGone.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise RequestError("content-type: must be multipart/form-data.", field="content-type")
    size = 0

    async def receive() -> Message:
        nonlocal size
        message = await request.receive()
        size += len(message.get("body", b""))
        if size > max_bytes:
            raise BodyTooLarge(f"The body has more than {max_bytes} bytes, the most this server takes.")
        return message

    try:
        async with Request(request.scope, receive).form(max_files=1, max_fields=20) as form:
            sent = form.get("file")
            if not isinstance(sent, UploadFile):
                raise RequestError("file: must be sent.", field="file")
            fields = {name: value for name, value in form.items() if isinstance(value, str)}
            return Upload(sent.filename or "file", await sent.read(), fields)
    except ClientDisconnect:
        raise ClientGone from None
    except (HTTPException, MultiPartException) as error:
        problem = getattr(error, "detail", None) or getattr(error, "message", "it is no form")
        raise RequestError(f"The body is not a form that can be read: {problem}") from None


def _check_headers(headers: Mapping[str, str]) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        raise RequestError(f"content-type: must be application/json, not {kind[:60]!r}.", field="content-type")
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise RequestError(
            f"content-encoding: {encoding[:60]!r} is not supported; send the body as it is.", field="content-encoding"
        )


async def until_disconnect(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, unless the client leaves first; then `work` is cancelled.

    Raises: ClientGone.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for pending in (task, gone):
            if not pending.done():
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError, AnaphoraError):
                    await pending


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events. `on_close` is called when the last byte is out or the client has left."""

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncGenerator[str, None], *, headers: Mapping[str, str], on_close: Callable[[], None]
    ) -> None:
        super().__init__(frames, headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        self._frames = frames
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()
            await self._frames.aclose()


def json_response(body: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode(), status_code=status, headers=headers, media_type="application/json")


def error_response(reply: ErrorReply) -> Response:
    return json_response(reply.body, status=reply.status, headers=reply.headers)


async def guarded(work: Coroutine[Any, Any, Response], *, protocol: Protocol, request_id: str) -> Response:
    """The response of `work`, or the error it ended with in the protocol's shape.

    This is the boundary: an error nobody raised on purpose is logged here and fails this request alone.
    """
    try:
        return await work
    except ClientGone:
        return Response(status_code=STATUS_CLIENT_GONE)
    except Exception as error:
        return error_response(described(error, protocol, request_id))


def described(error: Exception, protocol: Protocol, request_id: str) -> ErrorReply:
    """The reply for an error; unexpected ones are logged."""
    reply = error_reply(error, protocol, request_id)
    if reply.status == 500:
        logger.error("request %s failed", request_id, exc_info=error)
    return reply
