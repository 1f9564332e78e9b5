"""`anaphora cost` on small logs: groups, sums, savings, unreadable files, unpriced models."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anaphora.cli import main as cli
from anaphora.contract.prices import Price, PriceTable, Rates
from anaphora.contract.usage_records import records_of
from anaphora.costs.report import Report, as_json, report_of
from anaphora.costs.usage_files import UnreadableUsage, read_usage

DOLLAR = Rates(Decimal(1), Decimal(2), Decimal("0.1"), {"5m": Decimal("1.25"), "1h": Decimal(2)})
BOOK = PriceTable([Price("a", DOLLAR, "test"), Price("b", Rates(Decimal(10), Decimal(20)), "test")])
NOW = datetime(2026, 11, 30, tzinfo=UTC)
M = 1_000_000


def line(model: str = "a", tenant: str = "red", day: int = 1, **usage: int) -> dict[str, Any]:
    counts = {"input_tokens": 0, "output_tokens": 0, **usage}
    return {"time": f"2026-11-{day:02}T08:00:00Z", "tenant": tenant, "model": model, "usage": counts}


LOG = [
    line(input_tokens=M, cache_creation_input_tokens=M),
    line(input_tokens=M, cache_read_input_tokens=M, output_tokens=M, day=2),
    line(model="b", tenant="blue", input_tokens=M, day=2),
]


def report(lines: list[dict[str, Any]] = LOG, *, by: tuple[Any, ...] = ("model",), **rest: Any) -> Report:
    records = [record for one in lines for record in records_of(one)]
    return report_of(records, BOOK, by=by, now=NOW, **rest)


def test_groups_add_up_to_the_total() -> None:
    for by in (("tenant",), ("model",), ("day",), ("day", "tenant"), ("tenant", "model", "day")):
        made = report(by=by)
        assert sum(row.cost.total for row in made.rows) == made.total.cost.total == Decimal("15.35")
        assert sum(row.num_requests or 0 for row in made.rows) == made.total.num_requests == 3


def test_rows_are_the_dearest_first_or_the_days_in_order() -> None:
    assert [row.names for row in report().rows] == [("b",), ("a",)]
    assert [row.names[0] for row in report(by=("day",)).rows] == ["2026-11-01", "2026-11-02"]


def test_what_caching_saved_is_against_all_input_at_full_rate() -> None:
    (row,) = report(LOG[:2]).rows
    assert row.cost.uncached == 6
    assert row.cost.total == Decimal("5.35")
    assert row.hit_rate == 0.25


def test_one_models_prices_can_be_taken_for_all() -> None:
    made = report(priced_as="a")
    assert made.total.cost.total == Decimal("6.35")
    assert [row.names for row in made.rows] == [("a",), ("b",)]


def test_a_model_without_price_is_left_out_and_named() -> None:
    made = report([*LOG, line(model="c", input_tokens=5)])
    assert made.unpriced == {"c": 5}
    assert made.total.num_requests == 3


def test_sums_of_requests_have_no_number_where_the_source_has_none() -> None:
    made = report([{"results": [{"model": "a", "uncached_input_tokens": M}]}])
    assert made.has_sums
    assert made.total.num_requests is None


def test_json_has_every_number_of_the_table() -> None:
    told = as_json(report(by=("tenant", "day")))
    assert told["rows"][0] == {
        "tenant": "blue", "day": "2026-11-02", "requests": 1, "input_tokens": M, "read_tokens": 0, "written_tokens": 0,
        "output_tokens": 0, "hit_rate": 0.0, "cost": 10.0, "uncached_cost": 10.0, "saved": 0.0, "input_cost": 10.0,
        "read_cost": 0.0, "write_cost": 0.0, "output_cost": 0.0,
    }  # fmt: skip
    assert told["prices"] == ["a: test", "b: test"]


def written(folder: Path, lines: list[Any], name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines), encoding="utf-8")
    return path


def test_lines_that_cannot_be_read_are_left_out_and_told(tmp_path: Path) -> None:
    found = read_usage(written(tmp_path, [LOG[0], "{broken", "[1]", {"model": "a"}, "", LOG[1]]))
    assert len(found.records) == 2
    assert [problem.split(",")[1][:7] for problem in found.problems] == [" line 2", " line 3", " line 4"]


def test_one_object_and_a_list_are_read_too(tmp_path: Path) -> None:
    assert len(read_usage(written(tmp_path, [json.dumps(LOG, indent=1)])).records) == 3
    assert len(read_usage(written(tmp_path, [json.dumps(LOG[0], indent=1)])).records) == 1


@pytest.mark.parametrize("lines", [[], [{"model": "a"}], ["nonsense"]])
def test_a_file_without_any_usage_is_refused(tmp_path: Path, lines: list[Any]) -> None:
    with pytest.raises(UnreadableUsage, match="no usage in it"):
        read_usage(written(tmp_path, lines))


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["cost", *map(str, arguments)], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_the_command_prints_writes_and_names_its_prices(tmp_path: Path) -> None:
    log = written(tmp_path, [line(model="claude-opus-5", input_tokens=M), line(model="house", output_tokens=M), "x"])
    prices = written(tmp_path, ['[[price]]\nmodel = "house"\ninput = 1\noutput = 3\nsource = "the house"'], "p.toml")
    done = run(log, "--by", "model", "--prices", prices, "--json", tmp_path / "out" / "cost.json")
    assert done.exit_code == 0, done.output
    assert all(
        words in done.output for words in ("1 entries were left out", "$5.00", "$3.00", "the house", "genai-prices")
    )
    assert json.loads((tmp_path / "out" / "cost.json").read_text())["total"]["cost"] == 8.0
    alone = run(log)
    assert "No price is known for house" in alone.output


@pytest.mark.parametrize(("option", "value"), [("--by", "colour"), ("--prices", "missing.toml")])
def test_a_wrong_option_is_an_error_of_ours(tmp_path: Path, option: str, value: str) -> None:
    done = run(written(tmp_path, LOG), option, value)
    assert done.exit_code == 1
    assert done.exception is not None
    assert value in str(done.exception)
