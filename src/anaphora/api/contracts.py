"""The ledgers behind the usage fields: every request is reckoned when it starts and published when it begins to answer.

read, rendered --reckon--> Tab --(first token: publish)--> others can read what it wrote
                            └── bills(receipts)   what the usage fields say: never more read than was reused
                            └── told(receipts)    what the host would have said, and the price of both
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphora.api.anthropic_marks import MarkedPrompt
from anaphora.api.openai_marks import KeyedPrompt
from anaphora.contract.anthropic import LIFETIMES as ANTHROPIC_LIFETIMES
from anaphora.contract.anthropic import AnthropicBill, AnthropicLedger, Reckoning
from anaphora.contract.entries import Missed
from anaphora.contract.layout import Levels, Scope, scope_of
from anaphora.contract.openai import (
    LIFETIMES,
    LONG_RETENTION,
    LONG_RETENTION_S,
    BreakpointLedger,
    BreakpointReckoning,
    BreakpointRules,
    CacheOptions,
    OpenAIBill,
    StepLedger,
    StepReckoning,
    StepRules,
)
from anaphora.contract.prices import Cost, Price, PriceBook, Tokens, cost_of
from anaphora.contract.profiles import Profile
from anaphora.engine.request import Keep, Receipt, Tenant

Bill = AnthropicBill | OpenAIBill


@dataclass(frozen=True, slots=True)
class _Measured:
    """No contract but what the engine reused."""

    num_tokens: int
    missed: Missed | None = None

    def bill(self) -> OpenAIBill:
        return OpenAIBill(self.num_tokens)

    def bill_for(self, num_reused: int) -> OpenAIBill:
        return OpenAIBill(self.num_tokens, num_reused)

    def uncached(self) -> OpenAIBill:
        return OpenAIBill(self.num_tokens)


AnyReckoning = Reckoning | StepReckoning | BreakpointReckoning | _Measured


@dataclass(frozen=True, slots=True)
class Tab:
    """One HTTP request in the ledgers: a reckoning for each of its engine requests."""

    profile: str
    reckonings: tuple[AnyReckoning, ...]
    publish: Callable[[int], None]  # the engine request with this number has begun to answer
    price: Price | None = None
    keep: tuple[Keep, ...] = ()  # what the request's marks ask the engine to hold on to

    @property
    def missed(self) -> Missed | None:
        """Why the contract reads nothing, where its rules tell."""
        found = [one.missed for one in self.reckonings]
        return found[0] if all(found) else None

    def only(self, numbers: Sequence[int]) -> "Tab":
        """The tab of some of the engine requests."""
        return replace(self, reckonings=tuple(self.reckonings[number] for number in numbers))

    def bills(self, receipts: Sequence[Receipt]) -> tuple[Bill, ...]:
        """What the usage fields say."""
        return tuple(_billed(one, receipt) for one, receipt in zip(self.reckonings, receipts, strict=True))

    def told(self, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """The `contract` object of the extension: the host's own numbers, whatever was really reused, and costs."""
        hosted = [
            one.bill_for(receipt.num_reused_tokens) if isinstance(one, _Measured) else one.bill()
            for one, receipt in zip(self.reckonings, receipts, strict=True)
        ]
        tokens = sum((tokens_of(bill) for bill in hosted), Tokens())
        told: dict[str, Any] = {
            "profile": self.profile,
            "input_tokens": tokens.ordinary,
            "read_tokens": tokens.read,
            "written_tokens": tokens.written,
        }
        if self.price is None:
            return told
        total = Cost()
        for bill, receipt in zip(hosted, receipts, strict=True):
            output = Tokens(output=receipt.num_generated_tokens)
            total += cost_of(tokens_of(bill) + output, self.price)
        amounts = {"cost_usd": total.total, "uncached_cost_usd": total.uncached, "saved_usd": total.saved}
        return {
            **told,
            **{name: _dollars(amount) for name, amount in amounts.items()},
            "priced_as": self.price.model,
            "price_source": self.price.source,
        }


class Contracts:
    """The ledgers of one server under one profile. Belongs to the event loop."""

    def __init__(
        self, profile: Profile, *, prices: PriceBook | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.profile = profile
        self.clock = clock
        self._prices = prices
        self._anthropic = AnthropicLedger(profile.anthropic)
        rules = profile.openai
        self._steps = StepLedger(rules) if isinstance(rules, StepRules) else None
        self._breakpoints = BreakpointLedger(rules) if isinstance(rules, BreakpointRules) else None

    def open_message(self, marked: MarkedPrompt, tenant: Tenant, model: str, *, started_s: float) -> Tab:
        """Reckon a Messages request that started at `started_s`."""
        scope = scope_of("anthropic", tenant, model)
        reckoning = self._anthropic.reckon(marked.layout, marked.breakpoints, scope=scope, now_s=started_s)
        keep = [
            Keep(marked.layout.blocks[mark.block_index].end, ANTHROPIC_LIFETIMES[mark.ttl])
            for mark in marked.breakpoints
        ]
        return self._tab(model, [reckoning], lambda _: self._anthropic.publish(reckoning), keep)

    def open_chat(
        self, keyed: KeyedPrompt, tokens: NDArray[np.int32], tenant: Tenant, model: str, *, started_s: float
    ) -> Tab:
        """Reckon a Chat Completions request."""
        ledger = self._breakpoints
        if ledger is None or keyed.layout is None:
            return self._open_tokens([tokens], (keyed.options, keyed.levels), tenant, model, started_s=started_s)
        scope = scope_of("openai", tenant, model)
        reckoning = ledger.reckon(keyed.layout, keyed.options, scope=scope, now_s=started_s)
        keep = [Keep(block.end, LIFETIMES[block.ttl]) for block in keyed.layout.blocks if block.ttl is not None]
        return self._tab(model, [reckoning], lambda _: ledger.publish(reckoning), keep)

    def open_texts(self, prompts: Sequence[NDArray[np.int32]], tenant: Tenant, model: str, *, started_s: float) -> Tab:
        """Reckon a Completions request, which has no say in caching. Where breakpoints count it caches nothing."""
        return self._open_tokens(prompts, (CacheOptions(), Levels()), tenant, model, started_s=started_s)

    def _open_tokens(
        self,
        prompts: Sequence[NDArray[np.int32]],
        said: tuple[CacheOptions, Levels],
        tenant: Tenant,
        model: str,
        *,
        started_s: float,
    ) -> Tab:
        ledger, (options, levels) = self._steps, said
        is_long = options.retention == LONG_RETENTION and len(prompts) == 1
        keep = [Keep(len(prompts[0]), LONG_RETENTION_S)] if is_long else []
        if ledger is None:
            is_measured = self._breakpoints is None
            reckonings = [
                _Measured(len(tokens)) if is_measured else BreakpointReckoning(len(tokens), 0) for tokens in prompts
            ]
            return self._tab(model, reckonings, lambda _: None, keep)
        scope = Scope(scope_of("openai", tenant, model) + levels.tools)
        counted = [ledger.reckon(tokens, options, scope=scope, now_s=started_s) for tokens in prompts]
        return self._tab(model, counted, lambda number: ledger.publish(counted[number]), keep)

    def at_batch_price(self, tab: Tab, model: str) -> Tab:
        """The tab of a request that waited in a batch."""
        return tab if tab.price is None else replace(tab, price=self._price(model, is_batch=True))

    def _price(self, model: str, *, is_batch: bool = False) -> Price | None:
        if self._prices is None:
            return None
        return self._prices.price(self.profile.priced_as or model, datetime.now(UTC), is_batch=is_batch)

    def _tab(
        self,
        model: str,
        reckonings: Sequence[AnyReckoning],
        publish: Callable[[int], None],
        keep: Sequence[Keep] = (),
    ) -> Tab:
        wishes = tuple(one for one in keep if one.num_tokens)
        return Tab(self.profile.name, tuple(reckonings), publish, self._price(model), wishes)


def tokens_of(bill: Bill) -> Tokens:
    """A bill's tokens by what they are charged as."""
    if isinstance(bill, AnthropicBill):
        return Tokens(bill.input, bill.read, {"5m": bill.write_5m, "1h": bill.write_1h})
    return Tokens(bill.ordinary, bill.cached, {"30m": bill.write_30m, "12h": bill.write_12h})


def _billed(reckoning: AnyReckoning, receipt: Receipt) -> Bill:
    """Where nothing is kept, nothing is written either."""
    if receipt.stop_reason in ("cache_off", "not_cacheable"):
        return reckoning.uncached()
    return reckoning.bill_for(receipt.num_reused_tokens)


def _dollars(amount: Decimal) -> float:
    return float(round(amount, 9))
