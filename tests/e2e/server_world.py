"""Real server processes with the default model, and the two real SDKs as their clients."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai
import pytest

MODEL = "smollm2-135m-instruct"
METRICS_KEY = "watch"
MAX_POLLS = 2000


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. Clients made here are closed with it."""

    url: str
    open_clients: contextlib.ExitStack
    stop: Callable[[], None]  # asks it to stop, as an operator does

    def openai(self, key: str = "red-key") -> openai.OpenAI:
        return self.open_clients.enter_context(openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0))

    def anthropic(self, key: str = "red-key") -> anthropic.Anthropic:
        return self.open_clients.enter_context(anthropic.Anthropic(base_url=self.url, api_key=key, max_retries=0))

    def post(self, path: str, **request: Any) -> httpx.Response:
        headers = {"authorization": "Bearer red-key", **request.pop("headers", {})}
        return httpx.post(self.url + path, headers=headers, timeout=request.pop("timeout", 60), **request)

    def metric(self, name: str) -> float:
        """The value of one metric now."""
        text = httpx.get(f"{self.url}/metrics", headers={"authorization": f"Bearer {METRICS_KEY}"}).text
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Ask again and again until the condition holds; every question is a request, so time passes."""
        assert any(condition() for _ in range(MAX_POLLS)), "the server never got there"


def running_server(*flags: str) -> Iterator[Server]:
    """Start a server on a free port; stop it with SIGTERM and see that it leaves in order."""
    sizes = ("--kv-pool-bytes", "256MiB", "--disk-cache-bytes", "0")  # nothing of an earlier run is found
    command = [sys.executable, "-m", "anaphora.cli", "serve", "--port", "0", *sizes, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Serving "):
                break
        else:
            assert process.stderr is not None
            pytest.fail(f"the server did not start: {''.join(lines)}{process.stderr.read()}")
        with contextlib.ExitStack() as clients:
            yield Server(line.split()[-1], clients, process.terminate)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGTERM)
        assert "Traceback" not in errors
    finally:
        process.kill()
        process.wait()
