"""Costs of usage, grouped: who spent what on which model and day, and what caching saved. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from anaphora.contract.prices import Cost, PriceBook, Tokens, cost_of
from anaphora.contract.usage_records import UNKNOWN, UsageRecord

Group = Literal["tenant", "model", "day"]
GROUPS: tuple[Group, ...] = ("tenant", "model", "day")


@dataclass(frozen=True, slots=True)
class Row:
    """One group's sums."""

    names: tuple[str, ...]  # one for each grouping
    tokens: Tokens = field(default_factory=Tokens)
    cost: Cost = field(default_factory=Cost)
    num_requests: int | None = 0  # None: some of the sources don't say

    @property
    def hit_rate(self) -> float:
        """Share of the input tokens that was read from the cache."""
        return self.tokens.read / self.tokens.input if self.tokens.input else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    by: tuple[Group, ...]
    rows: tuple[Row, ...]  # dearest first; days in order where days come first
    total: Row
    sources: tuple[str, ...]  # which prices were used, and from where
    unpriced: dict[str, int]  # model -> input tokens that no price is known for; not in the rows
    has_sums: bool  # some records sum many requests: charged at the base tier


def report_of(
    records: Iterable[UsageRecord],
    book: PriceBook,
    *,
    by: Sequence[Group],
    now: datetime,
    priced_as: str | None = None,
) -> Report:
    """The costs of these records. `priced_as` takes one model's prices for all; undated records count as `now`'s.

    Cost: one price look-up for each model, day and kind.
    """
    rows: dict[tuple[str, ...], Row] = {}
    sources: dict[str, None] = {}
    unpriced: dict[str, int] = {}
    total, has_sums = Row(()), False
    for record in records:
        model = priced_as or record.model
        price = book.price(model, record.at or now, is_batch=record.is_batch)
        if price is None:
            unpriced[model] = unpriced.get(model, 0) + record.tokens.input
            continue
        since = f" since {price.valid_from}" if price.valid_from else ""
        sources[f"{price.model}{since}: {price.source}"] = None
        cost = cost_of(record.tokens, price, is_one_request=record.is_one_request)
        has_sums = has_sums or not record.is_one_request
        names = tuple(_name(record, group) for group in by)
        rows[names] = _added(rows.get(names, Row(names)), record, cost)
        total = _added(total, record, cost)
    return Report(tuple(by), _ordered(rows, by), total, tuple(sorted(sources)), unpriced, has_sums)


def as_json(report: Report) -> dict[str, Any]:
    """The report as JSON values. Amounts are numbers of dollars."""
    return {
        "by": list(report.by),
        "rows": [{**dict(zip(report.by, row.names, strict=True)), **_sums(row)} for row in report.rows],
        "total": _sums(report.total),
        "prices": list(report.sources),
        "unpriced_input_tokens": report.unpriced,
    }


def _name(record: UsageRecord, group: Group) -> str:
    if group == "day":
        return record.at.date().isoformat() if record.at else UNKNOWN
    return record.tenant if group == "tenant" else record.model


def _added(row: Row, record: UsageRecord, cost: Cost) -> Row:
    known = None if row.num_requests is None or record.num_requests is None else row.num_requests + record.num_requests
    return Row(row.names, row.tokens + record.tokens, row.cost + cost, known)


def _ordered(rows: dict[tuple[str, ...], Row], by: Sequence[Group]) -> tuple[Row, ...]:
    if by and by[0] == "day":
        return tuple(rows[names] for names in sorted(rows))
    return tuple(sorted(rows.values(), key=lambda row: (-row.cost.total, row.names)))


def _sums(row: Row) -> dict[str, Any]:
    amounts = {
        "cost": row.cost.total,
        "uncached_cost": row.cost.uncached,
        "saved": row.cost.saved,
        "input_cost": row.cost.ordinary,
        "read_cost": row.cost.read,
        "write_cost": row.cost.written,
        "output_cost": row.cost.output,
    }
    return {
        "requests": row.num_requests,
        "input_tokens": row.tokens.ordinary,
        "read_tokens": row.tokens.read,
        "written_tokens": row.tokens.written,
        "output_tokens": row.tokens.output,
        "hit_rate": round(row.hit_rate, 6),
        **{name: _dollars(amount) for name, amount in amounts.items()},
    }


def _dollars(amount: Decimal) -> float:
    return float(round(amount, 9))
