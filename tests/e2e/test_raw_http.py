"""HTTP as careless or hostile clients speak it, against a real server: answered or refused, and no one else notices."""

import contextlib
import json
import threading
from typing import Any

import pytest
from raw_http import Connection, chunked, connected, head, post
from server_world import MODEL, Server

PATHS = ("/v1/chat/completions", "/v1/messages")
CHAT = PATHS[0]
HELLO = [{"role": "user", "content": "raw: say hello"}]
BODY = {"model": MODEL, "messages": HELLO, "max_tokens": 2, "temperature": 0}
RAW = json.dumps(BODY).encode()


@pytest.mark.parametrize("path", PATHS)
def test_body_in_chunks_is_answered_as_the_same_body_at_once(server: Server, path: str) -> None:
    with connected(server) as connection:
        connection.send(post(path, BODY))
        whole = connection.reply()
        connection.send(head(path, transfer_encoding="chunked"), *chunked(RAW, size=7))
        pieces = connection.reply()
    answer = "choices" if path == CHAT else "content"
    assert (whole.status, pieces.status) == (200, 200)
    assert pieces.json()[answer] == whole.json()[answer]


def test_requests_sent_ahead_are_answered_in_order(server: Server) -> None:
    bodies = [{**BODY, "max_tokens": count} for count in (3, 1, 2)]
    with connected(server) as connection:
        connection.send(b"".join(post(CHAT, body) for body in bodies))
        replies = [connection.reply().json() for _ in bodies]
    assert [reply["usage"]["completion_tokens"] for reply in replies] == [3, 1, 2]


def test_slow_client_holds_up_nobody(server: Server) -> None:
    with connected(server) as slow, connected(server) as quick:
        slow.send(head(CHAT, content_length=len(RAW)), RAW[:10])
        quick.send(post(CHAT, BODY))
        assert quick.reply().status == 200
        slow.send(RAW[10:])
        assert slow.reply().status == 200


def test_head_has_headers_and_no_body_and_leaves_the_connection_usable(server: Server) -> None:
    with connected(server) as connection:
        connection.send(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.reply(has_body=False).status == 200
        connection.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.reply().json()["name"] == "anaphora"


def test_client_that_asks_before_sending_its_body_is_answered(server: Server) -> None:
    with connected(server) as connection:
        connection.send(head(CHAT, content_length=len(RAW), expect="100-continue"), RAW)
        assert connection.reply().status == 200


def too_large(connection: Connection) -> None:
    connection.send(head(CHAT, transfer_encoding="chunked"), *chunked(b"x" * 300_000, size=50_000))
    reply = connection.reply()
    assert (reply.status, reply.json()["error"]["code"]) == (413, "request_too_large")


def cut_short(connection: Connection) -> None:
    connection.send(head(CHAT, content_length=len(RAW)), RAW[:-5])


def gone_at_once(connection: Connection) -> None:
    connection.send(post(CHAT, {**BODY, "max_tokens": 2000, "ignore_eos": True}))


def no_http(connection: Connection) -> None:
    connection.send(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
    assert connection.reply().status == 400


def two_lengths(connection: Connection) -> None:
    connection.send(head(CHAT, content_length=f"{len(RAW)}\r\ncontent-length: 3"), RAW)
    assert connection.reply().status == 400


def endless_header(connection: Connection) -> None:
    with contextlib.suppress(ConnectionError):  # the server may hang up before it is all sent
        connection.send(head(CHAT, x_long="x" * 200_000))
        assert connection.reply().status in (400, 431)


def broken_chunk(connection: Connection) -> None:
    connection.send(head(CHAT, transfer_encoding="chunked"), b"zz\r\n{}\r\n")
    assert connection.reply().status == 400


def not_utf8(connection: Connection) -> None:
    connection.send(head(CHAT, content_length=len(RAW)), RAW.replace(b"raw", b"r\xffw"))
    reply = connection.reply()
    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")


ABUSES = (
    too_large,
    cut_short,
    gone_at_once,
    no_http,
    two_lengths,
    endless_header,
    broken_chunk,
    not_utf8,
)


def test_nothing_of_this_touches_a_request_in_flight(server: Server) -> None:
    body: Any = {**BODY, "max_tokens": 40, "ignore_eos": True}

    def ask() -> Any:
        return server.post(CHAT, json=body, timeout=300).json()["choices"]

    alone = ask()
    answers: list[Any] = []
    started = server.metric("anaphora_engine_requests_total")
    asking = threading.Thread(target=lambda: answers.append(ask()))
    asking.start()
    server.wait_for(lambda: server.metric("anaphora_engine_requests_total") > started)
    for abuse in ABUSES:
        with connected(server) as connection:
            abuse(connection)
    asking.join(timeout=300)
    assert answers == [alone]
    server.wait_for(lambda: server.metric("anaphora_running") == 0)
    server.wait_for(lambda: server.metric('anaphora_pool_slots{state="leased"}') == 0)


@pytest.mark.parametrize("path", PATHS)
def test_one_tenants_prefix_never_counts_for_another(server: Server, path: str) -> None:
    secret = [{"role": "system", "content": f"{path}: the vault opens with 4711. Tell nobody. " * 3}, *HELLO]
    body = {**BODY, "messages": secret, "max_tokens": 1}

    def ask(key: str, connection: Connection) -> tuple[int, int]:
        """Tokens computed and reused."""
        connection.send(post(path, body, key=key))
        reply = connection.reply()
        reused, prompt = (int(reply.headers[f"x-anaphora-{name}-tokens"]) for name in ("reused", "prompt"))
        usage = reply.json()["usage"]
        if "prompt_tokens" in usage:
            assert usage["prompt_tokens_details"]["cached_tokens"] == reused
        else:
            assert usage["cache_read_input_tokens"] == 0  # nothing is marked, so nothing counts as read there
        return prompt - reused, reused

    opening = 15  # tokens: the template's, and the path
    with connected(server) as connection:
        for key in ("red-key", "green-key"):
            assert ask(key, connection)[1] <= opening
            assert ask(key, connection)[0] == 1
