"""What tokens cost: dated, size-tiered rates with their source, and one request's cost with and without caching.

Amounts are US dollars, rates are dollars per million tokens, both exact decimals. These are for estimates and
comparisons; invoices come from the host.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Protocol

from anaphora.errors import SettingsError

MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens by what they are charged as. `writes` is by lifetime; "" where the source doesn't say."""

    ordinary: int = 0  # input, neither read from the cache nor written to it
    read: int = 0
    writes: Mapping[str, int] = field(default_factory=dict)
    output: int = 0

    @property
    def written(self) -> int:
        return sum(self.writes.values())

    @property
    def input(self) -> int:
        """All input tokens."""
        return self.ordinary + self.read + self.written

    def __add__(self, other: "Tokens") -> "Tokens":
        ttls = dict.fromkeys([*self.writes, *other.writes])
        return Tokens(
            self.ordinary + other.ordinary,
            self.read + other.read,
            {ttl: self.writes.get(ttl, 0) + other.writes.get(ttl, 0) for ttl in ttls},
            self.output + other.output,
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """Dollars per million tokens. None: the host has no such rate, so these tokens cost what input costs."""

    input: Decimal
    output: Decimal
    read: Decimal | None = None
    writes: Mapping[str, Decimal] = field(default_factory=dict)  # by lifetime; "" is the host's default

    def write(self, ttl: str) -> Decimal:
        """The rate of writing for a lifetime; the default lifetime's where it has none of its own."""
        return self.writes.get(ttl, self.writes.get("", self.input))


@dataclass(frozen=True, slots=True)
class Tier:
    """Rates of a request with more than `above` input tokens: of all its tokens, not only of those above."""

    above: int
    rates: Rates


@dataclass(frozen=True, slots=True)
class Price:
    """One model's rates from a day on, and where they are from."""

    model: str
    rates: Rates
    source: str
    tiers: tuple[Tier, ...] = ()  # by size
    valid_from: date | None = None

    def rates_for(self, num_input_tokens: int) -> Rates:
        """The rates of a request of this size."""
        fitting = [tier for tier in self.tiers if num_input_tokens > tier.above]
        return max(fitting, key=lambda tier: tier.above).rates if fitting else self.rates


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars. `uncached` is what the same tokens had cost without a cache: all input at the input rate."""

    ordinary: Decimal = Decimal(0)
    read: Decimal = Decimal(0)
    written: Decimal = Decimal(0)
    output: Decimal = Decimal(0)
    uncached: Decimal = Decimal(0)

    @property
    def total(self) -> Decimal:
        return self.ordinary + self.read + self.written + self.output

    @property
    def saved(self) -> Decimal:
        """What caching saved; below zero where writes were paid and not read."""
        return self.uncached - self.total

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.ordinary + other.ordinary,
            self.read + other.read,
            self.written + other.written,
            self.output + other.output,
            self.uncached + other.uncached,
        )


class PriceBook(Protocol):
    """Where prices come from."""

    def price(self, model: str, at: datetime, *, is_batch: bool = False) -> Price | None:
        """The model's price at a time, or None where it is not known."""
        ...


def cost_of(tokens: Tokens, price: Price, *, factor: Decimal = Decimal(1), is_one_request: bool = True) -> Cost:
    """The cost of these tokens. `factor` scales everything (residency, fast mode).

    Tokens summed over many requests are charged at the base tier: how large each request was is not known.
    """
    rates = price.rates_for(tokens.input) if is_one_request else price.rates
    scale = factor / MILLION
    read = rates.input if rates.read is None else rates.read
    output = tokens.output * rates.output * scale
    return Cost(
        ordinary=tokens.ordinary * rates.input * scale,
        read=tokens.read * read * scale,
        written=sum((count * rates.write(ttl) for ttl, count in tokens.writes.items()), Decimal(0)) * scale,
        output=output,
        uncached=tokens.input * rates.input * scale + output,
    )


class PriceTable:
    """Prices of one's own, by model and day. A batch's factor is part of the row, where there is one."""

    def __init__(self, prices: Iterable[Price], batch_factors: Mapping[str, Decimal] | None = None) -> None:
        self._prices: dict[str, list[Price]] = {}
        for price in sorted(prices, key=lambda one: one.valid_from or date.min):
            self._prices.setdefault(price.model, []).append(price)
        self._batch_factors = dict(batch_factors or {})

    def price(self, model: str, at: datetime, *, is_batch: bool = False) -> Price | None:
        """The latest price that held on that day."""
        day = at.astimezone(UTC).date()
        held = [one for one in self._prices.get(model, []) if (one.valid_from or date.min) <= day]
        if not held:
            return None
        factor = self._batch_factors.get(model, Decimal(1)) if is_batch else Decimal(1)
        return held[-1] if factor == 1 else _scaled(held[-1], factor)


class FirstOf:
    """Several price books: the first that knows a model wins."""

    def __init__(self, *books: PriceBook) -> None:
        self._books = books

    def price(self, model: str, at: datetime, *, is_batch: bool = False) -> Price | None:
        return next((price for book in self._books if (price := book.price(model, at, is_batch=is_batch))), None)


def parse_prices(text: str, *, source: str) -> PriceTable:
    """A price table from TOML: `[[price]]` tables with model, input, output; and valid_from, read, write, tiers, batch.

    Raises: SettingsError naming the entry.
    """
    try:
        rows = tomllib.loads(text, parse_float=Decimal).get("price", [])
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{source} is not valid TOML: {error}.") from None
    if not isinstance(rows, list) or not rows:
        raise SettingsError(f"{source} has no [[price]] entries.")
    prices, factors = [], {}
    for number, row in enumerate(rows, start=1):
        where = f"{source}, price {number}"
        prices.append(_price(row, where, source))
        if "batch" in row:
            factors[prices[-1].model] = _amount(row["batch"], f"{where}: batch")
    return PriceTable(prices, factors)


def _price(row: Mapping[str, Any], where: str, source: str) -> Price:
    known = {"model", "input", "output", "read", "write", "valid_from", "tiers", "batch", "source"}
    if set(row) - known:
        raise SettingsError(f"{where}: {', '.join(sorted(set(row) - known))} is no field. Fields: {', '.join(known)}.")
    model, day = row.get("model"), row.get("valid_from")
    if not isinstance(model, str) or not model:
        raise SettingsError(f"{where}: model must be a name.")
    if day is not None and type(day) is not date:
        raise SettingsError(f"{where}: valid_from must be a date such as 2026-11-30.")
    tiers = []
    for tier in row.get("tiers", []):
        above = tier.get("above")
        if not isinstance(above, int):
            raise SettingsError(f"{where}: each of tiers needs above, a number of tokens.")
        tiers.append(Tier(above, _rates({**row, **tier}, where)))
    return Price(model, _rates(row, where), str(row.get("source", source)), tuple(tiers), day)


def _rates(row: Mapping[str, Any], where: str) -> Rates:
    write = row.get("write", {})
    by_ttl = write if isinstance(write, dict) else {"": write}
    return Rates(
        input=_amount(row.get("input"), f"{where}: input"),
        output=_amount(row.get("output"), f"{where}: output"),
        read=None if row.get("read") is None else _amount(row["read"], f"{where}: read"),
        writes={ttl: _amount(rate, f"{where}: write") for ttl, rate in by_ttl.items()},
    )


def _amount(value: object, where: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not Decimal(value).is_finite() or value < 0:
        raise SettingsError(f"{where} must be a number that is not negative.")
    return Decimal(value)


def _scaled(price: Price, factor: Decimal) -> Price:
    def rates(one: Rates) -> Rates:
        read = None if one.read is None else one.read * factor
        return Rates(one.input * factor, one.output * factor, read, {ttl: w * factor for ttl, w in one.writes.items()})

    tiers = tuple(Tier(tier.above, rates(tier.rates)) for tier in price.tiers)
    return Price(price.model, rates(price.rates), price.source, tiers, price.valid_from)
