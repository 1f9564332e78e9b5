"""`anaphora simulate`: what it prints and writes, and its errors, on a trace of a few lines."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from anaphora.cli.main import app
from anaphora.sim.load import load_trace
from anaphora.sim.report import table_of
from anaphora.sim.show import Wishes, parse_sizes, study_of
from anaphora.sim.trace import TraceError


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [{"tokens": [1, 2, 3, number], "tenant": "t"} for number in range(4, 9)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{\n")
    return path


def simulate(*words):
    return CliRunner().invoke(app, ["simulate", *map(str, words)], env={"COLUMNS": "160"})


def test_it_reports_every_policy_and_the_optimum(trace, tmp_path):
    found = simulate(trace, "--size", "50%,100%", "--json", tmp_path / "out.json", "--plot", tmp_path / "plots")
    assert found.exit_code == 0, found.output
    assert "An endless cache hits 60.00%." in found.output
    assert "line 6: not JSON" in found.output
    report = json.loads((tmp_path / "out.json").read_text())[0]
    assert {result["policy"] for result in report["results"]} >= {"lru", "lfu", "slru", "gdsf", "arc", "odds"}
    assert report["optimum"] == [{"size": 4, "hit_rate": 0.6}, {"size": 8, "hit_rate": 0.6}]
    assert report["results"][0]["tenants"]["t"]["num_requests"] == 5
    assert report["reuse_distances"]["num_first"] == 8
    assert (tmp_path / "plots" / "log.png").read_bytes().startswith(b"\x89PNG")


def test_replicas_and_routing(trace):
    found = simulate(trace, "--policy", "lru", "--size", "100", "--replicas", "2", "--routing", "round-robin")
    assert found.exit_code == 0, found.output
    assert "lru, 2 x round-robin" in found.output
    assert "45.00%" in found.output
    assert "optimum" not in found.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--size", "0"), "holds nothing"),
        (("--size", "0%"), "holds nothing"),
        (("--size", "many"), "'many' is no number"),
        (("--policy", "mru"), "'mru' is unknown. Choose from: lru"),
        (("--replicas", "0"), "serve nothing"),
        (("--routing", "post"), "'post' is unknown"),
        (("--tokenizer", "absent.json"), "no such file"),
        (("--strict",), "line 6: not JSON"),
        (("--format", "morse"), "'morse' is unknown"),
    ],
)
def test_what_makes_no_sense_is_one_clear_error(trace, words, reason):
    found = simulate(trace, *words)
    assert isinstance(found.exception, TraceError)
    assert reason in str(found.exception)


def test_an_empty_trace_is_one_line_on_standard_error(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    command = [sys.executable, "-m", "anaphora.cli", "simulate", str(tmp_path / "empty.jsonl"), "--format", "tokens"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 1
    assert done.stderr.startswith("anaphora: ")
    assert "no request in it" in done.stderr
    assert done.stderr.count("\n") == 1


def test_numbers_stand_unbroken_in_eighty_columns(trace):
    study = study_of(load_trace(trace), ["blend"], Wishes(sizes="10%"), console=Console(quiet=True))
    result = replace(study.results[0], size=123_456_789, num_evicted=987_654_321)
    console = Console(width=80, record=True, file=StringIO())
    history = replace(study.history, sizes=np.array([1_000_000_000]))
    console.print(table_of(replace(study, history=history, results=(result,))))
    text = console.export_text()
    assert "123,456,789" in text
    assert "987,654,321" in text


def test_pictures_of_two_traces_of_one_name_are_two(trace, tmp_path):
    other = tmp_path / "other" / trace.name
    other.parent.mkdir()
    other.write_text(trace.read_text())
    found = simulate(trace, other, "--policy", "lru", "--plot", tmp_path / "plots")
    assert found.exit_code == 0, found.output
    assert sorted(picture.name for picture in (tmp_path / "plots").iterdir()) == ["log-2.png", "log.png"]


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_results_that_cannot_be_written_are_told_before_the_replay(trace, option):
    found = simulate(trace, option, trace / "below")
    assert isinstance(found.exception, TraceError)
    assert option in str(found.exception)
    assert "replayed" not in found.output


def test_a_tokenizer_must_be_one(trace, tmp_path):
    (tmp_path / "tokenizer.json").write_text("[]")
    found = simulate(trace, "--tokenizer", tmp_path / "tokenizer.json")
    assert "is no tokenizer.json" in str(found.exception)


def test_azure_says_what_it_cannot_tell(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,48,10\n")
    found = simulate(path, "--policy", "lru")
    assert "reuse can't be judged" in found.output


def test_sizes_are_tokens_or_parts_of_the_distinct_tokens():
    assert parse_sizes("2_000, 10%,0.1%", 500) == [2000, 50, 1]
