"""`anaphora explain` and `anaphora lint` on files as users have them: bodies of three APIs, logs, broken lines."""

import json
from pathlib import Path
from typing import Any

import httpx
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


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_logs_are_read_as_shells_of_any_system_write_them(tmp_path: Path, encoding: str) -> None:
    text = "\r\n".join(json.dumps(chat_body(f"Be kind, {name}."), ensure_ascii=False) for name in ("Zoë", "Zoé"))
    path = tmp_path / "log.jsonl"
    mark = "\ufeff" if encoding in ("utf-16-le", "utf-16-be") else ""
    path.write_bytes((mark + text).encode(encoding))
    one, other = read(path)
    assert explain(one.side, other.side).divergence is not None
    assert "Zoé" in other.side.rendered.text


def test_bytes_that_are_no_text_cost_their_own_line_only(tmp_path: Path) -> None:
    line = json.dumps(chat_body()).encode()
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join((line, b"\x84\xff\x00", line.replace(b"kind", b"kin\x84"), line)))
    files = RequestFiles()
    assert [place.line for place, _ in files.read(path)] == [1, 4]
    assert [one.split(":")[0] for one in files.problems] == [f"log.jsonl, line {number}" for number in (2, 3)]
    done = run("lint", path)
    assert done.output.startswith("2 requests were left out.\n")
    path.write_bytes(bytes(range(256)) * 8)
    with pytest.raises(UnreadableRequests, match="has no request in it"):
        read(path)


@pytest.mark.parametrize("depth", [*range(100, 1100, 100), 985, 988, 991])
def test_what_is_nested_too_deep_to_work_on_is_left_out(tmp_path: Path, depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    bodies = [
        f'{{"messages": [], "x": {deep}}}',
        f'{{"system": "x", "messages": [{{"role": "user", "content": "q"}}], "tools": [{{"input_schema": {deep}}}]}}',
        f'{{"messages": [{{"role": "user", "content": [{{"type": "image_url", "image_url": {deep}}}]}}]}}',
    ]
    path = write(tmp_path / "log.jsonl", chat_body(), chat_body())
    path.write_text("\n".join((*bodies, path.read_text(encoding="utf-8"))), encoding="utf-8")
    done = run("explain", path)
    assert done.exit_code == 0
    assert depth < 128 or "3 requests were left out." in done.output


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


PRICES = """
[[price]]
model = "m"
valid_from = 2026-01-01
input = 10.0
output = 50.0
read = 1.0
"""


def test_what_a_miss_costs_is_told_where_a_price_is_known(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES, encoding="utf-8")
    log = write(tmp_path / "log.jsonl", *(messages_body(minute) for minute in (10, 21)))
    output = run("explain", log, "--prices", prices).output
    assert "for the input of each such call (m, prices.toml)." in output
    assert "Then " in output
    assert "tokens would hit." in output
    assert ", $" in run("lint", log, "--prices", prices).output
    assert "Cost" not in run("explain", log, "--prices", prices, "--as", "nobody's").output


def test_lint_writes_what_a_code_host_reads(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", *(messages_body(minute) for minute in (10, 21, 32)))
    run("lint", log, "--sarif", tmp_path / "out.sarif", "--json", tmp_path / "out.json")
    sarif = json.loads((tmp_path / "out.sarif").read_text(encoding="utf-8"))
    (told,) = sarif["runs"]
    assert sarif["version"] == "2.1.0"
    rules = {rule["id"] for rule in told["tool"]["driver"]["rules"]}
    first = told["results"][0]
    assert first["ruleId"] == "miss"
    assert {result["ruleId"] for result in told["results"]} <= rules
    (location,) = first["locations"]
    assert location["physicalLocation"]["region"]["startLine"] == 2
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "system[0]"
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert report["findings"][0]["file"] == "log.jsonl, line 2"
    assert report["findings"][0]["cause"] == "time"


def test_lint_tells_what_was_read_beside_what_could_be(tmp_path: Path) -> None:
    usage = {"input_tokens": 90, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 0, "output_tokens": 1}
    body = messages_body()
    log = write(tmp_path / "log.jsonl", {"body": body, "usage": usage}, {"body": body, "usage": usage})
    assert "Their usage says that" in run("lint", log).output


def test_same_tokens_in_other_json_are_told(tmp_path: Path) -> None:
    listed = chat_body()
    listed["messages"][1]["content"] = [{"type": "text", "text": "How deep is it?"}]
    output = run("explain", write(tmp_path / "log.jsonl", chat_body(), listed)).output
    assert "same tokens, written otherwise" in output
    assert "written otherwise" not in run("explain", write(tmp_path / "log.jsonl", chat_body(), chat_body())).output


ENTRY = {
    "id": "chatcmpl-1",
    "model": "m",
    "endpoint": "/v1/chat/completions",
    "state": "finished",
    "prompt_tokens": 99,
    "anaphora": {
        "reused_tokens": 10,
        "contract": {"profile": "openai:gpt-4o", "read_tokens": 0},
        "miss": {
            "reason": "diverged",
            "lost_tokens": 74,
            "says": "messages[0].content: A time differs.",
            "advice": "Move it.",
            "where": "messages[0].content",
            "byte": 10,
            "token": 9,
            "nearest": {"id": "chatcmpl-0", "seconds_ago": 3.2, "alike_tokens": 10},
        },
    },
    "excerpts": {"first": {"text": "It is 10:00", "at": 9}, "second": {"text": "It is 10:27", "at": 9}},
}


@pytest.mark.parametrize("arguments", [("--last",), ("chatcmpl-1",), ("req_1", "--key", "secret")])
def test_a_server_is_asked_for_one_request_or_the_last(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    asked: dict[str, Any] = {}

    def get(url: str, *, headers: dict[str, str], timeout: float) -> httpx.Response:
        asked.update(url=url, headers=headers)
        return httpx.Response(200, json=ENTRY)

    monkeypatch.setattr(httpx, "get", get)
    done = run("explain", *arguments, "--url", "http://127.0.0.1:9/v1/")
    assert done.exit_code == 0
    name = "last" if arguments[0] == "--last" else arguments[0]
    assert asked["url"] == f"http://127.0.0.1:9/v1/anaphora/requests/{name}"
    assert asked["headers"] == ({"authorization": "Bearer secret"} if len(arguments) > 1 else {})
    lines = done.output.splitlines()
    assert lines[1] == "messages[0].content: A time differs."
    assert (lines[2][lines[4].index("^")], lines[3][lines[4].index("^")]) == ("0", "2")
    assert "Place: byte 10 of messages[0].content, token 9." in lines
    assert "The usage says 0: by the rules of profile openai:gpt-4o." in lines
    assert lines[-1] == "What to do: Move it. Then 84 of 99 tokens would hit."


def test_a_request_that_still_runs_and_one_that_lost_nothing_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {name: ENTRY[name] for name in ("id", "model", "endpoint", "prompt_tokens")} | {"state": "running"}
    monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(200, json=entry))
    assert "has not begun to answer" in run("explain", "--last").output


def test_a_server_that_does_not_answer_or_know_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> httpx.Response:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(httpx, "get", refuse)
    assert "Name the server with --url" in str(run("explain", "--last").exception)
    unknown = {"error": {"message": "There is no request 'msg_x' remembered here (any more)."}}
    monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(404, json=unknown))
    assert "There is no request 'msg_x'" in str(run("explain", "msg_x").exception)
    assert run("explain").exit_code == 2
