"""Servers that tests share: starting one takes longer than most tests."""

import json
from collections.abc import Iterator

import pytest
from server_world import METRICS_KEY, MODEL, Server, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    keys = json.dumps({f"{tenant}-key": tenant for tenant in ("red", "blue", "green")})
    flags = ("--api-keys", keys, "--metrics-key", METRICS_KEY, "--max-body-bytes", "200kB", "--served-name", MODEL)
    yield from running_server(*flags)


@pytest.fixture(scope="module")
def narrow() -> Iterator[Server]:
    """A server that runs one sequence at a time and lets one request wait."""
    flags = ("--max-sequences", "1", "--queue-length", "1", "--metrics-key", METRICS_KEY, "--request-timeout-s", "20")
    yield from running_server(*flags)
