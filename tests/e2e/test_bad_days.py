"""Bad input, wrong keys, full queues and clients that leave: each gets its own answer, and nothing else is lost."""

import contextlib
import threading
from typing import Any

import anthropic
import httpx
import openai
import pytest
from server_world import MODEL, Server, running_server

HELLO: Any = [{"role": "user", "content": "Hello"}]
IMAGE: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
PICTURE: Any = [
    {
        "role": "user",
        "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}],
    }
]
LONG: Any = [{"role": "user", "content": "word " * 9000}]


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"temperature": "hot"}, openai.BadRequestError, "temperature"),
        ({"messages": IMAGE}, openai.BadRequestError, "messages[0].content[0].type"),
        ({"messages": LONG}, openai.BadRequestError, "messages"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
    ],
)
def test_openai_client_is_told_the_field(
    server: Server, fields: dict[str, Any], error: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(error) as caught:
        server.openai().chat.completions.create(**{"model": MODEL, "messages": HELLO, **fields})
    assert caught.value.param == param
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        ({"model": "other"}, anthropic.NotFoundError, "other"),
        ({"extra_body": {"temperature": "hot"}}, anthropic.BadRequestError, "temperature"),
        ({"messages": PICTURE}, anthropic.BadRequestError, "messages.0.content.0.type"),
        ({"messages": LONG}, anthropic.BadRequestError, "prompt is too long"),
        ({"max_tokens": 9000}, anthropic.BadRequestError, "max_tokens"),
        ({"max_tokens": -1}, anthropic.BadRequestError, "max_tokens"),
    ],
)
def test_anthropic_client_is_told_the_field(
    server: Server, fields: dict[str, Any], error: type[anthropic.APIStatusError], words: str
) -> None:
    with pytest.raises(error) as caught:
        server.anthropic().messages.create(**{"model": MODEL, "messages": HELLO, "max_tokens": 1, **fields})
    assert words in caught.value.message
    assert caught.value.request_id


def test_wrong_key_is_refused_by_both(server: Server) -> None:
    with pytest.raises(openai.AuthenticationError):
        server.openai("wrong").models.list()
    with pytest.raises(anthropic.AuthenticationError):
        server.anthropic("wrong").messages.create(model=MODEL, messages=HELLO, max_tokens=1)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_malformed_and_oversized_bodies(server: Server, path: str) -> None:
    assert server.post(path, content=b'{"model": ').status_code == 400
    assert server.post(path, content=b"x" * 1_000_000).status_code == 413
    assert httpx.head(server.url).status_code == 200


def aborted_after(server: Server, leave: Any) -> None:
    """See that `leave` ends one request before its time, and that the engine holds nothing of it."""
    before = server.metric("anaphora_engine_aborted_total")
    leave()
    server.wait_for(lambda: server.metric("anaphora_engine_aborted_total") > before)
    server.wait_for(lambda: server.metric("anaphora_running") == 0)
    server.wait_for(lambda: server.metric('anaphora_pool_slots{state="leased"}') == 0)


def test_client_that_leaves_a_stream_frees_everything(server: Server) -> None:
    def leave() -> None:
        stream: Any = server.openai().chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()

    aborted_after(server, leave)


def test_client_that_gives_up_waiting_frees_everything(server: Server) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 4000, "ignore_eos": True}

    def leave() -> None:
        with pytest.raises(httpx.ReadTimeout):
            server.post("/v1/chat/completions", json=body, timeout=1)

    aborted_after(server, leave)


def test_full_queue_is_said_in_both_shapes_and_those_within_are_answered(narrow: Server) -> None:
    answers: list[str] = []
    running: Any = narrow.openai().chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(running))

    def wait_in_the_queue() -> None:
        answer = narrow.openai().chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2)
        answers.append(answer.choices[0].message.content or "")

    waiting = threading.Thread(target=wait_in_the_queue)
    waiting.start()
    narrow.wait_for(lambda: narrow.metric("anaphora_waiting") == 1)
    with pytest.raises(openai.RateLimitError) as limited:
        narrow.openai().chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1)
    with pytest.raises(anthropic.APIStatusError) as overloaded:
        narrow.anthropic().messages.create(model=MODEL, messages=HELLO, max_tokens=1)
    running.close()
    waiting.join(timeout=60)
    assert int(limited.value.response.headers["retry-after"]) >= 1
    assert overloaded.value.status_code == 529
    assert int(overloaded.value.response.headers["retry-after"]) >= 1
    assert answers
    assert answers[0]


def test_server_that_is_stopped_ends_running_requests_with_an_error_in_shape() -> None:
    with contextlib.contextmanager(running_server)("--shutdown-timeout-s", "0") as stopping:
        stream: Any = stopping.openai().chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stopping.stop()
        with pytest.raises(openai.APIError, match="engine was closed"):
            list(stream)


def test_server_that_is_stopped_lets_running_requests_finish() -> None:
    with contextlib.contextmanager(running_server)("--shutdown-timeout-s", "120") as stopping:
        stream: Any = stopping.openai().chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=20, stream=True, extra_body={"ignore_eos": True}
        )
        chunks = [next(iter(stream))]
        stopping.stop()
        chunks += list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert chunks[-1].anaphora["generated_tokens"] == 20
        with pytest.raises(httpx.ConnectError):
            stopping.post("/v1/chat/completions", json={})
