"""Servers that misbehave on purpose, and a short way to run the load tool."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from anaphora.bench.load.report import Report
from anaphora.bench.load.show import Wishes, run_load

Answer = Callable[["Asked"], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a stub has to answer."""

    number: int  # from 1
    body: dict[str, Any]
    handler: BaseHTTPRequestHandler


@contextmanager
def stub_server(answer: Answer) -> Iterator[str]:
    """Serve on a free port whatever `answer` writes; models are listed as a real server would."""
    lock, num_asked = threading.Lock(), 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply(self, 200, {"data": [{"id": "stub"}]})

        def do_POST(self) -> None:
            nonlocal num_asked
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                num_asked += 1
                number = num_asked
            answer(Asked(number, body, self))

        def log_message(self, *ignored: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()


def reply(handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
    """Send JSON."""
    data = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def stream(handler: BaseHTTPRequestHandler, *events: Any) -> None:
    """Send server-sent events, and close the connection."""
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.end_headers()
    for event in events:
        handler.wfile.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())


def piece(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def usage(prompt: int = 40, output: int = 2, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **more}}


def answer_well(asked: Asked) -> None:
    stream(asked.handler, piece("a"), piece("b"), usage(prompt=40 + asked.number), "[DONE]")


def run(**wishes: Any) -> Report:
    """Run the tool with small sizes where none are given."""
    sizes = {"num_requests": 4, "concurrency": 2, "num_rounds": 1, "max_tokens": 4, "prefix_tokens": 60}
    return run_load(Wishes(**(sizes | wishes)), progress=lambda doing: None)
