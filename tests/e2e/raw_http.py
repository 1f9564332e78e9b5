"""HTTP by hand, over a socket: for what no client library would send."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from server_world import Server

PATIENCE_S = 300


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One connection to a server."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._incoming: BinaryIO = opened.makefile("rb")

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._socket.sendall(piece)

    def reply(self, *, has_body: bool = True) -> Reply:
        """The next reply on this connection. Passes over 100 Continue."""
        while True:
            status = int(self._incoming.readline().split()[1])
            headers: dict[str, str] = {}
            while (line := self._incoming.readline().strip()) != b"":
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            if status != 100:
                break
        length = int(headers.get("content-length", "0")) if has_body else 0
        body = self._incoming.read(length) if "content-length" in headers or not has_body else self._incoming.read()
        return Reply(status, headers, body)

    def close(self) -> None:
        self._incoming.close()
        self._socket.close()


@contextmanager
def connected(server: Server) -> Iterator[Connection]:
    at = urlsplit(server.url)
    assert at.hostname is not None
    assert at.port is not None
    connection = Connection(socket.create_connection((at.hostname, at.port), timeout=PATIENCE_S))
    try:
        yield connection
    finally:
        connection.close()


def head(path: str, *, key: str = "red-key", **headers: object) -> bytes:
    """A POST's request line and headers. Underscores in names stand for hyphens."""
    fields = {"host": "x", "authorization": f"Bearer {key}", "content_type": "application/json", **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode()


def post(path: str, body: object, *, key: str = "red-key", **headers: object) -> bytes:
    """A whole POST of a JSON body."""
    raw = json.dumps(body).encode()
    return head(path, key=key, content_length=len(raw), **headers) + raw


def chunked(raw: bytes, *, size: int) -> Iterator[bytes]:
    """A body in chunks, with its end."""
    for start in range(0, len(raw), size):
        piece = raw[start : start + size]
        yield f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    yield b"0\r\n\r\n"
