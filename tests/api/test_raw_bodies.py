"""Bodies as bytes, before any field is read: what is no JSON is told as such, and what is odd JSON does no harm."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from full_bodies import CHAT, COMPLETIONS, COUNT, FULL, MESSAGES
from starlette.testclient import TestClient

from anaphora.api.app import ApiSettings, build_app
from anaphora.engine.engine import Engine

HELLO = [{"role": "user", "content": "Hello"}]
SMALL = json.dumps({"model": "tiny", "messages": HELLO, "prompt": "Hello", "max_tokens": 1})
POST = pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, COUNT])


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[TestClient]:
    with TestClient(build_app(engine, ApiSettings(("tiny",), max_body_bytes=4_000_000))) as opened:
        yield opened


def problem(response: Any) -> str:
    """The message of a refusal in its API's shape."""
    assert response.status_code == 400, response.text
    body = response.json()
    is_anthropic = response.request.url.path.startswith(MESSAGES)
    assert set(body["error"]) == ({"type", "message"} if is_anthropic else {"message", "type", "param", "code"})
    assert body["error"]["type"] == "invalid_request_error"
    return str(body["error"]["message"])


def with_field(name: str, raw: str) -> str:
    """A small good body and one more field, whose value is this JSON text."""
    return f'{SMALL[:-1]}, "{name}": {raw}}}'


@POST
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not valid JSON"),
        (b"\x00\x01", "not valid JSON"),
        (b"null", "must be a JSON object"),
        (b"[]", "must be a JSON object"),
        (b'"model"', "must be a JSON object"),
        (SMALL[:-5].encode(), "not valid JSON"),
        (SMALL.encode() * 2, "Extra data"),
        (SMALL.encode("utf-16"), "not valid UTF-8"),
        (SMALL.replace("Hello", "H\xe9llo").encode("latin-1"), "not valid UTF-8"),
        (SMALL.encode().replace(b"Hello", b"\xed\xa0\x80"), "not valid UTF-8"),
        (SMALL.replace("Hello", "\\ud800").encode(), "surrogate"),
        (with_field("temperature", "NaN").encode(), "NaN is not JSON"),
        (with_field("temperature", "-Infinity").encode(), "-Infinity is not JSON"),
        (with_field("seed", "9" * 5000).encode(), "too many digits"),
        (b"[" * 100_000, "nested more than"),
        (with_field("other", "[" * 10_000 + "]" * 10_000).encode(), "nested more than"),
        (with_field("other", '{"a":' * 1000 + "1" + "}" * 1000).encode(), "nested more than"),
    ],
)
def test_what_is_no_json_is_told_as_such(client: TestClient, path: str, raw: bytes, words: str) -> None:
    assert words in problem(client.post(path, content=raw))


@POST
@pytest.mark.parametrize(
    "raw",
    [
        f"\ufeff{SMALL}",
        f"\n\t {SMALL} \r\n",
        SMALL.replace("Hello", "\\ud83d\\ude00 \\u0000 \u202e\U0010ffff"),
        with_field("model", '"tiny"'),
        with_field("messages", json.dumps(HELLO)).replace('"messages"', '"messages": 7, "messages"', 1),
        with_field("other", json.dumps("x" * 1_000_000)),
        with_field("x" * 1_000_000, "1"),
        with_field("metadata", "[" * 100 + "]" * 100),
        with_field("other", json.dumps(list(range(100_000)))),
    ],
    ids=["mark", "space", "odd characters", "same twice", "last wins", "long value", "long name", "deep", "many"],
)
def test_odd_json_does_no_harm(client: TestClient, path: str, raw: str) -> None:
    assert client.post(path, content=raw.encode()).status_code == 200


@POST
def test_long_text_in_a_field_is_refused_in_few_words(client: TestClient, path: str) -> None:
    for name in FULL[path]:
        response = client.post(path, content=with_field(name, json.dumps("x" * 1_000_000)).encode())
        assert response.status_code in (200, 400, 404)
        assert len(response.text) < 2000


@POST
@pytest.mark.parametrize(
    "kind", ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "application/jsonp"]
)
def test_body_of_another_type_is_refused(client: TestClient, path: str, kind: str) -> None:
    assert "content-type" in problem(client.post(path, content=SMALL, headers={"content-type": kind}))


@POST
@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json", ""])
def test_json_by_its_names_or_by_none_is_taken(client: TestClient, path: str, kind: str) -> None:
    assert client.post(path, content=SMALL, headers={"content-type": kind}).status_code == 200


@POST
def test_compressed_body_is_refused(client: TestClient, path: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert "content-encoding" in problem(client.post(path, content=gzip.compress(SMALL.encode()), headers=headers))
