"""The routes of batches and of the files that OpenAI's batches are made from.

A line of a batch goes the way of any request: the endpoint's own handler answers it, so that it is counted, logged and
reckoned like the others.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anaphora.api import anthropic_batches, openai_batches
from anaphora.api.batching import Batch, BatchQueue, Line, LineReply
from anaphora.api.errors import Protocol
from anaphora.api.http import guarded, json_response, read_body, read_upload
from anaphora.api.incoming import Handler, Incoming
from anaphora.api.openai_files import FileStore, StoredFile
from anaphora.api.serving import new_id
from anaphora.api.wire import parse_body, refuse
from anaphora.engine.request import Tenant

_BODIES = 8
"""A batch's body may be this many times as long as one request's: 256 MiB by default, as hosted."""
_BUSY = (429, 529)
_TRY_AGAIN_S = 1.0
_JSON_LINES = "application/x-jsonl"
_REFUSALS = {Protocol.ANTHROPIC: anthropic_batches.refuse_in_batch, Protocol.OPENAI: openai_batches.refuse_in_batch}


@dataclass(frozen=True, slots=True)
class Answering:
    """Who answers lines, and what they share the engine with."""

    handlers: Mapping[str, tuple[Handler, Protocol]]  # by the endpoint's path
    num_others: Callable[[int], int]  # sequences that are served now, but for this many lines
    max_sequences: int
    max_body_bytes: int
    clock: Callable[[], float]  # of lifetimes in the ledgers
    count: Callable[[str, int], None]  # a line was answered, with this status


class BatchRoutes:
    """Handlers of batches and files, around the queue."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._max_bytes = _BODIES * answering.max_body_bytes
        self.files = FileStore()
        self.queue = BatchQueue(self._answer, num_at_once=self._num_at_once, on_end=self._write_output)

    def routes(self, wrap: Callable[..., Any]) -> list[Route]:
        """All routes; `wrap` makes an endpoint of a handler, as for the others."""
        openai, anthropic = Protocol.OPENAI, Protocol.ANTHROPIC
        message = "/v1/messages/batches"
        table: tuple[tuple[str, str, Handler, Protocol], ...] = (
            ("POST", message, self.create_messages, anthropic),
            ("GET", message, self.list_messages, anthropic),
            ("GET", f"{message}/{{batch_id}}", self.show_messages, anthropic),
            ("DELETE", f"{message}/{{batch_id}}", self.delete_messages, anthropic),
            ("POST", f"{message}/{{batch_id}}/cancel", self.cancel_messages, anthropic),
            ("GET", f"{message}/{{batch_id}}/results", self.message_results, anthropic),
            ("POST", "/v1/batches", self.create, openai),
            ("GET", "/v1/batches", self.list, openai),
            ("GET", "/v1/batches/{batch_id}", self.show, openai),
            ("POST", "/v1/batches/{batch_id}/cancel", self.cancel, openai),
            ("POST", "/v1/files", self.upload, openai),
            ("GET", "/v1/files", self.list_files, openai),
            ("GET", "/v1/files/{file_id}", self.show_file, openai),
            ("DELETE", "/v1/files/{file_id}", self.delete_file, openai),
            ("GET", "/v1/files/{file_id}/content", self.file_content, openai),
        )
        return [
            Route(path, wrap(path.partition("/{")[0], handler, protocol=protocol), methods=[method])
            for method, path, handler, protocol in table
        ]

    # Anthropic

    async def create_messages(self, incoming: Incoming) -> Response:
        raw = await read_body(incoming.request, max_bytes=self._max_bytes)
        lines = await asyncio.to_thread(lambda: anthropic_batches.read_batch(parse_body(raw)))
        batch = Batch(new_id("msgbatch_"), incoming.tenant, anthropic_batches.KIND, lines, self.queue.clock())
        self.queue.add(batch)
        return self._shown_messages(incoming, batch)

    async def list_messages(self, incoming: Incoming) -> Response:
        own, url = self.queue.all_of(incoming.tenant, anthropic_batches.KIND), _base_url(incoming)
        query = incoming.request.query_params
        ids = [batch.batch_id for batch in own]
        start, stop = _between(ids, after=query.get("after_id"), before=query.get("before_id"))
        limit = _limit(query.get("limit"), default=20, most=1000)
        if query.get("before_id") is not None:  # the page that ends there
            start = max(start, stop - limit)
            has_more = start > 0
        else:
            has_more = stop - start > limit
        chosen = [anthropic_batches.shown(one, url) for one in own[start:stop][:limit]]
        return json_response(anthropic_batches.page(chosen, has_more=has_more))

    async def show_messages(self, incoming: Incoming) -> Response:
        return self._shown_messages(incoming, self._messages(incoming))

    async def cancel_messages(self, incoming: Incoming) -> Response:
        batch = self._messages(incoming)
        self.queue.cancel(batch)
        return self._shown_messages(incoming, batch)

    async def delete_messages(self, incoming: Incoming) -> Response:
        batch = self._messages(incoming)
        if batch.ended_at is None:
            refuse("message_batch_id", "this batch has not ended: cancel it first.")
        self.queue.forget(batch)
        return json_response({"id": batch.batch_id, "type": "message_batch_deleted"})

    async def message_results(self, incoming: Incoming) -> Response:
        batch = self._messages(incoming)
        if batch.ended_at is None:
            refuse("message_batch_id", "this batch has no results before it has ended.")
        content = await asyncio.to_thread(lambda: "".join(anthropic_batches.results(batch)))
        return Response(content, media_type=_JSON_LINES)

    def _messages(self, incoming: Incoming) -> Batch:
        return self.queue.get(incoming.tenant, anthropic_batches.KIND, incoming.request.path_params["batch_id"])

    def _shown_messages(self, incoming: Incoming, batch: Batch) -> Response:
        return json_response(anthropic_batches.shown(batch, _base_url(incoming)))

    # OpenAI

    async def create(self, incoming: Incoming) -> Response:
        raw = await read_body(incoming.request, max_bytes=self._answering.max_body_bytes)
        request = openai_batches.read_batch(parse_body(raw))
        file = self.files.get(incoming.tenant, request.input_file_id)
        if file.purpose != "batch":
            refuse("input_file_id", 'must be a file with the purpose "batch".')
        read = await asyncio.to_thread(openai_batches.read_lines, file.content, request.endpoint)
        about = {
            "endpoint": request.endpoint,
            "model": read.model,
            "input_file_id": file.file_id,
            "metadata": request.metadata,
            "errors": {"object": "list", "data": list(read.errors)} if read.errors else None,
        }
        batch = Batch(
            new_id("batch_"), incoming.tenant, openai_batches.KIND, read.lines, self.queue.clock(), about=about
        )
        self.queue.add(batch)
        return json_response(openai_batches.shown(batch))

    async def list(self, incoming: Incoming) -> Response:
        own = self.queue.all_of(incoming.tenant, openai_batches.KIND)
        return _openai_page([openai_batches.shown(one) for one in own], incoming, default=20, most=100)

    async def show(self, incoming: Incoming) -> Response:
        return json_response(openai_batches.shown(self._batch(incoming)))

    async def cancel(self, incoming: Incoming) -> Response:
        batch = self._batch(incoming)
        self.queue.cancel(batch)
        return json_response(openai_batches.shown(batch))

    def _batch(self, incoming: Incoming) -> Batch:
        return self.queue.get(incoming.tenant, openai_batches.KIND, incoming.request.path_params["batch_id"])

    async def upload(self, incoming: Incoming) -> Response:
        upload = await read_upload(incoming.request, max_bytes=self._max_bytes)
        if upload.fields.get("purpose") != "batch":
            refuse("purpose", 'must be "batch": files are for batches here.')
        file = StoredFile(new_id("file-"), upload.name, "batch", upload.content, int(self.queue.clock()))
        self.files.keep(incoming.tenant, file)
        return json_response(file.shown())

    async def list_files(self, incoming: Incoming) -> Response:
        purpose = incoming.request.query_params.get("purpose")
        own = [one.shown() for one in self.files.all_of(incoming.tenant) if purpose in (None, one.purpose)]
        return _openai_page(own, incoming, default=10_000, most=10_000)

    async def show_file(self, incoming: Incoming) -> Response:
        return json_response(self._file(incoming).shown())

    async def delete_file(self, incoming: Incoming) -> Response:
        file = self._file(incoming)
        self.files.delete(incoming.tenant, file.file_id)
        return json_response({"id": file.file_id, "object": "file", "deleted": True})

    async def file_content(self, incoming: Incoming) -> Response:
        return Response(self._file(incoming).content, media_type="application/octet-stream")

    def _file(self, incoming: Incoming) -> StoredFile:
        return self.files.get(incoming.tenant, str(incoming.request.path_params["file_id"]))

    def _write_output(self, batch: Batch) -> None:
        if batch.kind != openai_batches.KIND:
            return
        answered, failed = openai_batches.output_lines(batch)
        for name, content in (("output", answered), ("error", failed)):
            if content:
                file_id = new_id("file-")
                file_name = f"{batch.batch_id}_{name}.jsonl"
                file = StoredFile(file_id, file_name, "batch_output", content, int(self.queue.clock()))
                self.files.keep_output(batch.tenant, file)
                batch.produced[f"{name}_file_id"] = file_id

    # Lines

    def _num_at_once(self, num_running: int) -> int:
        return 1 if self._answering.num_others(num_running) > 0 else max(1, self._answering.max_sequences // 2)

    async def _answer(self, batch: Batch, line: Line) -> LineReply:
        """Have a line answered; wait and try again while the queue is full."""
        handler, protocol = self._answering.handlers[line.path]
        while True:
            request_id = new_id("req_")
            request = _request_of(line)

            async def answered(request: Request = request, request_id: str = request_id) -> Response:
                _REFUSALS[protocol](json.loads(line.body))
                return await handler(_incoming(request, line, protocol, (request_id, batch.tenant), self._answering))

            response = await guarded(answered(), protocol=protocol, request_id=request_id)
            if response.status_code not in _BUSY:
                break
            await asyncio.sleep(_TRY_AGAIN_S)
        self._answering.count(line.path, response.status_code)
        body = bytes(response.body)
        return LineReply(response.status_code, json.loads(body), request_id, len(body))


def _incoming(
    request: Request, line: Line, protocol: Protocol, whose: tuple[str, Tenant], answering: Answering
) -> Incoming:
    request_id, tenant = whose
    return Incoming(request, line.path, protocol, request_id, tenant, answering.clock(), is_batched=True)


def _request_of(line: Line) -> Request:
    """A line in the shape of a request whose client waits for ever."""
    is_read = False

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()
        is_read = True
        return {"type": "http.request", "body": line.body, "more_body": False}

    scope = {
        "type": "http",
        "method": "POST",
        "path": line.path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    return Request(scope, receive)


def _base_url(incoming: Incoming) -> str:
    return str(incoming.request.base_url).rstrip("/")


def _between(ids: Sequence[str], *, after: str | None, before: str | None) -> tuple[int, int]:
    """The part of a list between two of its ids. An id that is gone bounds nothing."""
    start = ids.index(after) + 1 if after in ids else 0
    return start, ids.index(before) if before in ids else len(ids)


def _openai_page(entries: Sequence[dict[str, Any]], incoming: Incoming, *, default: int, most: int) -> Response:
    query = incoming.request.query_params
    ids = [one["id"] for one in entries]
    start, _ = _between(ids, after=query.get("after"), before=None)
    limit = _limit(query.get("limit"), default=default, most=most)
    chosen = list(entries[start : start + limit])
    return json_response(
        {
            "object": "list",
            "data": chosen,
            "first_id": chosen[0]["id"] if chosen else None,
            "last_id": chosen[-1]["id"] if chosen else None,
            "has_more": start + limit < len(entries),
        }
    )


def _limit(given: str | None, *, default: int, most: int) -> int:
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= most):
        refuse("limit", f"must be from 1 to {most}.")
    return int(given[:9])
