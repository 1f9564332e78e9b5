"""Goal: every answer names its request, its organization and the room that is left, in the names its API has.
Method: the functions alone, and the official clients' raw responses, of answers and of errors.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import anthropic
import openai
import pytest
from hosted_world import MODEL, Hosted, hosted

from anaphora.api.errors import Protocol
from anaphora.api.limit_headers import Room, host_headers, limit_headers
from anaphora.engine.engine import Engine
from anaphora.engine.request import Tenant

NOON = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server(roomy: Engine) -> Iterator[Hosted]:
    with hosted(roomy) as running:
        yield running


def test_openai_tells_requests_and_tokens() -> None:
    assert limit_headers(Protocol.OPENAI, Room(10, 4, 900, 0), NOON) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "0s",
        "x-ratelimit-limit-tokens": "900",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1s",
    }


def test_anthropic_tells_four_kinds_and_times() -> None:
    headers = limit_headers(Protocol.ANTHROPIC, Room(10, -1, 900, 7), NOON)
    kinds = ("requests", "tokens", "input-tokens", "output-tokens")
    wanted = {f"anthropic-ratelimit-{kind}-{name}" for kind in kinds for name in ("limit", "remaining", "reset")}
    assert set(headers) == wanted
    assert headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert headers["anthropic-ratelimit-requests-reset"] == "2026-12-01T12:00:01Z"
    assert headers["anthropic-ratelimit-tokens-reset"] == "2026-12-01T12:00:00Z"


def test_an_organization_is_the_same_every_time_and_no_tenants_name() -> None:
    one, same, other = (host_headers(Protocol.OPENAI, Tenant(name), 0.0105) for name in ("acme", "acme", "rival"))
    assert one == same != other
    assert "acme" not in str(one)
    assert (one["openai-processing-ms"], one["openai-version"]) == ("10", "2020-10-01")
    assert "openai-organization" not in host_headers(Protocol.OPENAI, None, 0.0)
    assert host_headers(Protocol.ANTHROPIC, None, 0.0) == {}


def test_answers_and_errors_of_chat_have_the_headers(server: Hosted) -> None:
    client = server.gpt()
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=1)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=0)
    for headers in (raw.headers, caught.value.response.headers):
        assert headers["x-request-id"].startswith("req_")
        assert 0 < int(headers["x-ratelimit-remaining-requests"]) <= int(headers["x-ratelimit-limit-requests"])
        assert headers["openai-organization"].startswith("org-")
        assert int(headers["openai-processing-ms"]) >= 0
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]


def test_answers_streams_and_errors_of_messages_have_the_headers(server: Hosted) -> None:
    client = server.claude()
    raw = client.messages.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=1)
    stream = client.messages.create(model=MODEL, messages=HELLO, max_tokens=1, stream=True)
    with stream:
        list(stream)
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="nobody", messages=HELLO, max_tokens=1)
    for headers in (raw.headers, stream.response.headers, caught.value.response.headers):
        assert headers["request-id"].startswith("req_")
        assert int(headers["anthropic-ratelimit-input-tokens-limit"]) > 0
        assert headers["anthropic-organization-id"] == raw.headers["anthropic-organization-id"]
    body: Any = caught.value.body
    assert body["request_id"] == caught.value.response.headers["request-id"]


def test_who_is_not_known_gets_no_organization(server: Hosted) -> None:
    with pytest.raises(anthropic.AuthenticationError) as caught:
        server.claude("wrong-key").messages.create(model=MODEL, messages=HELLO, max_tokens=1)
    assert "anthropic-organization-id" not in caught.value.response.headers


@pytest.mark.parametrize(
    "betas", [["prompt-caching-2024-07-31"], ["extended-cache-ttl-2025-04-11", "made-up-2026-01-01"]]
)
def test_old_and_unknown_betas_are_accepted(server: Hosted, betas: list[str]) -> None:
    system: Any = [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    answer = server.claude().beta.messages.create(model=MODEL, messages=HELLO, max_tokens=1, system=system, betas=betas)
    created = answer.usage.cache_creation
    assert created is not None
    assert created.ephemeral_1h_input_tokens + (answer.usage.cache_read_input_tokens or 0) > 0
