"""The page on contracts is true: its example runs, its price file is read, and it names every open point."""

import contextlib
import io
import re
from dataclasses import fields
from pathlib import Path

from anaphora.contract.anthropic import AnthropicRules
from anaphora.contract.openai import BreakpointRules, StepRules
from anaphora.contract.prices import parse_prices

PAGE = (Path(__file__).parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")

SETTLED = {
    *("min_tokens", "max_breakpoints", "lookback", "groups_runs", "keeps_thinking"),
    *("step", "retentions", "default_retention", "in_memory_limit_s", "max_writes"),
}
"""Rules that sources agree on."""


def example(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_ledgers_example_writes_reads_and_writes_again() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as told:
        exec(example("python"), {})
    bills = told.getvalue().splitlines()
    assert ["write_1h=4000" in bill for bill in bills] == [True, False, True]
    assert ["read=4000" in bill for bill in bills] == [False, True, False]


def test_the_price_file_is_read() -> None:
    assert parse_prices(example("toml"), source="page")


def test_every_open_point_is_named() -> None:
    names = {one.name for rules in (AnthropicRules, StepRules, BreakpointRules) for one in fields(rules)}
    assert {name for name in names - SETTLED if f"`{name}`" not in PAGE} == set()
    assert names >= SETTLED
