"""A server that is killed with SIGKILL, and the one after it. Method: real processes, the default model, one folder."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

DOCUMENT = "The harbour master wrote down every ship that came in, its cargo, its captain and the weather. " * 30
MAX_POLLS = 3000


@contextlib.contextmanager
def server_on(folder: Path) -> Iterator[httpx.Client]:
    """Run a server until the block ends; then it is killed, not stopped."""
    flags = ("--port", "0", "--kv-pool-bytes", "256MiB", "--disk-cache-dir", str(folder))
    command = [sys.executable, "-m", "anaphora.cli", "serve", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = next(line.split()[-1] for line in process.stdout if line.startswith("Serving "))
        with httpx.Client(base_url=url, timeout=120) as client:
            yield client
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def ask(client: httpx.Client) -> tuple[str, httpx.Response]:
    body = {"model": "smollm2-135m-instruct", "prompt": DOCUMENT, "max_tokens": 16, "temperature": 0}
    response = client.post("/v1/completions", json=body)
    response.raise_for_status()
    return response.json()["choices"][0]["text"], response


def test_a_server_after_a_kill_knows_what_the_one_before_it_had_stored(tmp_path: Path) -> None:
    with server_on(tmp_path) as client:
        text, response = ask(client)
        num_tokens = int(response.headers["x-anaphora-prompt-tokens"])
        assert int(response.headers["x-anaphora-computed-tokens"]) == num_tokens
        assert any(metric(client, "anaphora_stored_tokens_total") >= num_tokens for _ in range(MAX_POLLS))
        ask(client)
    with server_on(tmp_path) as client:
        again, response = ask(client)
        assert again == text
        assert int(response.headers["x-anaphora-computed-tokens"]) == 1
        assert response.headers["x-anaphora-source"] in ("device", "disk")
        assert metric(client, "anaphora_loaded_tokens_total") >= num_tokens - 1
        assert metric(client, "anaphora_disk_failures_total") == 0
