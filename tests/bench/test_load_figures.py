"""Percentiles, totals, ratios, verdicts: numbers that can be worked out by hand."""

import json
import math
from pathlib import Path

import pytest

from anaphora.bench.lines import at_least
from anaphora.bench.load.calls import Answered, Conversation, Failed, Pace, Turn, Wave, WaveResult
from anaphora.bench.load.cases import CASES, Size
from anaphora.bench.load.client import Target
from anaphora.bench.load.drive import Results, beginning_of, begins_s
from anaphora.bench.load.figures import first_ms, paired_ratio, ratio_line, summary_of, throughput
from anaphora.bench.load.report import Report, as_json, error_lines, tables_of, write_files
from anaphora.bench.load.wires import Anthropic
from anaphora.bench.machine import this_machine


def answered(first_s: float = 0.1, *, prompt: int = 100, cached: int | None = 60, output: int = 5) -> Answered:
    return Answered("x", 0.0, first_s, first_s + 0.4, (0.1, 0.3), prompt, cached, output, "text")


def result(*requests: Answered | Failed, wall_s: float = 2.0, num_unasked: int = 0) -> WaveResult:
    done = tuple(one for one in requests if isinstance(one, Answered))
    failed = tuple(one for one in requests if isinstance(one, Failed))
    return WaveResult(wall_s, done, failed, num_unasked)


def server(name: str, *, is_ours: bool = True) -> Target:
    return Target(name, "http://127.0.0.1:1", "m", Anthropic(), is_ours=is_ours)


def results(waves: dict[tuple[str, str], list[WaveResult]], *, peers: tuple[str, ...] = ()) -> Results:
    names = dict.fromkeys(name for name, _ in waves)
    return Results(tuple(server(name, is_ours=name not in peers) for name in names), waves)


BUSY = Failed("x", 0.0, 0.1, "429 rate_limit_error", "The queue is full.")


def test_a_summary_adds_the_rounds_up() -> None:
    found = summary_of([result(answered(0.1), answered(0.3)), result(answered(0.2), BUSY, num_unasked=3, wall_s=1.0)])
    assert (found.num_answered, found.errors, found.num_unasked) == (3, {"429 rate_limit_error": 1}, 3)
    assert (found.prompt_tokens, found.cached_tokens, found.computed_tokens, found.output_tokens) == (300, 180, 120, 15)
    assert found.first_token is not None
    assert (found.first_token.p50_ms, found.first_token.max_ms) == (pytest.approx(200), pytest.approx(300))
    assert found.token is not None
    assert found.token.p50_ms == pytest.approx(100)  # 400 ms after the first token, for four more
    assert found.gap is not None
    assert found.gap.p50_ms == pytest.approx(200)
    assert found.output_tokens_per_s == pytest.approx((10 / 2 + 5 / 1) / 2)
    assert found.wall_s == 3.0


def test_what_is_not_told_is_not_made_up() -> None:
    found = summary_of([result(answered(), answered(cached=None))])
    assert (found.cached_tokens, found.computed_tokens) == (None, None)
    nothing = summary_of([result(BUSY)])
    assert (nothing.first_token, nothing.total, nothing.output_tokens_per_s) == (None, None, 0)


def test_rounds_are_divided_one_by_one() -> None:
    left = [result(answered(0.1)), result(answered(1.0)), result(BUSY)]
    right = [result(answered(0.2)), result(answered(2.0)), result(answered())]
    assert paired_ratio(left, right, first_ms) == pytest.approx([0.5, 0.5])
    line = ratio_line("x", [0.5, 0.7, 0.6], at_least(0.6), {})
    assert (line.value, line.verdict, line.parts) == (0.6, "PASS", {"least": 0.5, "most": 0.7})


def test_a_ratio_of_nothing_meets_no_target() -> None:
    line = ratio_line("x", [], at_least(0), {})
    assert math.isnan(line.value)
    assert line.verdict == "FAIL"


def lines_of(case: str, found: Results, *, is_primed: bool = False) -> dict[str, tuple[float, str, str]]:
    lines = CASES[case].lines(found, Size(8, Pace(8), is_primed))
    return {line.name: (round(line.value, 3), str(line.target or ""), line.verdict) for line in lines}


def test_shared_prefix_is_judged_against_no_cache_and_the_best_peer() -> None:
    fast, slow, peer = result(answered(), wall_s=1.0), result(answered(), wall_s=7.0), result(answered(), wall_s=1.5)
    waves = {(name, "run"): [one] for name, one in zip(("on", "off", "a", "b"), (fast, slow, slow, peer), strict=True)}
    found = results(waves, peers=("a", "b"))
    assert lines_of("shared-prefix", found) == {
        "throughput: on / off": (7.0, ">= 6.4", "PASS"),
        "throughput: on / b": (1.5, ">= 2", "FAIL"),
    }
    primed = lines_of("shared-prefix", found, is_primed=True)
    assert primed["throughput: on / b"] == (1.5, ">= 1.2", "PASS")
    assert primed["throughput: on / off"][1:] == ("", "")


def test_prompts_that_share_nothing_may_lose_one_hundredth() -> None:
    found = results(
        {("on", "run"): [result(answered(), wall_s=1.02)], ("off", "run"): [result(answered(), wall_s=1.0)]}
    )
    assert lines_of("no-sharing", found) == {"throughput: on / off": (0.98, ">= 0.99", "FAIL")}


def test_identical_prompts_are_judged_by_what_was_computed_and_by_the_slowest() -> None:
    first, others = answered(1.0, cached=0), [answered(1.1, cached=99) for _ in range(7)]
    found = results({("on", "alone"): [result(answered(1.0))], ("on", "run"): [result(first, *others)]})
    assert lines_of("identical", found) == {
        "tokens computed for 8 at once / for one: on": (1.07, "<= 1.02", "FAIL"),
        "worst first token of 8 at once / of one alone: on": (1.1, "<= 1.15", "PASS"),
    }


def test_first_tokens_are_judged_by_length_and_against_the_best_peer() -> None:
    waves = {
        ("on", "cold 2,000+16"): [result(answered(6.1))],
        ("on", "hit 2,000+16"): [result(answered(0.1))],
        ("peer", "cold 2,000+16"): [result(answered(6.0))],
        ("peer", "hit 2,000+16"): [result(answered(0.3))],
    }
    found = lines_of("first-token", results(waves, peers=("peer",)))
    assert found["2,000+16: cold / hit: on"] == (61.0, ">= 60", "PASS")
    assert found["2,000+16: cold / hit: peer"] == (20.0, "", "")
    assert found["hit 2,000+16: first token: on / peer"] == (0.333, "<= 0.5", "PASS")
    assert found["cold 2,000+16: first token: on / peer"] == (1.017, "<= 1", "FAIL")


def test_a_report_holds_every_request_and_tells_failures_by_kind(tmp_path: Path) -> None:
    waves = {
        ("on", "run"): [result(answered(), BUSY, BUSY)],
        ("off", "run"): [result(Failed("x", 0.0, 0.1, "not reachable", ""))],
    }
    found = results(waves)
    line = ratio_line("x", paired_ratio(*waves.values(), throughput), at_least(1), {"off": math.nan})
    report = Report("Title", {"seed": 0}, found, [line], this_machine())
    written = write_files(report, tmp_path / "out", name="load-x")
    assert written[1].read_bytes().startswith(b"\x89PNG")
    data = json.loads(written[0].read_text(encoding="utf-8"))
    assert written[0].read_text(encoding="utf-8") == as_json(report)
    assert len(data["waves"][0]["rounds"][0]["requests"]) == 3
    assert data["waves"][0]["summary"]["errors"] == {"429 rate_limit_error": 2}
    assert data["lines"][0]["value"] is None
    assert error_lines(found) == ["on: 2 x 429 rate_limit_error (The queue is full.)", "off: 1 x not reachable"]
    (table,) = tables_of(report)
    assert [next(iter(column.cells)) for column in table.columns] == ["answered", "1 of 3", "0 of 1"]


def test_arrivals_come_at_the_rate_and_by_the_seed() -> None:
    talks = [Conversation("x", "", (Turn((), 1),) * 3)] * 2000
    begins = begins_s(talks, 10.0, seed=1)
    assert begins == sorted(begins)
    assert begins == begins_s(talks, 10.0, seed=1) != begins_s(talks, 10.0, seed=2)
    assert 3 * len(talks) / begins[-1] == pytest.approx(10.0, rel=0.1)


def test_warming_up_takes_the_beginnings_of_two_conversations() -> None:
    wave = Wave("run", (Conversation("x", "", (Turn((), 1),) * 3),) * 5, Pace(4))
    warm = beginning_of([wave, wave])
    assert [len(one.turns) for one in warm.conversations] == [1, 1]
    assert not warm.counts
