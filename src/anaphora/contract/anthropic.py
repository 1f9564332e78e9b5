"""Anthropic's prompt caching: where breakpoints may stand, what a request reads and writes, how it is billed.

    prompt   |------------ read = A ------------|--- 1h write ---|--- 5m write ---|--- input ---|
             0                     highest hit: A        last 1h: B     last mark: C        total

    read = A    1h write = B - A    5m write = C - B    input = total - C

An entry is written at each breakpoint and nowhere else. A read looks at a breakpoint and then back, position by
position, for an entry that some earlier request wrote.
Source: Anthropic's documentation of prompt caching, autumn 2026; points it leaves open are fields of `AnthropicRules`.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from anaphora.contract.entries import Entries, Missed, Write
from anaphora.contract.layout import Block, Key, Layout, Level, Levels, Scope, content_of, keys_of
from anaphora.errors import RequestError

Ttl = Literal["5m", "1h"]
LIFETIMES: Mapping[str, float] = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicRules:
    """What differs by model, and points where sources disagree (marked open)."""

    min_tokens: int = 0  # shortest prefix that is cached
    max_breakpoints: int = 4
    lookback: int = 20  # positions looked at for each breakpoint, itself included
    groups_runs: bool = True  # a run of tool_use, or of tool_result, is one position
    runs_cross_messages: bool = False  # open: whether a run goes on in the next message
    enters_runs: bool = True  # open: whether entries inside a run are found
    counts_thinking: bool = True  # open: whether a thinking block is a position
    reads_across_ttls: bool = True  # open: whether a 1h mark reads what a 5m mark wrote, and the reverse
    keeps_thinking: bool = True  # False: earlier turns' thinking drops out when the user speaks again
    thinking_level: Level = "messages"  # model-specific: first level that the thinking settings are part of
    effort_level: Level = "messages"  # model-specific
    task_budget_level: Level = "messages"  # open
    format_level: Level = "system"  # open: whether an output schema changes the tools level too
    default_effort: str = "high"  # saying the default is saying nothing
    default_thinking: str = '{"type": "disabled"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicSettings:
    """Request settings that are part of the prefix, as JSON text where they have a structure. None: not given."""

    tool_choice: str | None = None
    disables_parallel_tools: bool = False
    thinking: str | None = None
    effort: str | None = None
    task_budget: str | None = None
    output_format: str | None = None
    speed: str | None = None
    has_web_search: bool = False
    has_web_fetch: bool = False
    has_citations: bool = False
    has_images: bool = False


@dataclass(frozen=True, slots=True)
class Breakpoint:
    block_index: int
    ttl: Ttl
    is_automatic: bool = False


@dataclass(frozen=True, slots=True)
class AnthropicBill:
    """One request's input, split as it is billed. read + write_1h + write_5m + input = num_tokens, always."""

    num_tokens: int
    read: int = 0
    write_5m: int = 0
    write_1h: int = 0

    @property
    def written(self) -> int:
        return self.write_5m + self.write_1h

    @property
    def input(self) -> int:
        return self.num_tokens - self.read - self.written

    def check(self) -> None:
        assert min(self.read, self.write_5m, self.write_1h, self.input) >= 0


@dataclass(frozen=True, slots=True)
class Reckoning:
    """What a request reads and writes: A, and the breakpoints long enough to count, as (tokens, lifetime)."""

    num_tokens: int
    hit: int  # A: tokens to the highest hit; 0: none
    marks: tuple[tuple[int, Ttl], ...]
    writes: tuple[Write, ...] = ()
    reads: tuple[Key, ...] = ()
    missed: Missed | None = None  # why nothing is read, where the rules tell

    def bill(self) -> AnthropicBill:
        """What the host would report."""
        return billed(self.num_tokens, self.hit, self.marks)

    def bill_for(self, num_reused: int) -> AnthropicBill:
        """What can be reported where `num_reused` tokens were really reused: never more than these is read.

        What the contract grants and the engine has lost is written again. But the last token of a prompt that
        is hit whole is always computed: it is input.
        """
        total = self.num_tokens
        is_hit_whole = self.hit == total and num_reused == total - 1
        limit = num_reused if is_hit_whole else total
        marks = tuple((min(tokens, limit), ttl) for tokens, ttl in self.marks)
        return billed(total, min(self.hit, num_reused), marks)

    def uncached(self) -> AnthropicBill:
        """The bill of a server that keeps nothing."""
        return AnthropicBill(self.num_tokens)


class AnthropicLedger:
    """Entries of one server under one model's rules. Takes the time as an argument; not for several threads."""

    def __init__(self, rules: AnthropicRules, entries: Entries | None = None) -> None:
        self.rules = rules
        self._entries = entries if entries is not None else Entries()

    def peek(self, layout: Layout, breakpoints: Sequence[Breakpoint], *, scope: Scope, now_s: float) -> Reckoning:
        """What this request would read and write if it started at `now_s`. Changes nothing.

        Cost: a digest of every block; at most `lookback` positions looked up for each breakpoint.
        """
        keys = keys_of(self._as_kept(layout), scope)
        long_enough = [one for one in breakpoints if layout.blocks[one.block_index].end >= self.rules.min_tokens]
        positions = _positions(layout.blocks, self.rules)
        found = self._find(keys, long_enough, positions, now_s)
        marks = tuple((layout.blocks[one.block_index].end, one.ttl) for one in long_enough)
        writes: list[Write] = []
        reads = [] if found is None else [found[1]]
        for one in long_enough:
            live = self._live(keys[one.block_index], one.ttl, now_s)
            if live is None:
                writes.append(Write(self._filed(keys[one.block_index], one.ttl), LIFETIMES[one.ttl], now_s))
            else:
                reads.append(live)
        hit = 0 if found is None else layout.blocks[found[0]].end
        missed = None
        if found is None:
            missed = self._missed(keys, long_enough, positions, now_s)
            missed = Missed("below_minimum" if breakpoints else "no_breakpoint") if not long_enough else missed
        return Reckoning(layout.num_tokens, hit, marks, tuple(writes), tuple(dict.fromkeys(reads)), missed)

    def reckon(self, layout: Layout, breakpoints: Sequence[Breakpoint], *, scope: Scope, now_s: float) -> Reckoning:
        """The same for a request that does start now: what it reads lives on. Its writes wait for `publish`."""
        self._entries.sweep(now_s)
        reckoning = self.peek(layout, breakpoints, scope=scope, now_s=now_s)
        for key in reckoning.reads:
            self._entries.refresh(key, now_s)
        return reckoning

    def publish(self, reckoning: Reckoning) -> None:
        """The request's response has begun: what it wrote can be read from now on."""
        for write in reckoning.writes:
            self._entries.publish(write)

    def check(self) -> None:
        self._entries.check()

    def _find(
        self, keys: Sequence[Key], breakpoints: Sequence[Breakpoint], positions: Sequence[range], now_s: float
    ) -> tuple[int, Key] | None:
        """The highest block with a live entry that can be seen from a breakpoint, and that entry's key."""
        found = (self._nearest(keys, one, positions, now_s) for one in reversed(breakpoints))
        return max((one for one in found if one is not None), default=None)

    def _nearest(
        self, keys: Sequence[Key], breakpoint_: Breakpoint, positions: Sequence[range], now_s: float
    ) -> tuple[int, Key] | None:
        """The nearest block with a live entry that can be seen from one breakpoint, and that entry's key."""
        for index in self._seen_from(breakpoint_.block_index, positions):
            live = self._live(keys[index], breakpoint_.ttl, now_s)
            if live is not None:
                return index, live
        return None

    def _missed(
        self, keys: Sequence[Key], breakpoints: Sequence[Breakpoint], positions: Sequence[range], now_s: float
    ) -> Missed | None:
        """Why nothing was found from breakpoints that are long enough, where the rules tell."""
        seen = ((index, one) for one in reversed(breakpoints) for index in self._seen_from(one.block_index, positions))
        expired = self._entries.missed((self._filed(keys[index], one.ttl) for index, one in seen), now_s)
        if expired is not None or not breakpoints:
            return expired
        last = breakpoints[-1]
        is_further = any(self._live(key, last.ttl, now_s) is not None for key in keys[: last.block_index])
        return Missed("out_of_sight") if is_further else None

    def _seen_from(self, block_index: int, positions: Sequence[range]) -> Iterator[int]:
        """Blocks whose entries are looked up from a breakpoint, nearest first."""
        own = next(index for index, run in enumerate(positions) if block_index < run.stop)
        for position in range(own, max(own - self.rules.lookback, -1), -1):
            run = positions[position]
            last = min(run.stop - 1, block_index)
            first = run.start if self.rules.enters_runs else last
            yield from range(last, first - 1, -1)

    def _live(self, key: Key, ttl: Ttl, now_s: float) -> Key | None:
        filed = self._filed(key, ttl)
        return filed if self._entries.is_live(filed, now_s) else None

    def _filed(self, key: Key, ttl: Ttl) -> Key:
        return key if self.rules.reads_across_ttls else Key(key + ttl.encode())

    def _as_kept(self, layout: Layout) -> Layout:
        """The layout without the thinking that the model drops."""
        if self.rules.keeps_thinking:
            return layout
        asked = max((block.message_index for block in layout.blocks if _is_asked(block)), default=-1)
        blocks = tuple(
            replace(block, content=b"dropped") if block.kind == "thinking" and block.message_index < asked else block
            for block in layout.blocks
        )
        return replace(layout, blocks=blocks)


def breakpoints_of(
    blocks: Sequence[Block], automatic: Ttl | None, rules: AnthropicRules, *, num_more: int = 0
) -> tuple[Breakpoint, ...]:
    """The request's breakpoints in prefix order: the client's own, and the automatic one at the last block.

    `num_more`: marks besides one for each block, which count among the four.
    Raises: RequestError for more than four, for a 1h mark behind a 5m one, and for an automatic mark whose
    lifetime contradicts the mark it falls on.
    """
    marked = {index: Breakpoint(index, _ttl(block.ttl)) for index, block in enumerate(blocks) if block.ttl is not None}
    _check_number(len(marked) + num_more, rules)
    target = next((index for index in range(len(blocks) - 1, -1, -1) if blocks[index].can_be_marked), None)
    if automatic is not None and target is not None:
        known = marked.get(target)
        if known is None:
            _check_number(len(marked) + num_more + 1, rules, path="cache_control")
            marked[target] = Breakpoint(target, automatic, is_automatic=True)
        elif known.ttl != automatic:
            raise RequestError(
                f"top-level cache_control has ttl {automatic!r}, but the target block {blocks[target].path} "
                f"already has ttl {known.ttl!r}. Give both the same, or drop one.",
                field="cache_control.ttl",
            )
    ordered = tuple(marked[index] for index in sorted(marked))
    check_order([("" if one.is_automatic else blocks[one.block_index].path, one.ttl) for one in ordered])
    return ordered


def levels_of(settings: AnthropicSettings, rules: AnthropicRules) -> Levels:
    """At which level each setting becomes part of the prefix. A default that is spelled out is no change."""
    at: dict[Level, list[str]] = {"tools": [], "system": [], "messages": []}
    at["system"] += [
        f"speed {settings.speed or 'standard'}",
        f"search {settings.has_web_search} fetch {settings.has_web_fetch} citations {settings.has_citations}",
    ]
    at["messages"] += [
        f"tool_choice {settings.tool_choice or 'auto'} {settings.disables_parallel_tools}",
        f"images {settings.has_images}",
    ]
    thinking = settings.thinking or rules.default_thinking
    at[rules.thinking_level].append(f"thinking {thinking}")
    at[rules.effort_level].append(f"effort {settings.effort or rules.default_effort}")
    at[rules.task_budget_level].append(f"budget {settings.task_budget}")
    at[rules.format_level].append(f"format {settings.output_format}")
    return Levels(
        tools=content_of(*at["tools"]), system=content_of(*at["system"]), messages=content_of(*at["messages"])
    )


def billed(total: int, hit: int, marks: Sequence[tuple[int, Ttl]]) -> AnthropicBill:
    """The bill for a hit at `hit` tokens and marks at (tokens, lifetime)."""
    last_1h = max((tokens for tokens, ttl in marks if ttl == "1h"), default=0)
    b = max(hit, last_1h)
    c = max(b, *(tokens for tokens, _ in marks)) if marks else b
    bill = AnthropicBill(num_tokens=total, read=hit, write_1h=b - hit, write_5m=c - b)
    bill.check()
    return bill


def _positions(blocks: Sequence[Block], rules: AnthropicRules) -> list[range]:
    """Positions of the walk back, as ranges of blocks, in order."""
    positions: list[range] = []
    for index, block in enumerate(blocks):
        if positions and _joins(blocks[index - 1], block, rules):
            positions[-1] = range(positions[-1].start, index + 1)
        else:
            positions.append(range(index, index + 1))
    return positions


def _joins(before: Block, block: Block, rules: AnthropicRules) -> bool:
    """Whether a block belongs to the position of the one before it."""
    if before.kind == "thinking" and not rules.counts_thinking:
        return before.level == block.level
    is_run = block.kind in ("tool_use", "tool_result") and before.kind == block.kind
    is_near = rules.runs_cross_messages or before.message_index == block.message_index
    return rules.groups_runs and is_run and is_near


def _is_asked(block: Block) -> bool:
    """Whether the user speaks here, other than by a tool's result."""
    return block.role == "user" and block.kind != "tool_result"


def _ttl(text: str) -> Ttl:
    assert text in LIFETIMES, "lifetimes are validated where the request is read"
    return "1h" if text == "1h" else "5m"


def _check_number(found: int, rules: AnthropicRules, *, path: str | None = None) -> None:
    if found > rules.max_breakpoints:
        raise RequestError(
            f"A maximum of {rules.max_breakpoints} blocks with cache_control may be provided. Found {found}.",
            field=path,
        )


def check_order(marks: Sequence[tuple[str, str]]) -> None:
    """Refuse an hour behind five minutes. `marks`: the path of what is marked and the lifetime, in prefix order.

    An empty path is the automatic mark's.
    Raises: RequestError.
    """
    for (before, earlier), (path, ttl) in itertools.pairwise(marks):
        if earlier == "5m" and ttl == "1h":
            here = f"{path}.cache_control.ttl" if path else "cache_control.ttl"
            raise RequestError(
                f"{here}: a ttl='1h' cache_control block must not stand behind a ttl='5m' one "
                f"({before}). The order is: `tools`, `system`, `messages`.",
                field=here,
            )
