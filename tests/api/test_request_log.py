"""The request log: bounded, private, without what was said unless that is asked for."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from anaphora.api.app import ApiSettings, build_app
from anaphora.api.request_log import NUM_OLDER, RequestLog
from anaphora.api.server import api_settings
from anaphora.config import load_settings
from anaphora.engine.engine import Engine
from anaphora.explain.memory import MemoryLimits


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_full_files_are_set_aside_and_the_oldest_go(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "log.jsonl", max_bytes=100)
    for number in range(NUM_OLDER + 3):
        log.write({"number": number, "filler": "x" * 60})
    log.close()
    assert len(list(tmp_path.iterdir())) == NUM_OLDER + 1
    assert [one["number"] for one in lines(tmp_path / "log.jsonl")] == [NUM_OLDER + 2]
    assert [lines(tmp_path / f"log.jsonl.{one}")[0]["number"] for one in (1, NUM_OLDER)] == [NUM_OLDER + 1, 2]
    assert (tmp_path / "log.jsonl").stat().st_mode & 0o077 == 0
    again = RequestLog(tmp_path / "log.jsonl", max_bytes=100)
    again.write({"number": 99, "filler": "x" * 60})
    again.close()
    assert lines(tmp_path / "log.jsonl")[0]["number"] == 99, "the size of a file that goes on counts"


def test_a_file_that_cant_be_set_aside_costs_nobody_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = RequestLog(tmp_path / "log.jsonl", max_bytes=50)

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "not here")

    monkeypatch.setattr(Path, "replace", refuse)
    with caplog.at_level(logging.ERROR):
        log.write({"number": 1, "filler": "x" * 60})
        log.write({"number": 2})
    assert "not here" in caplog.text
    monkeypatch.undo()
    log.write({"number": 3})
    log.close()
    assert [one["number"] for one in lines(tmp_path / "log.jsonl")] == [3]


@pytest.mark.parametrize("with_bodies", [True, False])
def test_bodies_are_written_only_where_that_is_asked_for(roomy: Engine, tmp_path: Path, with_bodies: bool) -> None:
    log = RequestLog(tmp_path / "log.jsonl", with_bodies=with_bodies)
    with TestClient(build_app(roomy, ApiSettings(("tiny",), request_log=log))) as http:
        body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "secret words"}]}
        http.post("/v1/chat/completions", json=body)
    log.close()
    (line,) = lines(tmp_path / "log.jsonl")
    assert line.get("body") == (body if with_bodies else None)
    assert ("secret" in json.dumps(line)) == with_bodies
    assert line["anaphora"]["miss"]["reason"] in ("first_seen", "none")


def test_settings_say_what_is_remembered_and_written(tmp_path: Path) -> None:
    flags = {"explain_requests": 7, "explain_bytes": "1MiB", "explain_text": False, "cache_dir": str(tmp_path)}
    log = {"request_log": str(tmp_path / "log"), "request_log_bytes": "2KiB", "request_log_bodies": True}
    told = api_settings(load_settings({**flags, **log}))
    assert told.explain == MemoryLimits(7, 2**20, keeps_text=False)
    assert told.seen_path == tmp_path / "seen-openings"
    assert told.request_log is not None
    assert told.request_log.with_bodies
    told.request_log.close()
    told = api_settings(load_settings({"explain_requests": 0}))
    assert told.explain is told.seen_path is None
