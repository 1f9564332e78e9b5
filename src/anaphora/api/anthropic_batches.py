"""Anthropic's Message Batches: wire <-> batches. Pure.

What is wrong with one request of a batch is told in its result, as hosted; what is wrong with the batch is refused.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from anaphora.api.batching import Batch, Line, LineReply, Outcome
from anaphora.api.wire import WireModel, json_text, refuse, validated, want_object, want_text

KIND = "message_batch"
PATH = "/v1/messages"
MAX_REQUESTS = 100_000
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_BATCHES = {
    "stream": "must not be true in a batch.",
    "speed": "is not supported in a batch.",
}


class MessageBatchRequest(WireModel):
    requests: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_REQUESTS)]


def read_batch(body: dict[str, Any]) -> tuple[Line, ...]:
    """The requests of a batch to create.

    Raises: RequestError naming the field.
    """
    request = validated(MessageBatchRequest, body)
    lines: list[Line] = []
    seen: set[str] = set()
    for index, entry in enumerate(request.requests):
        path = f"requests[{index}]"
        custom_id = want_text(entry.get("custom_id"), f"{path}.custom_id")
        if not _CUSTOM_ID.fullmatch(custom_id):
            refuse(f"{path}.custom_id", "must have 1 to 64 letters, digits, underscores and dashes.")
        if custom_id in seen:
            refuse(f"{path}.custom_id", f"{custom_id!r} is the id of another request of this batch.")
        seen.add(custom_id)
        params = want_object(entry.get("params"), f"{path}.params")
        lines.append(Line(custom_id, PATH, json_text(params).encode()))
    return tuple(lines)


def refuse_in_batch(body: Mapping[str, Any]) -> None:
    """Refuse what one request of a batch may not ask for.

    Raises: RequestError naming the field.
    """
    for name, problem in _NOT_IN_BATCHES.items():
        if body.get(name):
            refuse(name, problem)
    if body.get("max_tokens") == 0:
        refuse("max_tokens", "must be at least 1 in a batch.")


def shown(batch: Batch, base_url: str) -> dict[str, Any]:
    """A batch as the API shows it. Requests are counted as processing until all have ended."""
    has_ended = batch.ended_at is not None
    ends = [_kind(outcome) for outcome in batch.outcomes.values()] if has_ended else []
    counts = {name: ends.count(name) for name in ("succeeded", "errored", "canceled", "expired")}
    status = "ended" if has_ended else "in_progress" if batch.canceled_at is None else "canceling"
    return {
        "id": batch.batch_id,
        "type": KIND,
        "processing_status": status,
        "request_counts": {"processing": 0 if has_ended else len(batch.lines), **counts},
        "created_at": _time(batch.created_at),
        "expires_at": _time(batch.expires_at),
        "ended_at": _time(batch.ended_at),
        "cancel_initiated_at": _time(batch.canceled_at),
        "archived_at": None,
        "results_url": f"{base_url}{PATH}/batches/{batch.batch_id}/results" if has_ended else None,
    }


def page(batches: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page of batches."""
    ids = [one["id"] for one in batches]
    return {
        "data": batches,
        "has_more": has_more,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }


def results(batch: Batch) -> Iterator[str]:
    """The lines of a batch's results."""
    for number, line in enumerate(batch.lines):
        entry = {"custom_id": line.custom_id, "result": _result(batch.outcomes[number])}
        yield json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n"


def _kind(outcome: Outcome) -> str:
    if not isinstance(outcome, LineReply):
        return outcome
    return "succeeded" if outcome.status == 200 else "errored"


def _result(outcome: Outcome) -> dict[str, Any]:
    kind = _kind(outcome)
    if not isinstance(outcome, LineReply):
        return {"type": kind}
    if kind == "errored":
        return {"type": kind, "error": outcome.body}
    message = {**outcome.body, "usage": {**outcome.body["usage"], "service_tier": "batch"}}
    return {"type": kind, "message": message}


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
