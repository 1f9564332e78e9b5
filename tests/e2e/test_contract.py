"""A real server under a hosted model's profile: its minimum, its prices, its log, and `anaphora cost` over that."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_world import MODEL, Server, running_server

HANDBOOK = "The shop opens at nine and closes at six. Cameras are tested before they are sold. " * 40


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "requests.jsonl"


@pytest.fixture(scope="module")
def opus(log: Path) -> Iterator[Server]:
    flags = (
        "--profile",
        "anthropic:claude-opus-5",
        "--request-log",
        str(log),
        "--api-keys",
        "red-key:red,blue-key:blue",
    )
    yield from running_server(*flags)


def ask(server: Server, handbook: str, question: str, *, key: str = "red-key") -> Any:
    system: Any = [{"type": "text", "text": handbook, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    messages: Any = [{"role": "user", "content": question}]
    return server.anthropic(key).messages.create(model=MODEL, max_tokens=2, system=system, messages=messages)


def test_usage_prices_and_log_tell_one_story(opus: Server, log: Path, tmp_path: Path) -> None:
    short = ask(opus, "Be brief.", "When?")
    assert (short.usage.cache_creation_input_tokens, short.usage.cache_read_input_tokens) == (0, 0)
    first, second, other = (
        ask(opus, HANDBOOK, q, key=k) for q, k in (("a?", "red-key"), ("b?", "red-key"), ("a?", "blue-key"))
    )
    written = first.usage.cache_creation.ephemeral_1h_input_tokens
    assert written > 512
    assert second.usage.cache_read_input_tokens == written
    assert other.usage.cache_read_input_tokens == 0
    assert second.anaphora["contract"]["saved_usd"] > 0 > first.anaphora["contract"]["saved_usd"]
    report = tmp_path / "cost.json"
    command = [sys.executable, "-m", "anaphora.cli", "cost", str(log), "--by", "tenant", "--as", "claude-opus-5"]
    done = subprocess.run([*command, "--json", str(report)], capture_output=True, text=True, check=True)
    assert "genai-prices" in done.stdout
    told = json.loads(report.read_text())
    assert {row["tenant"]: row["requests"] for row in told["rows"]} == {"red": 3, "blue": 1}
    answers = (short, first, second, other)
    assert told["total"]["cost"] == pytest.approx(sum(one.anaphora["contract"]["cost_usd"] for one in answers))
    assert told["total"]["read_tokens"] == written


def test_an_unknown_profile_stops_the_start_with_one_line() -> None:
    command = [sys.executable, "-m", "anaphora.cli", "serve", "--port", "0", "--profile", "nobody"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("anaphora: profile = 'nobody' is unknown. Profiles: local,")
    assert done.stderr.count("\n") == 1
