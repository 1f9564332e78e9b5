"""OpenAI's prompt caching, both generations: automatic in steps of 128 tokens, and breakpoints with paid writes.

    steps        |--- 128 ---|--- 128 ---| ... |--- 128 ---|- rest -|     cached = whole steps in common, from 1,024 on
    breakpoints  |-------- cached -------|-- written 12h --|-- written 30m --|-- ordinary --|
                 0        longest hit: A            breakpoints ...      last: C          total

Cached and written tokens are inside the prompt's total, unlike Anthropic's.
Source: OpenAI's guides and the types of its Python package, November 2026; open points are fields of the rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anaphora.contract.entries import Entries, Missed, Write
from anaphora.contract.layout import (
    Block,
    Key,
    Layout,
    Scope,
    chained_tokens,
    content_of,
    keys_of,
    message_ends,
    scope_of,
)
from anaphora.errors import UnsupportedSetting

LIFETIMES: Mapping[str, float] = {"30m": 1800.0, "12h": 43200.0}
RETENTIONS = ("in_memory", "24h")
LONG_RETENTION = "24h"
LONG_RETENTION_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRules:
    """No contract but the engine's own: every reused token counts as cached, nothing is charged for keeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRules:
    """Models before gpt-5.6: automatic, in whole steps, no write fee."""

    min_tokens: int = 1024
    step: int = 128
    key_separates: bool = True  # open: prompt_cache_key is a hint for routing, so another key may hit elsewhere
    retentions: tuple[str, ...] = RETENTIONS  # others are refused
    default_retention: str = "24h"
    in_memory_idle_s: float = 600.0  # open: 5 to 10 idle minutes
    in_memory_limit_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakpointRules:
    """gpt-5.6 and later: written at breakpoints, for a fee."""

    min_tokens: int = 1024
    max_writes: int = 4
    num_first: int = 0  # open: explicit breakpoints at the front that are looked up besides the latest
    num_latest: int = 80  # open: explicit breakpoints that are looked up (80, or 50 in other text)
    num_message_ends: int = 20  # open: earlier message ends that are looked up in implicit mode
    finds_developer_end: bool = True  # open: the end of the opening developer messages is looked up
    key_separates: bool = True  # open: whether another prompt_cache_key misses
    chat_takes_12h: bool = True  # open: whether a part's ttl may be 12h on Chat Completions
    retentions: tuple[str, ...] = ("24h",)  # open: the older field, still accepted for this value


OpenAIRules = MeasuredRules | StepRules | BreakpointRules


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The request's own words on caching."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: str = "30m"
    key: str | None = None
    retention: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISettings:
    """Request settings that are part of the prefix, as JSON text where they have a structure. None: not given."""

    parallel_tools: bool = True
    text_format: str | None = None
    effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    context_management: str | None = None


@dataclass(frozen=True, slots=True)
class OpenAIBill:
    """One request's prompt tokens. cached + written + ordinary = num_tokens, always."""

    num_tokens: int
    cached: int = 0
    write_30m: int = 0
    write_12h: int = 0

    @property
    def written(self) -> int:
        return self.write_30m + self.write_12h

    @property
    def ordinary(self) -> int:
        return self.num_tokens - self.cached - self.written

    def check(self) -> None:
        assert min(self.cached, self.write_30m, self.write_12h, self.ordinary) >= 0


@dataclass(frozen=True, slots=True)
class StepReckoning:
    """What a request has in common with earlier ones, in whole steps."""

    num_tokens: int
    cached: int
    rules: StepRules = field(default_factory=StepRules)
    writes: tuple[Write, ...] = ()
    reads: tuple[Key, ...] = ()
    missed: Missed | None = None  # why nothing is read, where the rules tell

    def bill(self) -> OpenAIBill:
        """What the host would report."""
        return OpenAIBill(self.num_tokens, self.cached)

    def bill_for(self, num_reused: int) -> OpenAIBill:
        """What can be reported where `num_reused` tokens were really reused."""
        return OpenAIBill(self.num_tokens, _floored(min(self.cached, num_reused), self.rules))

    def uncached(self) -> OpenAIBill:
        return OpenAIBill(self.num_tokens)


@dataclass(frozen=True, slots=True)
class BreakpointReckoning:
    """The longest hit, and the breakpoints that are written, as (tokens, lifetime) in prompt order."""

    num_tokens: int
    hit: int
    marks: tuple[tuple[int, str], ...] = ()
    writes: tuple[Write, ...] = ()
    reads: tuple[Key, ...] = ()
    missed: Missed | None = None  # why nothing is read, where the rules tell

    def bill(self) -> OpenAIBill:
        """What the host would report."""
        return self._billed(self.hit, self.num_tokens)

    def bill_for(self, num_reused: int) -> OpenAIBill:
        """What can be reported where `num_reused` tokens were really reused; what was lost is written again.

        The last token of a prompt that is hit whole is always computed: it is an ordinary one.
        """
        is_hit_whole = self.hit == self.num_tokens and num_reused == self.num_tokens - 1
        return self._billed(min(self.hit, num_reused), num_reused if is_hit_whole else self.num_tokens)

    def uncached(self) -> OpenAIBill:
        return OpenAIBill(self.num_tokens)

    def _billed(self, hit: int, limit: int) -> OpenAIBill:
        """Tokens beyond the hit are charged with the lifetime of the first breakpoint at or behind them."""
        charged = dict.fromkeys(LIFETIMES, 0)
        done = hit
        for tokens, ttl in self.marks:
            stop = min(tokens, limit)
            if stop > done:
                charged[ttl] += stop - done
                done = stop
        bill = OpenAIBill(self.num_tokens, hit, write_30m=charged["30m"], write_12h=charged["12h"])
        bill.check()
        return bill


class StepLedger:
    """Entries under the automatic rules. Takes the time as an argument; not for several threads."""

    def __init__(self, rules: StepRules, entries: Entries | None = None) -> None:
        self.rules = rules
        self._entries = entries if entries is not None else Entries()

    def peek(
        self,
        tokens: NDArray[np.int32],  # [num_tokens]
        options: CacheOptions,
        *,
        scope: Scope,
        now_s: float,
    ) -> StepReckoning:
        """What of this prompt would count as cached at `now_s`. Changes nothing.

        Cost: one digest over the tokens.
        """
        keys = self._keys(tokens, _scope(scope, options, self.rules.key_separates))
        num_live = next((n for n in range(len(keys), 0, -1) if self._entries.is_live(keys[n - 1], now_s)), 0)
        cached = _floored((self._first_step + num_live - 1) * self.rules.step, self.rules) if num_live else 0
        is_short = (options.retention or self.rules.default_retention) == "in_memory"
        lifetime_s = self.rules.in_memory_idle_s if is_short else LONG_RETENTION_S
        limit_s = self.rules.in_memory_limit_s if is_short else float("inf")
        writes = tuple(Write(key, lifetime_s, now_s, limit_s) for key in keys if not self._entries.is_live(key, now_s))
        reads = tuple(key for key in keys if self._entries.is_live(key, now_s))
        missed = None
        if not cached:
            missed = self._entries.missed(reversed(keys), now_s) if keys else Missed("below_minimum")
        return StepReckoning(len(tokens), cached, self.rules, writes, reads, missed)

    def reckon(self, tokens: NDArray[np.int32], options: CacheOptions, *, scope: Scope, now_s: float) -> StepReckoning:
        """The same for a request that does start now."""
        self._entries.sweep(now_s)
        reckoning = self.peek(tokens, options, scope=scope, now_s=now_s)
        for key in reckoning.reads:
            self._entries.refresh(key, now_s)
        return reckoning

    def publish(self, reckoning: StepReckoning) -> None:
        """The request's response has begun."""
        for write in reckoning.writes:
            self._entries.publish(write)

    def check(self) -> None:
        self._entries.check()

    @property
    def _first_step(self) -> int:
        """Whole steps up to the first boundary that can be cached."""
        return max(1, -(-self.rules.min_tokens // self.rules.step))

    def _keys(self, tokens: NDArray[np.int32], scope: Scope) -> list[Key]:
        """Keys of the prefixes that can be cached: one at each step from the minimum on."""
        step, first = self.rules.step, self._first_step
        keys: list[Key] = []
        chain: bytes = scope
        for number in range(1, len(tokens) // step + 1):
            chain = chained_tokens(chain, tokens[(number - 1) * step : number * step].tobytes())
            if number >= first:
                keys.append(Key(chain))
        return keys


class BreakpointLedger:
    """Entries under the breakpoint rules. Takes the time as an argument; not for several threads."""

    def __init__(self, rules: BreakpointRules, entries: Entries | None = None) -> None:
        self.rules = rules
        self._entries = entries if entries is not None else Entries()

    def peek(self, layout: Layout, options: CacheOptions, *, scope: Scope, now_s: float) -> BreakpointReckoning:
        """What this request would read and write if it started at `now_s`. Changes nothing.

        Cost: two digests for each block, one of them over its content.
        """
        own = _scope(scope, options, self.rules.key_separates)
        explicit = [index for index, block in enumerate(layout.blocks) if block.ttl is not None]
        ends = eligible_ends(layout.blocks) if options.mode == "implicit" else []
        part_keys, end_keys = keys_of(layout, own), keys_of(layout, own, ends_messages=True)
        looked_up = [(index, part_keys[index]) for index in self._seen(explicit)]
        looked_up += [(index, end_keys[index]) for index in self._seen_ends(layout.blocks, ends)]
        found = [
            (layout.blocks[index].end, key)
            for index, key in looked_up
            if layout.blocks[index].end >= self.rules.min_tokens and self._entries.is_live(key, now_s)
        ]
        hit = max((end for end, _ in found), default=0)
        marks = [(index, layout.blocks[index].ttl or options.ttl, part_keys[index]) for index in explicit]
        marks = marks[-(self.rules.max_writes - len(ends[-1:])) :]
        marks += [(index, options.ttl, end_keys[index]) for index in ends[-1:]]
        marks = sorted(mark for mark in marks if layout.blocks[mark[0]].end >= self.rules.min_tokens)
        reads = [key for end, key in found if end == hit]
        reads += [key for _, _, key in marks if self._entries.is_live(key, now_s)]
        return BreakpointReckoning(
            layout.num_tokens,
            hit,
            tuple((layout.blocks[index].end, ttl) for index, ttl, _ in marks),
            tuple(Write(key, LIFETIMES[ttl], now_s) for _, ttl, key in marks if not self._entries.is_live(key, now_s)),
            tuple(dict.fromkeys(reads)),
            None if hit else self._missed(layout, looked_up, now_s),
        )

    def reckon(self, layout: Layout, options: CacheOptions, *, scope: Scope, now_s: float) -> BreakpointReckoning:
        """The same for a request that does start now."""
        self._entries.sweep(now_s)
        reckoning = self.peek(layout, options, scope=scope, now_s=now_s)
        for key in reckoning.reads:
            self._entries.refresh(key, now_s)
        return reckoning

    def publish(self, reckoning: BreakpointReckoning) -> None:
        """The request's response has begun."""
        for write in reckoning.writes:
            self._entries.publish(write)

    def check(self) -> None:
        self._entries.check()

    def _missed(self, layout: Layout, looked_up: Sequence[tuple[int, Key]], now_s: float) -> Missed | None:
        """Why nothing was found, where the rules tell."""
        if not looked_up:
            return Missed("no_breakpoint")
        keys = [key for index, key in looked_up if layout.blocks[index].end >= self.rules.min_tokens]
        return self._entries.missed(reversed(keys), now_s) if keys else Missed("below_minimum")

    def _seen(self, explicit: Sequence[int]) -> list[int]:
        """Explicit breakpoints that are looked up: the first few and the latest."""
        first, latest = explicit[: self.rules.num_first], explicit[-self.rules.num_latest :]
        return sorted({*first, *latest})

    def _seen_ends(self, blocks: Sequence[Block], ends: Sequence[int]) -> list[int]:
        """Message ends that are looked up: the implicit breakpoint, those before it, the opening developer run's."""
        seen = set(ends[-(self.rules.num_message_ends + 1) :])
        if ends and self.rules.finds_developer_end and blocks[ends[0]].role == "system":
            seen.add(ends[0])
        return sorted(seen)


def eligible_ends(blocks: Sequence[Block]) -> list[int]:
    """Where implicit breakpoints may stand: last blocks of user messages, of the last tool result of a group, of
    the opening developer run."""
    ends = message_ends(blocks)
    eligible: list[int] = []
    is_opening = True
    for place, index in enumerate(ends):
        role = blocks[index].role
        follows = blocks[ends[place + 1]].role if place + 1 < len(ends) else ""
        is_opening = is_opening and role == "system"
        if role == "user" or (role == "tool" and follows != "tool") or (is_opening and follows != "system"):
            eligible.append(index)
    return eligible


def prefix_settings(settings: OpenAISettings) -> bytes:
    """The settings as part of the prefix, in front of everything."""
    return content_of(
        f"parallel {settings.parallel_tools}",
        f"format {settings.text_format}",
        f"effort {settings.effort}",
        f"verbosity {settings.verbosity}",
        f"tier {settings.service_tier}",
        f"context {settings.context_management}",
    )


def check_retention(retention: str | None, rules: OpenAIRules) -> None:
    """Refuse a retention that the model does not offer.

    Raises: UnsupportedSetting.
    """
    if retention is None or isinstance(rules, MeasuredRules) or retention in rules.retentions:
        return
    raise UnsupportedSetting(
        f"prompt_cache_retention: {retention!r} is not supported on this model. "
        f"Supported: {', '.join(rules.retentions) or 'none'}.",
        field="prompt_cache_retention",
    )


def _scope(scope: Scope, options: CacheOptions, key_separates: bool) -> Scope:
    return Scope(scope + scope_of(options.key)) if key_separates and options.key is not None else scope


def _floored(tokens: int, rules: StepRules) -> int:
    whole = tokens - tokens % rules.step
    return whole if whole >= rules.min_tokens else 0
