"""OpenAI's batches: a file of requests -> lines; outcomes -> a file of answers and one of errors. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from anaphora.api.batching import Batch, Line, LineReply, Outcome
from anaphora.api.wire import WireModel, json_text, refuse, validated
from anaphora.prompt.strict_json import NotJson, read_json

KIND = "batch"
ENDPOINTS = ("/v1/chat/completions", "/v1/responses", "/v1/completions")
MAX_REQUESTS = 50_000
MAX_TOLD_ERRORS = 100


class BatchRequest(WireModel):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ReadLines:
    """The lines of an input file, or what is wrong with them."""

    lines: tuple[Line, ...]
    errors: tuple[dict[str, Any], ...]
    model: str | None  # of the first line


def read_batch(body: dict[str, Any]) -> BatchRequest:
    """The request to create a batch.

    Raises: RequestError naming the field.
    """
    request = validated(BatchRequest, body)
    if request.endpoint not in ENDPOINTS:
        refuse("endpoint", f"must be one of {', '.join(ENDPOINTS)}.")
    if request.completion_window != "24h":
        refuse("completion_window", 'must be "24h".')
    return request


def read_lines(content: bytes, endpoint: str) -> ReadLines:
    """The requests in an input file. Errors name the line."""
    lines: list[Line] = []
    errors: list[dict[str, Any]] = []
    model: str | None = None
    seen: set[str] = set()
    for number, raw in enumerate(content.split(b"\n"), start=1):
        if not raw.strip():
            continue
        read = _line(raw, endpoint)
        if isinstance(read, str):
            errors.append(_error("invalid_json_line", read, number))
        elif read[0].custom_id in seen:
            errors.append(_error("duplicate_custom_id", f"custom_id {read[0].custom_id[:80]!r} is used twice.", number))
        else:
            lines.append(read[0])
            seen.add(read[0].custom_id)
            model = model or read[1]
        if len(errors) >= MAX_TOLD_ERRORS:
            break
    if not lines and not errors:
        errors.append(_error("empty_file", "The input file has no requests.", None))
    if len(lines) > MAX_REQUESTS:
        errors.append(_error("too_many_tasks", f"The input file has more than {MAX_REQUESTS} requests.", None))
    return ReadLines(() if errors else tuple(lines), tuple(errors), model)


def refuse_in_batch(body: Mapping[str, Any]) -> None:
    """Refuse what one request of a batch may not ask for.

    Raises: RequestError naming the field.
    """
    if body.get("stream"):
        refuse("stream", "must not be true in a batch.")


def shown(batch: Batch) -> dict[str, Any]:
    """A batch as the API shows it."""
    created, ended = int(batch.created_at), None if batch.ended_at is None else int(batch.ended_at)
    canceled = None if batch.canceled_at is None else int(batch.canceled_at)
    status = _status(batch)
    ends = {name: ended if status == name else None for name in ("completed", "expired", "cancelled", "failed")}
    return {
        "id": batch.batch_id,
        "object": KIND,
        "endpoint": batch.about["endpoint"],
        "model": batch.about["model"],
        "errors": batch.about["errors"],
        "input_file_id": batch.about["input_file_id"],
        "completion_window": "24h",
        "status": status,
        "output_file_id": batch.produced.get("output_file_id"),
        "error_file_id": batch.produced.get("error_file_id"),
        "created_at": created,
        "in_progress_at": None if status == "failed" else created,
        "expires_at": int(batch.expires_at),
        "finalizing_at": None if status == "failed" else ended,
        "cancelling_at": canceled,
        **{f"{name}_at": at for name, at in ends.items()},
        "request_counts": {
            "total": len(batch.lines),
            "completed": batch.count(_is_answered),
            "failed": batch.count(lambda one: not _is_answered(one)),
        },
        "metadata": batch.about["metadata"],
        "usage": _usage(batch),
    }


def output_lines(batch: Batch) -> tuple[bytes, bytes]:
    """The contents of the file of answers and of the file of errors."""
    answered: list[str] = []
    failed: list[str] = []
    for number, line in enumerate(batch.lines):
        outcome = batch.outcomes[number]
        text = json.dumps(_output_line(batch, number, line), ensure_ascii=False, separators=(",", ":")) + "\n"
        (answered if _is_answered(outcome) else failed).append(text)
    return "".join(answered).encode(), "".join(failed).encode()


def _line(raw: bytes, endpoint: str) -> tuple[Line, str | None] | str:
    """A line and its model, or what is wrong with it."""
    try:
        value = read_json(raw.decode("utf-8-sig"))
    except (UnicodeDecodeError, NotJson) as error:
        return f"This line is not valid JSON: {error}."
    if not isinstance(value, dict):
        return "This line is not a JSON object."
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        return "custom_id must be a string that is not empty."
    if value.get("method") != "POST":
        return "method must be POST."
    if value.get("url") != endpoint:
        return f"url must be the batch's endpoint, {endpoint}."
    if not isinstance(body, dict):
        return "body must be an object."
    model = body.get("model")
    return Line(custom_id, endpoint, json_text(body).encode()), model if isinstance(model, str) else None


def _error(code: str, message: str, line: int | None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": None, "line": line}


def _status(batch: Batch) -> str:
    if batch.about["errors"] is not None:
        return "failed"
    if batch.ended_at is None:
        return "in_progress" if batch.canceled_at is None else "cancelling"
    if batch.canceled_at is not None:
        return "cancelled"
    return "expired" if any(one == "expired" for one in batch.outcomes.values()) else "completed"


def _is_answered(outcome: Outcome) -> bool:
    return isinstance(outcome, LineReply) and outcome.status == 200


def _output_line(batch: Batch, number: int, line: Line) -> dict[str, Any]:
    outcome = batch.outcomes[number]
    entry = {"id": f"batch_req_{batch.batch_id.removeprefix('batch_')}_{number}", "custom_id": line.custom_id}
    if isinstance(outcome, LineReply):
        response = {"status_code": outcome.status, "request_id": outcome.request_id, "body": outcome.body}
        return {**entry, "response": response, "error": None}
    code = "batch_cancelled" if outcome == "canceled" else "batch_expired"
    message = f"This request was not begun before its batch {'was cancelled' if outcome == 'canceled' else 'expired'}."
    return {**entry, "response": None, "error": {"code": code, "message": message}}


def _usage(batch: Batch) -> dict[str, Any]:
    """What all answers used, in the words of Responses."""
    used = [_counts(body["usage"]) for body in _bodies(batch)]
    total_in, cached, total_out = (sum(one[place] for one in used) for place in range(3))
    return {
        "input_tokens": total_in,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": total_out,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total_in + total_out,
    }


def _bodies(batch: Batch) -> Iterator[Mapping[str, Any]]:
    for outcome in batch.outcomes.values():
        if isinstance(outcome, LineReply) and outcome.status == 200:
            yield outcome.body


def _counts(usage: Mapping[str, Any]) -> tuple[int, int, int]:
    """Input, cached and output tokens, in either spelling."""
    if "input_tokens" in usage:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]
