"""Print what usage cost. What `anaphora cost` calls."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anaphora.costs.price_books import price_book
from anaphora.costs.report import GROUPS, Group, Report, Row, as_json, report_of
from anaphora.costs.usage_files import read_usage
from anaphora.errors import SettingsError

MAX_PROBLEMS_SHOWN = 5


def show_costs(
    paths: Sequence[Path],
    *,
    by: str = "model",
    priced_as: str | None = None,
    prices: Path | None = None,
    json_file: Path | None = None,
) -> None:
    """Read usage, print its costs, and write them to a file where one is named.

    Raises: SettingsError, UnreadableUsage.
    """
    console = Console()
    groups = parse_groups(by)
    book = price_book(prices)
    files = [read_usage(path) for path in paths]
    records = [record for file in files for record in file.records]
    report = report_of(records, book, by=groups, now=datetime.now(UTC), priced_as=priced_as)
    problems = [problem for file in files for problem in file.problems]
    if problems:
        console.print(f"{len(problems):,} entries were left out.", highlight=False)
        for problem in problems[:MAX_PROBLEMS_SHOWN]:
            console.print(f"  {problem}", highlight=False, markup=False)
    console.print(table_of(report))
    for note in notes_of(report):
        console.print(note, highlight=False, markup=False)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(as_json(report), indent=2) + "\n", encoding="utf-8")


def parse_groups(text: str) -> list[Group]:
    """Turn `tenant,day` into groupings.

    Raises: SettingsError.
    """
    groups: list[Group] = []
    for name in text.split(","):
        found = next((group for group in GROUPS if group == name.strip()), None)
        if found is None:
            raise SettingsError(f"--by: {name.strip()!r} is unknown. Choose from: {', '.join(GROUPS)}.")
        groups.append(found)
    return groups


def table_of(report: Report) -> Table:
    """The report as a table."""
    table = Table(*report.by, title="What it cost, and what it would have cost without a cache")
    for name in ("requests", "input", "read", "written", "output", "hit", "cost", "without", "saved"):
        table.add_column(name, justify="right")
    for row in report.rows:
        table.add_row(*row.names, *_cells(row))
    table.add_section()
    table.add_row(*(["all"] + [""] * (len(report.by) - 1)), *_cells(report.total))
    return table


def notes_of(report: Report) -> list[str]:
    """What the reader of the table should know."""
    notes = [f"Prices: {source}" for source in report.sources]
    if report.has_sums:
        notes.append("Sums of many requests are charged at the base rate: how large each was is not known.")
    for model, num_tokens in report.unpriced.items():
        notes.append(f"No price is known for {model}: {num_tokens:,} input tokens are left out. See --as and --prices.")
    return notes


def _cells(row: Row) -> list[str]:
    tokens, cost = row.tokens, row.cost
    counts = [f"{n:,}" for n in (tokens.ordinary, tokens.read, tokens.written, tokens.output)]
    requests = "?" if row.num_requests is None else f"{row.num_requests:,}"
    saved = f"{cost.saved / cost.uncached:.0%}" if cost.uncached else ""
    return [requests, *counts, f"{row.hit_rate:.0%}", _money(cost.total), _money(cost.uncached), saved]


def _money(amount: Decimal) -> str:
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.6f}"
