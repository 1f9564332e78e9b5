"""The command line: light to start, honest in its help, errors in one line; and the terminal chat's logic."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import anaphora
from anaphora.cli import main as cli
from anaphora.cli.conversation import ChatFailed, Conversation, address_of, first_model, receipt_line
from anaphora.config import Settings

HEAVY = ("torch", "transformers", "openai", "anthropic", "starlette", "uvicorn", "httpx")
RECEIPT = {
    "reused_tokens": 412,
    "prompt_tokens": 420,
    "computed_tokens": 8,
    "generated_tokens": 11,
    "time_to_first_token_ms": 41.2,
    "total_ms": 541.2,
}


def test_help_imports_nothing_heavy() -> None:
    code = f"import sys, anaphora.cli.main; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_names_every_command() -> None:
    help_text = CliRunner().invoke(cli.app, ["--help"]).output
    assert all(command in help_text for command in ("serve", "chat", "models", "bench"))


def test_every_setting_has_a_flag() -> None:
    help_text = CliRunner().invoke(cli.app, ["serve", "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"}).output
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in help_text
        assert f"[ANAPHORA_{name.upper()}]" in help_text


def test_version_is_the_packages() -> None:
    assert CliRunner().invoke(cli.app, ["--version"]).output.strip() == f"anaphora {anaphora.__version__}"


def test_wrong_setting_is_one_line_and_no_traceback() -> None:
    command = [sys.executable, "-m", "anaphora.cli", "serve", "--port", "far"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("anaphora: port (set in --port): ")
    assert done.stderr.count("\n") == 1


def test_output_that_is_a_file_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    done = CliRunner().invoke(cli.app, ["bench", "--output", str(tmp_path / "taken")], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert "is a file" in done.output


def server(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server")


def stream_of(*chunks: dict[str, Any]) -> httpx.Response:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return httpx.Response(200, text="".join([*lines, "data: [DONE]\n\n"]))


def said(text: str, **rest: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}], **rest}


def test_conversation_sends_all_turns_and_keeps_the_answer() -> None:
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return stream_of(said("Hel"), said("lo"), {"choices": [], "anaphora": RECEIPT})

    with server(answer) as client:
        conversation = Conversation(client, "m", system="Be kind.")
        assert list(conversation.ask("Hi")) == ["Hel", "lo"]
        assert list(conversation.ask("More")) == ["Hel", "lo"]
    assert [turn["content"] for turn in bodies[1]["messages"]] == ["Be kind.", "Hi", "Hello", "More"]
    assert conversation.receipt == RECEIPT


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(400, json={"error": {"message": "messages: no."}}), "messages: no."),
        (httpx.Response(502, text="gateway"), "status 502"),
        (stream_of(said("Hel"), {"error": {"message": "The step failed."}}), "The step failed."),
    ],
)
def test_failed_turn_is_told_and_not_kept(response: httpx.Response, words: str) -> None:
    with server(lambda request: response) as client:
        conversation = Conversation(client, "m")
        with pytest.raises(ChatFailed, match=words):
            list(conversation.ask("Hi"))
    assert conversation.turns == []


def test_server_that_is_not_there_is_told_with_what_to_do() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with server(answer) as client, pytest.raises(ChatFailed, match="anaphora serve"):
        first_model(client)


@pytest.mark.parametrize("answer", ["<html>", "[]", "{}", '{"data": []}', '{"data": 7}'])
def test_server_of_something_else_is_told(answer: str) -> None:
    response = httpx.Response(200, text=answer)
    with server(lambda request: response) as client, pytest.raises(ChatFailed, match="is no server of models"):
        first_model(client)


@pytest.mark.parametrize("url", ["nonsense", "127.0.0.1:8000", "http://", "ftp://x", "http://x:port", ""])
def test_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(ChatFailed, match="looks like http"):
        address_of(url)


def test_address_may_end_as_other_clients_want_it() -> None:
    given = ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/")
    assert {address_of(url) for url in given} == {"http://h:1"}


def test_receipt_is_told_in_one_line() -> None:
    assert receipt_line(RECEIPT) == (
        "412 of 420 prompt tokens reused, 8 computed; first token after 41 ms; 11 generated, 20 tokens/s"
    )
