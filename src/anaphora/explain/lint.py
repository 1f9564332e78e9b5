"""Find layouts of prompts that will miss: in one request by their look, in a log of requests by what they cost.

| rule | severity | holds where |
|---|---|---|
| volatile-front | error, warning for dates | tools or opening system text hold a time, UUID or random id |
| volatile-marked | error, warning for dates | a breakpoint's own part holds one: written in every call, never read |
| prefix-short | warning | a breakpoint's prefix has fewer tokens than the host caches |
| unmarked | warning | requests share enough to be cached, and nothing is marked where marks are needed |
| idle | warning | a request comes later than what it would have read was kept for |
| fan-out | warning | a request is sent before an earlier one that opens alike has begun to answer |
| miss | error, note where nothing is to be advised | requests repeat parts behind a change; with the reason |

In a log, what looks volatile and stays the same in every request is not reported, nor what a miss shows already.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from anaphora.explain.divergence import text_of
from anaphora.explain.openings import Nearest, Openings
from anaphora.explain.reasons import Explanation, Reason, Side, explain, explain_from
from anaphora.explain.volatile import Volatile, VolatileKind, find_volatile
from anaphora.prompt.canonical import Part, Prompt, Tool

Rule = Literal["volatile-front", "volatile-marked", "prefix-short", "unmarked", "idle", "fan-out", "miss"]
Severity = Literal["error", "warning", "note"]

WINDOW = 1024
"""Earlier requests that one is compared with. Memory grows with it, time does not."""

MARK_LIFETIMES_S = {"5m": 300.0, "1h": 3600.0, "30m": 1800.0, "12h": 43200.0, "24h": 86400.0}
DEFAULT_LIFETIME_S = 300.0
"""Of a mark that names none: Anthropic's."""

MAX_CACHED_LOOKS = 10_000

_ANY_MESSAGE = re.compile(r"messages\[\d+\]")
"""Conversations grow: the same change in another message is the same thing to change."""

_Scope = tuple[tuple[str, str], ...]

_Place = tuple[str, Volatile, int]
"""A part's path, a value in it, and where the part begins in the text."""

_LASTING: frozenset[VolatileKind] = frozenset({"number"})
_NAMES = {"time": "a time", "date": "a date", "uuid": "a UUID", "nonce": "a random id"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to change, where it was first seen and in how many requests."""

    rule: Rule
    severity: Severity
    path: str
    says: str
    advice: str
    request_index: int = 0
    num_requests: int = 1
    num_tokens: int = 0  # that can't be reused because of it, over all these requests
    cause: Reason | None = None  # of a miss


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of a log, and what the log says of it."""

    side: Side
    at_s: float | None = None  # when it was sent
    began_s: float | None = None  # when its answer began, or ended
    num_read: int | None = None  # tokens that its usage says were read from a cache; None: not told
    needs_marks: bool = False  # its host caches nothing that is not marked


@dataclass(frozen=True, slots=True)
class LogReport:
    """What a log of requests reuses at best as it is, and what keeps it from more."""

    findings: tuple[Finding, ...]  # those that cost most first
    num_requests: int
    num_tokens: int
    num_reused: int  # of a cache that forgets nothing within the window
    num_lost: int  # behind changes, in parts that were sent before
    num_read: int | None = None  # that the requests' own usage says were read; None: none says
    num_tokens_told: int = 0  # tokens of the requests whose usage says so
    advice: tuple[str, ...] = ()  # how to order and mark prompts so that what is lost is reused


def lint_prompt(
    side: Side, *, min_tokens: int = 0, steady: Set[str] = frozenset(), looks: dict[str, Volatile | None] | None = None
) -> tuple[Finding, ...]:
    """What in this one prompt is likely to miss. `min_tokens`: shortest prefix that the host caches.
    Parts whose paths are `steady` are known not to change, however they look. `looks` remembers what texts hold.

    Cost: one pass over the text in front and over the marked parts.
    """
    pieces = list(_volatile_pieces(side, steady, {} if looks is None else looks))
    return (*_volatile_front(side, pieces), *_volatile_marked(side, pieces), *_prefix_short(side, min_tokens))


def lint_log(log: Iterable[Side | Sent], *, min_tokens: int = 0, window: int = WINDOW) -> LogReport:
    """What in these requests, in order, misses and why.

    Cost: one walk of a tree for each, and one explanation where it leaves all before it.
    """
    linter = Linter(min_tokens=min_tokens, window=window)
    for one in log:
        linter.take(one if isinstance(one, Sent) else Sent(one))
    return linter.report()


class Linter:
    """Takes requests one at a time; holds no more of them than the window."""

    def __init__(self, *, min_tokens: int = 0, window: int = WINDOW) -> None:
        self._min_tokens = min_tokens
        self._window = window
        self._all: Openings[Sent] = Openings()
        self._own: dict[_Scope, Openings[Sent]] = {}
        self._order: deque[_Scope] = deque()
        self._seen = _Merger()
        self._steady = _SteadyParts()
        self._shared = _SharedParts()
        self._looks: dict[str, Volatile | None] = {}
        self._num_requests = self._num_tokens = self._num_reused = self._num_lost = 0
        self._num_read: int | None = None
        self._num_tokens_told = 0

    def take(self, sent: Sent) -> None:
        """Look at the next request of the log."""
        index, side = self._num_requests, sent.side
        self._num_requests += 1
        self._num_tokens += len(side.rendered.tokens)
        if sent.num_read is not None:
            self._num_read = (self._num_read or 0) + sent.num_read
            self._num_tokens_told += len(side.rendered.tokens)
        self._steady.take(side)
        for one in lint_prompt(side, min_tokens=self._min_tokens, looks=self._looks):
            self._seen.take(replace(one, request_index=index))
        if len(side.rendered.tokens):
            self._compare(sent, index)

    def report(self) -> LogReport:
        """What was found so far, what costs most first."""
        findings = self._seen.findings()
        missed = {one.path for one in findings if one.rule == "miss"}
        told = [
            one
            for one in findings
            if not (one.rule.startswith("volatile") and self._steady.has(one.path))
            and (one.rule != "volatile-front" or one.path not in missed)
        ]
        told.sort(key=lambda one: (-one.num_tokens, one.request_index))
        return LogReport(
            findings=tuple(told),
            num_requests=self._num_requests,
            num_tokens=self._num_tokens,
            num_reused=self._num_reused,
            num_lost=self._num_lost,
            num_read=self._num_read,
            num_tokens_told=self._num_tokens_told,
            advice=(*_ordering(told), *self._shared.advice(self._min_tokens)),
        )

    def _compare(self, sent: Sent, index: int) -> None:
        side = sent.side
        nearest = self._nearest(sent)
        if nearest is None:
            return
        earlier, num_alike = nearest.value, nearest.num_tokens
        if sent.needs_marks and earlier.side.scope == side.scope:
            self._shared.take(side, num_alike)
        found = _explained(earlier.side, side, num_alike)
        self._num_reused += found.num_reused
        self._num_lost += found.num_lost
        if found.num_lost:
            self._seen.take(replace(_miss(found), request_index=index))
        for one in _timed(earlier, sent, found, self._min_tokens):
            self._seen.take(replace(one, request_index=index))

    def _nearest(self, sent: Sent) -> Nearest[Sent] | None:
        """The earlier request that shares most, the latest of equals, and remember this one.

        One of another scope counts where it shares more than all of the same scope.
        """
        tokens, scope = sent.side.rendered.tokens, tuple(sorted(sent.side.scope.items()))
        anybody = self._all.add(tokens, sent).nearest
        own = self._own.setdefault(scope, Openings()).add(tokens, sent).nearest
        self._order.append(scope)
        if len(self._order) > self._window:
            oldest = self._order.popleft()
            self._all.forget_oldest()
            self._own[oldest].forget_oldest()
            if not len(self._own[oldest]):
                del self._own[oldest]
        return own if own is not None and anybody is not None and own.num_tokens == anybody.num_tokens else anybody


class _Merger:
    """One finding for each rule, path and, for misses, reason: the first seen, with how often and how much."""

    def __init__(self) -> None:
        self._merged: dict[tuple[str, ...], Finding] = {}

    def take(self, one: Finding) -> None:
        key = (one.rule, _ANY_MESSAGE.sub("messages[*]", one.path), one.says if one.rule == "miss" else "")
        first = self._merged.get(key)
        if first is not None:
            one = replace(first, num_requests=first.num_requests + 1, num_tokens=first.num_tokens + one.num_tokens)
        self._merged[key] = one

    def findings(self) -> list[Finding]:
        return list(self._merged.values())


class _SharedParts:
    """Up to which part requests are the same as one before them: where a mark would pay."""

    def __init__(self) -> None:
        self._num_requests = 0
        self._ends: dict[str, list[int]] = {}  # path -> requests that share all up to it, their tokens, marked ones

    def take(self, side: Side, num_alike: int) -> None:
        self._num_requests += 1
        marked = {part.path for part in side.prompt.parts if part.mark is not None}
        last = None
        for span in side.rendered.token_spans():
            if span.stop > num_alike:
                break
            last = span if span.path is not None else last
        if last is not None and last.path is not None:
            counts = self._ends.setdefault(_ANY_MESSAGE.sub("messages[*]", last.path), [0, 0, 0])
            counts[0] += 1
            counts[1] += last.stop
            counts[2] += last.path in marked

    def advice(self, min_tokens: int) -> Iterator[str]:
        """The place whose mark would be read most, unless it mostly has one, or is a message: those move on."""
        places = {path: counts for path, counts in self._ends.items() if "messages" not in path}
        if not places:
            return
        path, (num_requests, num_tokens, num_marked) = max(places.items(), key=lambda item: item[1][1])
        num_each = num_tokens // num_requests
        if 2 * num_marked < num_requests and num_each >= max(1, min_tokens):
            among = f"{num_requests:,} of {self._num_requests:,} requests that repeat anything"
            yield f"Mark {path}: the {num_each:,} tokens up to there are what {among} repeat."


class _SteadyParts:
    """Parts in front that say the same in each of several requests."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}  # path -> hash of the text
        self._counts: dict[str, int] = {}
        self._changing: set[str] = set()

    def take(self, side: Side) -> None:
        for path in _watched_paths(side.prompt):
            text = hash(text_of(side.rendered, path))
            if self._texts.setdefault(path, text) != text:
                self._changing.add(path)
            self._counts[path] = self._counts.get(path, 0) + 1

    def has(self, path: str) -> bool:
        return self._counts.get(path, 0) > 1 and path not in self._changing


def _explained(first: Side, second: Side, num_alike: int) -> Explanation:
    """The explanation, quickly where nothing behind the difference was sent before."""
    num_tokens = len(second.rendered.tokens)
    if first.scope != second.scope:
        return explain(first, second)
    if num_alike == min(len(first.rendered.tokens), num_tokens):
        return Explanation("none", "", num_alike, num_tokens)
    return explain_from(first, second, num_alike)


def _timed(earlier: Sent, sent: Sent, found: Explanation, min_tokens: int) -> Iterator[Finding]:
    """What marks and times of two requests that open alike have against a hit."""
    num_shared = found.num_reused
    if not num_shared or num_shared < min_tokens:
        return
    marks = [part.mark for part in earlier.side.prompt.parts if part.mark is not None]
    if sent.needs_marks and not marks and min_tokens:
        yield Finding(
            rule="unmarked",
            severity="warning",
            path=found.where or "messages",
            says="Requests open alike, and nothing is marked: this host caches what is marked.",
            advice=f"Mark the last part in front of {found.where} with cache_control." if found.where else _MARK_LAST,
            num_tokens=num_shared,
        )
    if sent.at_s is None or earlier.at_s is None:
        return
    if earlier.began_s is not None and earlier.at_s <= sent.at_s < earlier.began_s and found.reason == "none":
        yield Finding(
            rule="fan-out",
            severity="warning",
            path="",
            says="It was sent before an earlier request that opens alike had begun to answer: both pay for the prefix.",
            advice="Send one request first, and the others when its answer begins.",
            num_tokens=num_shared,
        )
    lifetime_s = max((MARK_LIFETIMES_S.get(mark.ttl or "", DEFAULT_LIFETIME_S) for mark in marks), default=None)
    if lifetime_s is not None and sent.at_s - earlier.at_s > lifetime_s:
        yield Finding(
            rule="idle",
            severity="warning",
            path="",
            says=f"It came later than the {lifetime_s / 60:,.0f} minutes that what it would have read was kept for.",
            advice="Ask for a longer lifetime, or ask again in time.",
            num_tokens=num_shared,
        )


_MARK_LAST = "Mark the last part that stays the same with cache_control."


def _ordering(findings: Sequence[Finding]) -> Iterator[str]:
    """Static parts first: which parts to move, and in which order tools should be sent."""
    moved = [one.path for one in findings if one.rule == "miss" and one.advice.startswith("Move")]
    if moved:
        yield f"Put what changes behind what stays: move what differs in {', '.join(dict.fromkeys(moved))} to the end."
    if any(one.cause in ("tools_reordered", "key_order") for one in findings):
        yield "Write tools and JSON in one fixed order."
    if any(one.rule == "fan-out" for one in findings):
        yield "Warm the prefix with one request before sending many."


def _volatile_front(side: Side, pieces: Sequence[_Place]) -> Iterator[Finding]:
    front = set(_front_paths(side.prompt))
    for path, found, start in pieces:
        if path in front:
            behind = len(side.rendered.tokens) - _token_at(side, start + found.start)
            yield Finding(
                rule="volatile-front",
                severity="warning" if found.kind == "date" else "error",
                path=path,
                says=f"{path} holds {_shown(side, found, start)}, in front of {behind:,} tokens.",
                advice="Move it behind everything that stays the same, into the last user message.",
                num_tokens=behind,
            )


def _volatile_marked(side: Side, pieces: Sequence[_Place]) -> Iterator[Finding]:
    marked = {part.path for part in side.prompt.parts if part.mark is not None}
    for path, found, start in pieces:
        if path in marked:
            yield Finding(
                rule="volatile-marked",
                severity="warning" if found.kind == "date" else "error",
                path=path,
                says=f"The breakpoint at {path} ends a part with {_shown(side, found, start)}: never read again.",
                advice="Put the breakpoint on the last part that stays the same.",
            )


def _prefix_short(side: Side, min_tokens: int) -> Iterator[Finding]:
    if not min_tokens or all(part.mark is None for part in side.prompt.parts):
        return
    ends = {span.path: span.stop for span in side.rendered.token_spans()}
    for part in side.prompt.parts:
        end = ends.get(part.path)
        if part.mark is not None and end is not None and end < min_tokens:
            yield Finding(
                rule="prefix-short",
                severity="warning",
                path=part.path,
                says=f"The prefix up to the breakpoint at {part.path} has {end:,} tokens; {min_tokens:,} are needed.",
                advice="Put the breakpoint further back, or leave it out.",
            )


def _volatile_pieces(side: Side, steady: Set[str], looks: dict[str, Volatile | None]) -> Iterator[_Place]:
    """The first volatile value of each part that may change."""
    wanted = set(_watched_paths(side.prompt)) - steady
    for piece in side.rendered.pieces:
        if piece.path is not None and piece.path in wanted:
            text = side.rendered.text[piece.start : piece.stop]
            if text not in looks:
                if len(looks) >= MAX_CACHED_LOOKS:
                    looks.clear()
                looks[text] = next((one for one in find_volatile(text) if one.kind not in _LASTING), None)
            if (found := looks[text]) is not None:
                yield piece.path, found, piece.start


def _watched_paths(prompt: Prompt) -> Iterator[str]:
    """Parts in front of the conversation, and those with a mark."""
    yield from _front_paths(prompt)
    yield from (part.path for part in prompt.parts if part.mark is not None)


def _front_paths(prompt: Prompt) -> Iterator[str]:
    """Tools and system text that stand in front of the conversation."""
    front: list[Tool | Part] = [*prompt.tools, *prompt.system]
    for message in prompt.messages:
        if message.role != "system":
            break
        front += message.parts
    return (part.path for part in front)


def _miss(found: Explanation) -> Finding:
    return Finding(
        rule="miss",
        severity="error" if found.advice else "note",
        path=found.where,
        says=found.says,
        advice=found.advice,
        num_tokens=found.num_lost,
        cause=found.reason,
    )


def _token_at(side: Side, character: int) -> int:
    """The token that holds this character."""
    return int(np.searchsorted(side.rendered.offsets[:, 1], character, side="right"))


def _shown(side: Side, found: Volatile, start: int) -> str:
    return f"{_NAMES[found.kind]} ({side.rendered.text[start + found.start : start + found.stop]})"
