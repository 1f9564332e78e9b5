"""A request that fails while it runs: a status before the first token, the protocol's error event after it.

Method: the real application over the real engine, except that the stream of deltas is one that the test fills.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from wire_world import account, delta

from anaphora.api.answers import AnswerReader
from anaphora.api.app import ApiSettings, build_app
from anaphora.api.serving import Serving
from anaphora.api.source import Source
from anaphora.engine.engine import Engine
from anaphora.engine.request import Delta, GenerationRequest, RequestId, Sampling
from anaphora.engine.stream import Stream
from anaphora.errors import AnaphoraError, EngineFailure, EngineStopped, RequestTimeout

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}

Filled = Callable[..., list[Stream]]


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    with TestClient(build_app(engine, ApiSettings(("tiny",)))) as opened:
        yield opened


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Filled:
    """Let every request be answered with these items; get the streams it was answered from."""

    def filled(*items: Delta | AnaphoraError) -> list[Stream]:
        streams: list[Stream] = []

        def submit(self: Serving, rendered: Any, prompt: Any, sampling: Sampling, **rest: Any) -> Source:
            request = GenerationRequest(RequestId("r"), rendered.tokens, Sampling())
            stream = Stream(request, abort=aborted.append)
            stream.receipt = account().receipts[0]
            for item in items:
                stream.put(item)
            stream.close()
            return Source([stream], [AnswerReader(1, None, str)])

        aborted = streams
        monkeypatch.setattr(Serving, "submit_prompt", submit)
        return streams

    return filled


@pytest.mark.parametrize(
    ("error", "statuses"),
    [
        (RequestTimeout("Late."), {CHAT: 408, MESSAGES: 504}),
        (EngineFailure("secret"), {CHAT: 500, MESSAGES: 500}),
        (EngineStopped("Closing."), {CHAT: 503, MESSAGES: 503}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_failure_before_the_first_token_has_a_status(
    client: TestClient, fill: Filled, error: AnaphoraError, statuses: dict[str, int], stream: bool
) -> None:
    aborted = fill(error)
    for path, status in statuses.items():
        response = client.post(path, json={**BODY, "stream": stream})
        assert response.status_code == status
        assert response.json()["error"]["message"]
        assert "secret" not in response.text
    assert len(aborted) == 2


def test_failure_after_the_first_token_is_no_200_when_nothing_was_sent(client: TestClient, fill: Filled) -> None:
    fill(delta("Hel"), EngineFailure("secret"))
    assert client.post(CHAT, json=BODY).status_code == 500
    assert client.post(MESSAGES, json=BODY).status_code == 500


@pytest.mark.parametrize(
    "last", [RequestTimeout("Late."), delta("", finish_reason="error", error="x"), delta("", finish_reason="abort")]
)
def test_failure_inside_a_stream_is_the_protocols_error_event(
    client: TestClient, fill: Filled, last: Delta | AnaphoraError
) -> None:
    aborted = fill(delta("Hel"), last)
    openai = client.post(CHAT, json={**BODY, "stream": True})
    assert openai.status_code == 200
    assert set(json.loads(openai.text.rsplit("data: ", 1)[1])) == {"error"}
    assert "[DONE]" not in openai.text
    anthropic = client.post(MESSAGES, json={**BODY, "stream": True})
    assert anthropic.text.split("event: ")[-1].startswith('error\ndata: {"type": "error"')
    assert "message_stop" not in anthropic.text
    assert len(aborted) == 2
    assert 'anaphora_stream_errors_total{endpoint="/v1/messages"} 1.0' in client.get("/metrics").text


def test_error_that_nobody_raised_on_purpose_is_logged_and_hidden(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Serving, *arguments: Any, **rest: Any) -> Source:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Serving, "submit_prompt", broken)
    response = client.post(CHAT, json=BODY)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.headers["request-id"] in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_request_that_takes_too_long_is_ended_in_each_shape_and_frees_everything(engine: Engine) -> None:
    body = {**BODY, "max_tokens": 400, "n": 8, "ignore_eos": True}
    with TestClient(build_app(engine, ApiSettings(("tiny",), request_timeout_s=0.1))) as hasty:
        late = hasty.post(CHAT, json=body)
        assert (late.status_code, late.json()["error"]["code"]) == (408, "request_timeout")
        streamed = hasty.post(CHAT, json={**body, "stream": True})
        assert "timeout_error" in streamed.text
        assert "[DONE]" not in streamed.text
        assert engine.stats().num_leased_slots == 0


@pytest.mark.parametrize(("path", "status"), [(CHAT, 408), (MESSAGES, 504)])
def test_body_that_never_comes_is_not_waited_for(engine: Engine, path: str, status: int) -> None:
    """Method: the application as a server calls it, with a client that sends headers and then nothing."""
    app = build_app(engine, ApiSettings(("tiny",), request_timeout_s=0.01))
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == status
    assert "did not arrive" in json.loads(sent[1]["body"])["error"]["message"]
