"""Usage as both hosts and this server write it down, in one form: what was charged as what, for whom, and when.

    a response body, or a line of the request log     {"model": ..., "usage": {...}, ...}
    a line of a batch's results                       {"custom_id": ..., "response" | "result": {...}}
    a usage export                                    {"data": [{"start_time" | "starting_at": ..., "results": [...]}]}

Anthropic's input tokens exclude what was read and written, OpenAI's include it. Which is which is told by the fields.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from anaphora.contract.prices import Tokens

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """Tokens of one request, or of many where an export has summed them."""

    tokens: Tokens
    model: str
    tenant: str
    at: datetime | None  # None: the source doesn't say
    num_requests: int | None = 1  # None: the source doesn't say
    is_batch: bool = False

    @property
    def is_one_request(self) -> bool:
        return self.num_requests == 1


class NoUsage(ValueError):
    """There is no usage here, or none that can be read. The message says what is wrong."""


def records_of(value: Mapping[str, Any]) -> Iterator[UsageRecord]:
    """The records in one JSON object.

    Raises: NoUsage.
    """
    data = value.get("data")
    if isinstance(data, list) and all(isinstance(one, dict) and "results" in one for one in data):
        for bucket in data:
            yield from _of_bucket(bucket)
    elif isinstance(value.get("results"), list):
        yield from _of_bucket(value)
    else:
        yield _of_response(value)


def tokens_of(usage: Mapping[str, Any]) -> Tokens:
    """Tokens from a usage object of either host.

    Raises: NoUsage for counts that are missing, no whole numbers, or contradict each other.
    """
    if "prompt_tokens" in usage:
        details = _object(usage, "prompt_tokens_details")
        writes = {"30m": _count(details, "cache_write_tokens")}
        return _inclusive(usage, "prompt_tokens", "completion_tokens", _count(details, "cached_tokens"), writes)
    if "input_tokens_details" in usage:
        details = _object(usage, "input_tokens_details")
        split = _object(details, "cache_write_tokens_details")
        long = _count(split, "ttl_12h_tokens")
        writes = {"30m": _count(details, "cache_write_tokens") - long, "12h": long}
        return _inclusive(usage, "input_tokens", "output_tokens", _count(details, "cached_tokens"), writes)
    if "uncached_input_tokens" in usage:
        return _exclusive(usage, "uncached_input_tokens")
    if "num_model_requests" in usage or "input_cached_tokens" in usage:
        long = _count(usage, "input_cache_write_12h_tokens")
        writes = {"30m": _count(usage, "input_cache_write_tokens") - long, "12h": long}
        return _inclusive(usage, "input_tokens", "output_tokens", _count(usage, "input_cached_tokens"), writes)
    return _exclusive(usage, "input_tokens")


def _exclusive(usage: Mapping[str, Any], input_name: str) -> Tokens:
    split = _object(usage, "cache_creation")
    long, short = _count(split, "ephemeral_1h_input_tokens"), _count(split, "ephemeral_5m_input_tokens")
    written = _count(usage, "cache_creation_input_tokens") or long + short
    if not split:
        short = written  # where nothing is said, the default lifetime
    if long + short != written:
        raise NoUsage(f"cache_creation sums to {long + short}, cache_creation_input_tokens is {written}")
    return Tokens(
        ordinary=_count(usage, input_name, required=True),
        read=_count(usage, "cache_read_input_tokens"),
        writes=_without_zeros({"5m": short, "1h": long}),
        output=_count(usage, "output_tokens"),
    )


def _inclusive(
    usage: Mapping[str, Any], input_name: str, output_name: str, read: int, writes: Mapping[str, int]
) -> Tokens:
    total = _count(usage, input_name, required=True)
    ordinary = total - read - sum(writes.values())
    if min(ordinary, *writes.values()) < 0:
        raise NoUsage(f"more tokens are cached or written than {input_name} has")
    return Tokens(ordinary, read, _without_zeros(writes), _count(usage, output_name))


def _of_response(value: Mapping[str, Any]) -> UsageRecord:
    body, is_batch = _body(value)
    usage = body.get("usage")
    if not isinstance(usage, dict):
        raise NoUsage("has no usage")
    at = next((body[name] for name in ("created", "created_at") if name in body), None)
    return UsageRecord(
        tokens=tokens_of(usage),
        model=_name(value, "model") or _name(body, "model") or UNKNOWN,
        tenant=_tenant(value) or _tenant(body) or UNKNOWN,
        at=_time(next((value[name] for name in ("time", "timestamp") if name in value), at)),
        is_batch=is_batch or usage.get("service_tier") == "batch",
    )


def _body(value: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The response body in a record, and whether it is a batch's."""
    for outer, inner in (("response", "body"), ("result", "message")):
        wrapped = value.get(outer)
        if "custom_id" in value and isinstance(wrapped, dict) and isinstance(wrapped.get(inner), dict):
            return wrapped[inner], True
    response = value.get("response")
    return (response, False) if isinstance(response, dict) and "usage" not in value else (value, False)


def _of_bucket(bucket: Mapping[str, Any]) -> Iterator[UsageRecord]:
    at = _time(bucket.get("starting_at", bucket.get("start_time")))
    for result in bucket["results"]:
        if not isinstance(result, dict):
            raise NoUsage("has a result that is no object")
        num_requests = result.get("num_model_requests", result.get("requests"))
        yield UsageRecord(
            tokens=tokens_of(result),
            model=_name(result, "model") or UNKNOWN,
            tenant=_tenant(result) or UNKNOWN,
            at=at,
            num_requests=num_requests if isinstance(num_requests, int) else None,
            is_batch=result.get("batch") is True or result.get("service_tier") == "batch",
        )


def _tenant(value: Mapping[str, Any]) -> str | None:
    names = ("tenant", "workspace_id", "project_id", "api_key_id", "user_id", "user")
    return next((found for name in names if (found := _name(value, name))), None)


def _name(value: Mapping[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) and found else None


def _time(value: object) -> datetime | None:
    """A time from seconds since 1970 or ISO 8601. Times without a zone are UTC."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
            return at if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        raise NoUsage(f"has a time that can't be read: {str(value)[:40]!r}") from None
    return None


def _object(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise NoUsage(f"{name} is not an object")
    return found


def _count(value: Mapping[str, Any], name: str, *, required: bool = False) -> int:
    found = value.get(name)
    if found is None and not required:
        return 0
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise NoUsage(f"{name} is not a number of tokens")
    return found


def _without_zeros(writes: Mapping[str, int]) -> dict[str, int]:
    return {ttl: count for ttl, count in writes.items() if count}
