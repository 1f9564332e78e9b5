"""The load tool against servers: our own with a tiny model over each API, and stubs that fail in every way there is.

Method: real processes and sockets on this machine; only counts and kinds are looked at, never times.
"""

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from load_world import Asked, answer_well, piece, reply, run, stream, stub_server, usage
from typer.testing import CliRunner

from anaphora.bench.load.calls import Ask, Failed
from anaphora.bench.load.client import Target, open_http, send
from anaphora.bench.load.servers import ServeSetting, ended_in_order, running_server, setting_from
from anaphora.bench.load.wires import Chat
from anaphora.cli.main import app
from anaphora.errors import SettingsError


@pytest.fixture(scope="module")
def tiny_server(model_folder: Path) -> Iterator[str]:
    with running_server(ServeSetting("tiny", ("--model", str(model_folder), "--num-threads", "1"))) as url:
        yield url


@pytest.fixture(scope="module")
def narrow_server(model_folder: Path) -> Iterator[str]:
    """A server that runs one sequence at a time and lets one request wait."""
    flags = ("--model", str(model_folder), "--max-sequences", "1", "--queue-length", "1", "--num-threads", "1")
    with running_server(ServeSetting("narrow", flags)) as url:
        yield url


@pytest.mark.parametrize("api", ["chat", "completions", "anthropic"])
def test_a_document_is_read_from_the_cache_for_every_question_but_the_first(tiny_server: str, api: str) -> None:
    report = run(workload="document", urls=(f"tiny={tiny_server}/v1",), api=api, concurrency=1)
    (found,) = report.summaries().values()
    assert (found.num_answered, found.errors) == (4, {})
    assert found.cached_tokens is not None
    assert found.computed_tokens is not None
    first, *others = report.results.waves["tiny", "run"][0].answered
    assert first.cached_tokens is not None
    assert first.cached_tokens < 30  # the template's opening, that of the first request of all
    for one in others:
        assert one.cached_tokens is not None
        assert one.cached_tokens > 100
    if api != "anthropic":  # which can't be told to go on past the end
        assert {one.output_tokens for one in (first, *others)} == {4}


@pytest.mark.parametrize("workload", ["agent", "chat", "few-shot", "no-sharing", "mixed"])
def test_every_workload_is_answered(tiny_server: str, workload: str) -> None:
    report = run(workload=workload, urls=(f"tiny={tiny_server}",), num_requests=6, api="anthropic")
    (found,) = report.summaries().values()
    assert (found.num_answered, found.errors, found.num_unasked) == (6, {}, 0)


def test_a_wrong_model_is_told_at_once(tiny_server: str) -> None:
    with pytest.raises(SettingsError, match="404 model_not_found"):
        run(workload="chat", urls=(tiny_server,), model="nobody's")


def test_own_servers_with_and_without_cache_are_compared(model_folder: Path) -> None:
    report = run(case="shared-prefix", model=str(model_folder), num_requests=3, num_rounds=2, max_tokens=2)
    on, off = (report.summaries()[name, "run"] for name in ("on", "off"))
    assert (on.num_answered, off.num_answered) == (6, 6)
    assert off.cached_tokens == 0
    assert on.prompt_tokens == off.prompt_tokens
    assert on.computed_tokens is not None
    assert on.computed_tokens < on.prompt_tokens * 0.7
    (line,) = report.lines
    assert line.name == "throughput: on / off"
    assert str(line.target) == ">= 6.4"


@pytest.mark.parametrize(
    ("api", "problem"), [("chat", "429 rate_limit_exceeded"), ("anthropic", "529 overloaded_error")]
)
def test_a_full_queue_is_counted_by_its_kind(narrow_server: str, api: str, problem: str) -> None:
    sizes = {"num_requests": 12, "concurrency": 12, "max_tokens": 60}
    report = run(workload="no-sharing", urls=(narrow_server,), api=api, **sizes)
    (found,) = report.summaries().values()
    assert set(found.errors) == {problem}
    assert found.num_answered + found.errors[problem] == 12
    assert report.lines[-1].verdict == "FAIL"


def test_identical_prompts_are_computed_once(tiny_server: str) -> None:
    report = run(case="identical", urls=(f"tiny={tiny_server}",), num_requests=8, prefix_tokens=300)
    computed, _ = report.lines
    assert computed.name == "tokens computed for 8 at once / for one: tiny"
    assert computed.verdict == "PASS"


def test_a_server_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(SettingsError, match=r"'broken' did not start.*policy"),
        running_server(ServeSetting("broken", ("--policy", "nonsense"))),
    ):
        pass


def test_a_run_that_is_told_to_end_leaves_in_order() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as leaving, ended_in_order():
        signal.raise_signal(signal.SIGTERM)
    assert leaving.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_settings_of_servers_are_a_name_and_flags() -> None:
    assert setting_from("off=--no-cache --policy 'lru'") == ServeSetting("off", ("--no-cache", "--policy", "lru"))
    assert setting_from("on") == ServeSetting("on")
    with pytest.raises(SettingsError, match="has no name"):
        setting_from("--no-cache")


def ask_stub(url: str, *, timeout_s: float = 30.0) -> Failed:
    async def asking() -> object:
        async with open_http(timeout_s) as http:
            target = Target("stub", url, "stub", Chat(full_length=False))
            ask = Ask("x", "", ({"role": "user", "content": "Hello."},), 2)
            return await send(http, target, ask, wave_began=0.0, due=0.0)

    outcome = asyncio.run(asking())
    assert isinstance(outcome, Failed)
    return outcome


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([piece("a"), usage()], "stream ended early"),
        ([piece("a"), "[DONE]"], "no usage told"),
        ([piece("a"), {"error": {"type": "server_error", "message": "A step failed."}}], "error event: server_error"),
        (["{"], "unreadable answer"),
        (["[]"], "unreadable answer"),
    ],
)
def test_a_stream_that_goes_wrong_is_told_by_its_kind(events: list[object], problem: str) -> None:
    with stub_server(lambda asked: stream(asked.handler, *events)) as url:
        assert ask_stub(url).problem == problem


def test_a_refusal_is_told_by_status_and_the_servers_word() -> None:
    error = {"error": {"type": "rate_limit_error", "code": None, "message": "Wait."}}
    with stub_server(lambda asked: reply(asked.handler, 429, error)) as url:
        failed = ask_stub(url)
    assert (failed.problem, failed.message) == ("429 rate_limit_error", "Wait.")
    with stub_server(lambda asked: reply(asked.handler, 502, "Bad gateway")) as url:
        assert ask_stub(url).problem == "502"


def test_a_silent_server_is_given_up() -> None:
    end = threading.Event()

    def keep_silent(asked: Asked) -> None:
        end.wait(30)

    with stub_server(keep_silent) as url:
        failed = ask_stub(url, timeout_s=0.2)
        end.set()
    assert failed.problem == "timeout"


def test_a_connection_that_is_cut_is_told() -> None:
    def cut(asked: Asked) -> None:
        asked.handler.send_response(200)
        asked.handler.send_header("content-length", "1000")
        asked.handler.end_headers()

    with stub_server(cut) as url:
        assert ask_stub(url).problem == "connection lost"
    assert ask_stub(url).problem == "not reachable"


def test_a_server_that_is_gone_does_not_keep_the_other_from_being_measured() -> None:
    with stub_server(answer_well) as gone:
        pass
    with stub_server(answer_well) as url:
        report = run(workload="chat", urls=(f"gone={gone}", f"well={url}"), model="stub")
    assert report.summaries()["well", "run"].num_answered == 4
    assert report.summaries()["gone", "run"].errors == {"not reachable": 1}
    names = {line.name: line.verdict for line in report.lines}
    assert names["requests that gone did not answer"] == "FAIL"
    assert "requests that well did not answer" not in names


def test_servers_take_turns_and_each_round_has_a_salt_of_its_own() -> None:
    order: list[tuple[str, str]] = []

    def noting(name: str, asked: Asked) -> None:
        order.append((name, asked.body["messages"][0]["content"].partition("\n")[0]))
        answer_well(asked)

    with stub_server(lambda asked: noting("a", asked)) as a, stub_server(lambda asked: noting("b", asked)) as b:
        run(workload="document", urls=(f"a={a}", f"b={b}"), num_requests=1, num_rounds=2, salt="salt")
    warm_up, rounds = order[2:4], order[4:]  # two samples of text come first
    assert warm_up == [("a", "salt-0"), ("b", "salt-0")]
    assert rounds == [("a", "salt-1"), ("b", "salt-1"), ("b", "salt-2"), ("a", "salt-2")]


def test_chats_go_on_with_the_answers_that_came_and_break_off_where_none_came() -> None:
    talks: list[list[str]] = []

    def answer_two(asked: Asked) -> None:
        talks.append([message["role"] for message in asked.body["messages"]])
        if asked.number == 5:  # samples and the warm-up are three
            reply(asked.handler, 500, {"error": {"type": "server_error", "message": ""}})
        else:
            answer_well(asked)

    with stub_server(answer_two) as url:
        report = run(workload="chat", urls=(url,), num_requests=4)
    assert talks[3:] == [["system", "user"], ["system", "user", "assistant", "user"]]
    (found,) = report.summaries().values()
    assert (found.num_answered, found.errors, found.num_unasked) == (1, {"500 server_error": 1}, 2)


def test_random_arrivals_do_not_wait_for_answers() -> None:
    all_there = threading.Barrier(5)  # passes only when five requests are being answered at once

    def wait_for_all(asked: Asked) -> None:
        if asked.number > 4:  # samples and the warm-up are four
            all_there.wait(30)
        answer_well(asked)

    with stub_server(wait_for_all) as url:
        report = run(workload="no-sharing", urls=(url,), num_requests=5, concurrency=1, rate_per_s=1000.0)
    assert report.summaries()[url, "run"].num_answered == 5


def test_the_command_prints_tables_writes_files_and_fails_with_a_failed_request(tmp_path: Path) -> None:
    def answer_some(asked: Asked) -> None:
        if asked.number > 6:
            reply(asked.handler, 503, {"error": {"type": "server_error", "message": "Stopping."}})
        else:
            answer_well(asked)

    command = ["bench", "load", "--workload", "document", "--rounds", "1", "--output", str(tmp_path)]
    with stub_server(answer_well) as url:
        done = CliRunner().invoke(app, [*command, "--requests", "3", "--url", f"well={url}", "--api-key", "secret"])
    assert done.exit_code == 0, done.output
    assert "3 of 3" in done.output
    text = (tmp_path / "load-document.json").read_text(encoding="utf-8")
    assert "secret" not in text
    assert json.loads(text)["options"]["num_requests"] == 3
    assert (tmp_path / "load-document.png").is_file()
    with stub_server(answer_some) as url:
        done = CliRunner().invoke(app, [*command, "--requests", "5", "--url", f"some={url}"])
    assert done.exit_code == 1
    assert "some: 3 x 503 server_error (Stopping.)" in done.output


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        ({"workload": "nonsense"}, "no workload 'nonsense'"),
        ({"case": "nonsense"}, "no case 'nonsense'"),
        ({"api": "nonsense", "urls": ("http://127.0.0.1:1",)}, "no API 'nonsense'"),
        ({"urls": ("here=nowhere",)}, "has no address"),
        ({"urls": ("http://127.0.0.1:1",)}, "No server tells its models"),
        ({"urls": ("http://127.0.0.1:1",), "model": "m"}, "not reachable"),
    ],
)
def test_wishes_that_can_not_be_met_are_told(wishes: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        run(**wishes)


def test_a_server_that_is_no_server_of_models_is_told() -> None:
    with stub_server(answer_well) as url, pytest.raises(SettingsError, match="can't be read"):
        run(workload="document", urls=(url,), document=Path("no such file"))
