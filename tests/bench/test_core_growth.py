"""The benchmark of growth runs at small sizes, and its files hold what it found."""

import json
from pathlib import Path

from typer.testing import CliRunner

from anaphora.bench.core_growth import Growth, GrowthNumbers, measure_growth, write_growth
from anaphora.bench.machine import this_machine
from anaphora.cli.main import app


def test_growth_is_measured_at_every_size_and_written(tmp_path: Path) -> None:
    sizes = (10_000, 200_000)
    numbers = measure_growth(sizes=sizes, num_repeats=10)
    assert [len(one.times_us) for one in numbers.operations] == [2] * 4
    assert all(time_us > 0 for one in numbers.operations for time_us in one.times_us)
    assert numbers.bytes_per_token <= 16
    data, picture = write_growth(numbers, this_machine(), tmp_path)
    told = json.loads(data.read_text())
    assert told["numbers"]["sizes"] == list(sizes)
    assert len(told["lines"]) == len(numbers.operations) + 2
    assert picture.stat().st_size > 10_000


def test_a_cost_that_grows_with_the_size_misses_its_target() -> None:
    numbers = GrowthNumbers((10, 1000), (Growth("flat", (5.0, 6.0)), Growth("linear", (5.0, 500.0))), 0.5, 9.0)
    assert [line.verdict for line in numbers.lines()] == ["PASS", "FAIL", "PASS", "PASS"]


def test_the_command_prints_the_lines_and_says_where_the_files_are(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "growth", "--largest", "20000", "--output", str(tmp_path)])
    assert done.exit_code in (0, 1), done.output
    assert "lease and release" in done.output
    assert (tmp_path / "growth.json").exists()
