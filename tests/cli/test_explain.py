"""`anaphora explain` and `anaphora lint` on files as users have them: bodies of three APIs, logs, broken lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from anaphora.api.recorded import Recorded
from anaphora.cli import main as cli
from anaphora.cli.explanations import min_tokens_of
from anaphora.cli.request_files import RequestFiles, UnreadableRequests
from anaphora.errors import SettingsError
from anaphora.explain.reasons import explain

TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


def messages_body(minute: int = 0, question: str = "How deep is it?") -> dict[str, Any]:
    system = {
        "type": "text",
        "text": f"It is 2026-12-01T10:{minute:02}:00Z. Be kind.",
        "cache_control": {"type": "ephemeral"},
    }
    return {
        "model": "m",
        "max_tokens": 9,
        "system": [system],
        "tools": [TOOL],
        "messages": [{"role": "user", "content": question}],
    }


def chat_body(system: str = "Be kind.", question: str = "How deep is it?") -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
    }


def write(path: Path, *bodies: object) -> Path:
    path.write_text("\n".join(json.dumps(body) for body in bodies), encoding="utf-8")
    return path


def read(path: Path) -> list[Recorded]:
    return [recorded for _, recorded in RequestFiles().read(path)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(one) for one in arguments])


def test_two_files_are_told_apart_in_words(tmp_path: Path) -> None:
    first = write(tmp_path / "a.json", messages_body(10))
    second = write(tmp_path / "b.json", messages_body(27))
    done = run("explain", first, second)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0] == "system[0]: A time differs."
    column = lines[3].index("^")
    assert (lines[1][column:][:7], lines[2][column:][:7]) == ("10:00Z.", "27:00Z.")
    assert lines[-1].startswith("What to do: Move it behind everything that stays the same")


def test_excerpt_holds_no_sign_that_a_terminal_obeys(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", chat_body("\x1b[2J\n\x9b2J'\" a"), chat_body("\x1b[2J\n\x9b2J'\" b"))
    lines = run("explain", log).output.splitlines()
    assert all(line.isprintable() for line in lines)
    assert (lines[1][lines[3].index("^")], lines[2][lines[3].index("^")]) == ("a", "b")


def test_last_two_of_a_log_are_compared(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", chat_body("Be stern."), chat_body(), {"body": chat_body("Be  kind.")})
    assert run("explain", log).output.startswith("messages[0].content: Only white space differs.\n")


def test_equal_requests_say_so(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", chat_body(), chat_body())
    output = run("explain", log).output
    assert output.startswith("Nothing differs")
    assert "What to do" not in output


def test_indented_body_a_list_and_lines_read_alike(tmp_path: Path) -> None:
    bodies = [chat_body(), chat_body("Be stern.")]
    indented, listed = tmp_path / "indented.json", tmp_path / "listed.json"
    indented.write_text(json.dumps(bodies[0], indent=2), encoding="utf-8")
    listed.write_text(json.dumps(bodies), encoding="utf-8")
    lines = write(tmp_path / "lines.jsonl", *bodies)
    texts = [[one.side.rendered.text for one in read(path)] for path in (listed, lines)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 2
    assert len(read(indented)) == 1


def test_bodies_of_the_responses_api_are_read(tmp_path: Path) -> None:
    log = write(
        tmp_path / "log.jsonl", *({"model": "m", "instructions": "Be kind.", "input": one} for one in ("a", "b"))
    )
    first, second = read(log)
    assert explain(first.side, second.side).where == "input.content"
    assert "Be kind." in first.side.rendered.text


def test_model_and_tenant_keep_caches_apart(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", *({"tenant": one, "body": chat_body()} for one in ("a", "b")))
    assert run("explain", log).output.startswith("tenant: The requests go to different caches")


def test_lint_ranks_causes_and_fails_on_errors(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", *(messages_body(minute) for minute in (10, 21, 32)))
    done = run("lint", log, "--json", tmp_path / "out" / "report.json")
    assert done.exit_code == 1
    assert "error miss system[0] (request 2 and 1 more" in done.output
    assert "error volatile-marked system[0] (request 1 and 2 more)" in done.output
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert (report["num_requests"], report["findings"][0]["rule"]) == (3, "miss")
    assert report["num_lost"] == report["findings"][0]["num_tokens"] > 0


def test_lint_is_content_with_a_log_that_appends(tmp_path: Path) -> None:
    longer = chat_body()
    longer["messages"] += [{"role": "assistant", "content": "9 m"}, {"role": "user", "content": "And now?"}]
    done = run("lint", write(tmp_path / "log.jsonl", chat_body(), longer))
    assert done.exit_code == 0
    assert len(done.output.splitlines()) == 1
    assert done.output.startswith("2 requests, ")


def test_profile_says_which_prefix_is_too_short(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", messages_body())
    assert "prefix-short" not in run("lint", path).output
    assert "prefix-short" in run("lint", path, "--profile", "anthropic:claude-opus-4-8").output
    assert min_tokens_of("openai:gpt-5") == 1024
    assert min_tokens_of("local") == 0
    with pytest.raises(SettingsError, match="unknown"):
        min_tokens_of("nobody's")


def test_lines_that_are_no_requests_are_told_and_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", chat_body(), {"time": 1}, [1], {"messages": [{"role": "cook"}]}, chat_body())
    path.write_text(path.read_text(encoding="utf-8") + "\n{broken", encoding="utf-8")
    files = RequestFiles()
    assert len(list(files.read(path))) == 2
    assert [one.split(":")[0] for one in files.problems] == [f"log.jsonl, line {line}" for line in (2, 3, 4, 6)]
    assert "messages[0].role" in files.problems[2]
    assert run("explain", path).output.startswith("4 requests were left out.\n")


@pytest.mark.parametrize("text", ["", "{}", "[]", "no JSON", "[" * 100_000])
def test_file_without_requests_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableRequests, match="has no request in it"):
        read(path)


def test_file_that_is_missing_or_alone_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRequests, match="can't be read"):
        read(tmp_path / "none.json")
    done = run("explain", write(tmp_path / "a.json", chat_body()))
    assert isinstance(done.exception, UnreadableRequests)
    assert "Name a second file" in str(done.exception)
