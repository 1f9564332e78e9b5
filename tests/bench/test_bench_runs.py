"""The demo and the benchmark run from end to end on a tiny model.

Method: real engine, real command line, a model of two layers in a folder; only the numbers are of no interest.
"""

import json
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import anaphora.bench.demo
import anaphora.bench.show
from anaphora.bench import core_index
from anaphora.bench.decode import decode_line
from anaphora.bench.demo import MAX_DIFFERENCE, ScoreTape, ask, difference
from anaphora.bench.first_token import Case, lines_of, measure
from anaphora.bench.kernels import Comparison, Heads, joined_shapes, linear_shapes
from anaphora.bench.memory import memory_lines
from anaphora.bench.pair import Pair
from anaphora.bench.steps import compare_steps
from anaphora.cli.main import app
from anaphora.engine.engine import Engine
from anaphora.engine.models.fetch import default_cache_dir
from anaphora.engine.native.build import NotBuilt
from anaphora.engine.native.library import load_kernels
from anaphora.engine.settings import EngineSettings
from anaphora.testing.random_models import random_model


def test_cold_runs_reuse_nothing_and_hits_compute_the_tail_alone(pair: Pair) -> None:
    before = pair.engine.stats()
    found = measure(pair, Case(num_cached=100, num_new=7, num_cold=3, num_hits=4))
    after = pair.engine.stats()
    assert [len(found.cold), len(found.plain_cold), len(found.hit), len(found.bare_hit)] == [3, 3, 4, 4]
    num_hits = 4 + 2  # two warm up
    assert after.num_computed_tokens - before.num_computed_tokens == 3 * 107 + num_hits * 7
    assert after.num_reused_tokens - before.num_reused_tokens == num_hits * 100
    assert found.cache.get_seq_length() == 100
    cold_to_hit, hit, cold = lines_of(found, num_for_ratio=100)
    assert cold_to_hit.value == pytest.approx(cold_to_hit.parts["cold_ms"] / cold_to_hit.parts["hit_ms"])
    assert hit.value == pytest.approx(hit.parts["hit_ms"] / hit.parts["bare_hit_ms"])
    assert cold.value == pytest.approx(cold.parts["cold_ms"] / cold.parts["plain_cold_ms"])
    assert cold_to_hit.target is not None
    assert lines_of(found, num_for_ratio=101)[0].target is None


def test_decoding_is_compared_over_the_same_context_and_leaves_it_as_it_was(pair: Pair) -> None:
    found = measure(pair, Case(num_cached=50, num_new=5, num_cold=1, num_hits=1))
    line = decode_line(pair, found.prefix, found.cache, num_tokens=8, num_rounds=2)
    assert found.cache.get_seq_length() == 50
    assert line.parts["engine_ms_per_token"] > 0
    assert line.value == pytest.approx(line.parts["generate_ms_per_token"] / line.parts["engine_ms_per_token"])


def test_memory_is_measured_on_a_full_pool_that_evicts(pair: Pair) -> None:
    resident, pool = memory_lines(pair, num_requests=20, num_warm_up=5)
    assert resident.parts["first_mib"] > 50
    assert pool.parts["evicted_tokens"] >= 1024
    assert pool.verdict == "PASS"


def _asked(text: list[str]) -> tuple[list[anaphora.bench.demo.Answered], list[float]]:
    loaded = random_model("llama", max_context=4096)
    tape = ScoreTape()
    with Engine(loaded, EngineSettings(kv_pool_bytes=4 * 2**20), wrap=tape.over) as engine:
        answers = ask(engine, tape, questions=("One?", "Two?"), say=text.append, num_system_tokens=600)
    untouched = random_model("llama", max_context=4096)
    return answers, [difference(answer, untouched) for answer in answers]


def test_tape_keeps_no_engine_from_the_native_kernels() -> None:
    settings = EngineSettings(kv_pool_bytes=4 * 2**20)
    with Engine(random_model("llama"), settings, wrap=ScoreTape().over) as engine:
        with_tape = engine.start_up_lines
    with Engine(random_model("llama"), settings) as engine:
        without = engine.start_up_lines
    assert with_tape == without


def test_demo_reuses_the_system_prompt_and_its_scores_are_those_of_a_full_recompute() -> None:
    text: list[str] = []
    (first, second), differences = _asked(text)
    assert first.receipt.num_reused_tokens == 0
    assert second.receipt.num_reused_tokens > 600
    assert second.receipt.num_computed_tokens < 40
    assert max(differences) <= MAX_DIFFERENCE
    assert first.text in "".join(text)


def test_demo_compares_the_scores_of_the_first_token() -> None:
    (first, _), _ = _asked([])
    other = random_model("llama", seed=1, max_context=4096)
    assert difference(first, other) > MAX_DIFFERENCE


def test_demo_ends_well_only_if_the_scores_are_equal(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["demo", "--model", str(model_folder)])
    assert done.exit_code == 0, done.output
    assert "equal a full recompute" in done.output
    monkeypatch.setattr(anaphora.bench.demo, "difference", lambda answer, untouched: 0.5)
    done = CliRunner().invoke(app, ["demo", "--model", str(model_folder)])
    assert done.exit_code == 1
    assert "DIFFERENT" in done.output


def test_quick_benchmark_writes_its_files_and_its_exit_status_is_its_verdict(
    model_folder: Path, tmp_path: Path
) -> None:
    command = ["bench", "--quick", "--model", str(model_folder), "--output", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    data = json.loads((tmp_path / "quick.json").read_text(encoding="utf-8"))
    verdicts = [line["verdict"] for line in data["lines"]]
    assert len(verdicts) == 12
    assert done.exit_code == int("FAIL" in verdicts), done.output
    assert (tmp_path / "quick.png").is_file()


def test_core_table_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = core_index.measure
    monkeypatch.setattr(core_index, "measure", lambda: measure(num_repeats=3, num_tokens=100_000))
    done = CliRunner().invoke(app, ["bench", "core"])
    assert done.exit_code == 0, done.output
    assert "bytes per token" in done.output


def test_kernel_tables_are_printed(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[object] = []

    def compared(what: object, **ignored: object) -> list[Comparison]:
        shapes.append(what)
        return [Comparison("one case", 10.0, 25.0)]

    for name in ("compare_linears", "compare_joining", "compare_cuts", "compare_sharing"):
        monkeypatch.setattr(anaphora.bench.show, name, compared)
    for table in ("linear", "attention"):
        done = CliRunner().invoke(app, ["bench", table, "--model", str(model_folder)])
        assert done.exit_code == 0, done.output
        assert "2.50" in done.output
    model = random_model("llama").model
    assert shapes == [linear_shapes(model), joined_shapes(model), Heads(2, 2, 16), Heads(2, 2, 16)]


def test_steps_table_is_printed_or_says_why_not(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(compare_steps, steps=((1, 3), (2, 4)), num_past=20, num_rounds=1)
    monkeypatch.setattr(anaphora.bench.show, "compare_steps", few)
    done = CliRunner().invoke(app, ["bench", "steps", "--model", str(model_folder)])
    if isinstance(load_kernels(default_cache_dir()), NotBuilt):
        assert done.exit_code == 1
        assert "Nothing to compare" in done.output
    else:
        assert done.exit_code == 0, done.output
        assert "one call" in done.output
    monkeypatch.setattr(anaphora.bench.show, "load_kernels", lambda cache_dir: NotBuilt("there is no compiler"))
    done = CliRunner().invoke(app, ["bench", "steps", "--model", str(model_folder)])
    assert done.exit_code == 1
    assert "there is no compiler" in done.output


def test_transformers_table_is_printed(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anaphora.bench.show.transformers_door, "measure", lambda model: {"cold_ms": 1234.0})
    done = CliRunner().invoke(app, ["bench", "transformers", "--model", str(model_folder)])
    assert done.exit_code == 0, done.output
    assert "1,234" in done.output
