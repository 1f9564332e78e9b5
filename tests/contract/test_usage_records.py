"""Usage in every form it comes in, as one: what is inside the input count, for whom, when; and what can't be read."""

from datetime import UTC, datetime
from typing import Any

import pytest

from anaphora.contract.prices import Tokens
from anaphora.contract.usage_records import NoUsage, UsageRecord, records_of, tokens_of

ANTHROPIC = {
    "input_tokens": 1000,
    "cache_read_input_tokens": 4000,
    "cache_creation_input_tokens": 5000,
    "cache_creation": {"ephemeral_5m_input_tokens": 2000, "ephemeral_1h_input_tokens": 3000},
    "output_tokens": 7,
}
CHAT = {
    "prompt_tokens": 10000,
    "completion_tokens": 7,
    "total_tokens": 10007,
    "prompt_tokens_details": {"cached_tokens": 4000, "cache_write_tokens": 5000},
}
RESPONSES = {
    "input_tokens": 10000,
    "output_tokens": 7,
    "input_tokens_details": {
        "cached_tokens": 4000,
        "cache_write_tokens": 5000,
        "cache_write_tokens_details": {"ttl_30m_tokens": 2000, "ttl_12h_tokens": 3000},
    },
}


@pytest.mark.parametrize(
    ("usage", "writes"),
    [
        (ANTHROPIC, {"5m": 2000, "1h": 3000}),
        ({**ANTHROPIC, "cache_creation": None}, {"5m": 5000}),
        (CHAT, {"30m": 5000}),
        (RESPONSES, {"30m": 2000, "12h": 3000}),
    ],
)
def test_every_hosts_usage_is_the_same_tokens(usage: dict[str, Any], writes: dict[str, int]) -> None:
    assert tokens_of(usage) == Tokens(1000, 4000, writes, 7)
    assert tokens_of(usage).input == 10_000


def test_counts_that_are_not_given_are_zero() -> None:
    assert tokens_of({"input_tokens": 5, "output_tokens": 1}) == Tokens(5, output=1)
    assert tokens_of({"prompt_tokens": 5, "prompt_tokens_details": None}) == Tokens(5)


def one(value: dict[str, Any]) -> UsageRecord:
    (record,) = records_of(value)
    return record


def test_a_line_of_the_request_log() -> None:
    line = {"time": "2026-11-30T12:00:00+00:00", "tenant": "red", "model": "m", "usage": CHAT}
    record = one(line)
    assert (record.tenant, record.model, record.num_requests) == ("red", "m", 1)
    assert record.at == datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_a_response_body_and_one_that_is_wrapped() -> None:
    body = {"id": "x", "created": 1_700_000_000, "model": "m", "usage": RESPONSES}
    assert one(body).at == one({"response": body}).at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert one(body).tenant == "unknown"


def test_lines_of_batch_results() -> None:
    openai = {"custom_id": "a", "response": {"status_code": 200, "body": {"model": "m", "usage": CHAT}}}
    anthropic = {"custom_id": "a", "result": {"type": "succeeded", "message": {"model": "m", "usage": ANTHROPIC}}}
    for line in (openai, anthropic):
        assert (one(line).is_batch, one(line).model) == (True, "m")
    assert one({"model": "m", "usage": {**ANTHROPIC, "service_tier": "batch"}}).is_batch


def test_usage_exports_of_both_hosts() -> None:
    openai = {
        "data": [
            {
                "start_time": 1_700_000_000,
                "results": [
                    {
                        "model": "gpt", "project_id": "p", "num_model_requests": 3, "batch": True,
                        "input_tokens": 10000, "input_cached_tokens": 4000, "output_tokens": 7,
                        "input_cache_write_tokens": 5000, "input_cache_write_12h_tokens": 3000,
                    }
                ],
            }
        ]
    }  # fmt: skip
    record = one(openai)
    assert record.tokens == Tokens(1000, 4000, {"30m": 2000, "12h": 3000}, 7)
    assert (record.model, record.tenant, record.num_requests, record.is_batch) == ("gpt", "p", 3, True)
    uncached = {name: value for name, value in ANTHROPIC.items() if name != "input_tokens"}
    result = {**uncached, "uncached_input_tokens": 1000, "model": "c", "workspace_id": "w", "requests": 4}
    record = one({"data": [{"starting_at": "2026-11-30T00:00:00Z", "results": [result]}]})
    assert record.tokens == Tokens(1000, 4000, {"5m": 2000, "1h": 3000}, 7)
    assert (record.model, record.tenant, record.num_requests, record.is_one_request) == ("c", "w", 4, False)
    assert record.at == datetime(2026, 11, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"model": "m"}, "has no usage"),
        ({"usage": {"output_tokens": 3}}, "input_tokens is not"),
        ({"usage": {"input_tokens": -1}}, "input_tokens is not"),
        ({"usage": {"input_tokens": True}}, "input_tokens is not"),
        ({"usage": {"input_tokens": 1, "cache_creation": []}}, "cache_creation is not an object"),
        ({"usage": {**ANTHROPIC, "cache_creation_input_tokens": 1}}, "sums to 5000"),
        ({"usage": {**CHAT, "prompt_tokens": 8999}}, "more tokens are cached or written"),
        ({"time": "yesterday", "usage": CHAT}, "time that can't be read"),
        ({"time": 1e300, "usage": CHAT}, "time that can't be read"),
        ({"results": ["x"]}, "no object"),
    ],
)
def test_what_cannot_be_read_says_why(value: dict[str, Any], words: str) -> None:
    with pytest.raises(NoUsage, match=words):
        list(records_of(value))
