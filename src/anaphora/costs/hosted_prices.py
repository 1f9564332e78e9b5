"""Prices of hosted models from `genai-prices`, a data package that others keep up.

It is dated where prices changed, tiered by prompt size, and knows writes for an hour and batches. What it lacks:
OpenAI's writes for 12 hours; they have cost twice the 30-minute ones on every model that lists both.
"""

from datetime import date, datetime
from decimal import Decimal
from importlib.metadata import version
from typing import Any

from genai_prices.data_snapshot import DataSnapshot, get_snapshot
from genai_prices.types import ConditionalPrice, ModelInfo, ModelPrice, StartDateConstraint, TieredPrices

from anaphora.contract.prices import Price, Rates, Tier

LONG_WRITE_FACTOR = Decimal(2)
"""12h over 30m. Source: both rates as listed for gpt-5.6 and gpt-6 models, November 2026."""

_NAMES = {
    "input": "input_mtok",
    "output": "output_mtok",
    "read": "cache_read_mtok",
    "": "cache_write_mtok",
    "5m": "cache_write_5m_mtok",
    "1h": "cache_write_1h_mtok",
}


class HostedPrices:
    """The price book of the installed `genai-prices`. Reads nothing from the network."""

    def __init__(self, snapshot: DataSnapshot | None = None) -> None:
        self._snapshot = snapshot or get_snapshot()
        self._source = f"genai-prices {version('genai-prices')}"

    def price(self, model: str, at: datetime, *, is_batch: bool = False) -> Price | None:
        """The model's price at a time; a batch's where the package knows it, else half of the ordinary one."""
        try:
            provider, info = self._snapshot.find_provider_model(model, None, None, None)
        except LookupError:
            return None
        context = {"processing": "batch"} if is_batch else None
        found = info.get_prices(at, context)
        amounts = {name: value for name, field in _NAMES.items() if (value := getattr(found, field, None)) is not None}
        if "input" not in amounts or "output" not in amounts:
            return None
        halves = is_batch and found == info.get_prices(at)
        if halves:
            amounts = {name: _halved(value) for name, value in amounts.items()}
        note = ", batch at half" if halves else ""
        if provider.id == "openai" and "" in amounts:
            note += f", 12h writes at {LONG_WRITE_FACTOR} x 30m"
        starts = sorted(
            {tier.start for value in amounts.values() if isinstance(value, TieredPrices) for tier in value.tiers}
        )
        return Price(
            model=info.id,
            rates=_rates(amounts, 0, provider.id),
            source=self._source + note,
            tiers=tuple(Tier(start, _rates(amounts, start + 1, provider.id)) for start in starts),
            valid_from=_start_of(info, found, at),
        )


def _rates(amounts: dict[str, Any], num_tokens: int, provider_id: str) -> Rates:
    at = {name: _amount(value, num_tokens) for name, value in amounts.items()}
    writes: dict[str, Decimal] = {name: at[name] for name in ("", "5m", "1h") if name in at}
    if provider_id == "openai" and "" in writes:
        writes["12h"] = writes[""] * LONG_WRITE_FACTOR
    return Rates(at["input"], at["output"], at.get("read"), writes)


def _amount(value: Decimal | TieredPrices, num_tokens: int) -> Decimal:
    if not isinstance(value, TieredPrices):
        return value
    fitting = [tier for tier in value.tiers if num_tokens > tier.start]
    return fitting[-1].price if fitting else value.base


def _halved(value: Decimal | TieredPrices) -> Decimal | TieredPrices:
    if not isinstance(value, TieredPrices):
        return value / 2
    return TieredPrices(value.base / 2, [type(tier)(tier.start, tier.price / 2) for tier in value.tiers])


def _start_of(info: ModelInfo, found: ModelPrice, at: datetime) -> date | None:
    """The day from which the price that holds at `at` has held, where the package says so."""
    conditions = [] if isinstance(info.prices, ModelPrice) else info.prices
    active: ConditionalPrice | None = next(
        (one for one in reversed(conditions) if one.constraint is None or one.constraint.active(at)), None
    )
    constraint = active.constraint if active else None
    return constraint.start_date if isinstance(constraint, StartDateConstraint) else None
