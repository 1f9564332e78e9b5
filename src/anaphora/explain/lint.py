"""Find layouts of prompts that will miss: in one request by their look, in a log of requests by what they cost.

| rule | severity | holds where |
|---|---|---|
| volatile-front | error, warning for dates | tools or opening system text hold a time, UUID or random id |
| volatile-marked | error, warning for dates | a breakpoint's own part holds one: written in every call, never read |
| prefix-short | warning | a breakpoint's prefix has fewer tokens than the host caches |
| miss | error, note where nothing is to be advised | requests repeat parts behind a change; with the reason |

In a log, what looks volatile and stays the same in every request is not reported, nor what a miss shows already.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from anaphora.core.index import common_length
from anaphora.explain.divergence import texts_by_path
from anaphora.explain.reasons import Explanation, Side, explain
from anaphora.explain.volatile import Volatile, VolatileKind, find_volatile
from anaphora.prompt.canonical import Part, Prompt, Tool

Rule = Literal["volatile-front", "volatile-marked", "prefix-short", "miss"]
Severity = Literal["error", "warning", "note"]

WINDOW = 32
"""Earlier requests that one is compared with. Those further back have often been evicted, and time grows with it."""

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


@dataclass(frozen=True, slots=True)
class LogReport:
    """What a log of requests reuses at best as it is, and what keeps it from more."""

    findings: tuple[Finding, ...]  # those that cost most first
    num_requests: int
    num_tokens: int
    num_reused: int  # of a cache that forgets nothing within the window
    num_lost: int  # behind changes, in parts that were sent before


def lint_prompt(side: Side, *, min_tokens: int = 0, steady: Set[str] = frozenset()) -> tuple[Finding, ...]:
    """What in this one prompt is likely to miss. `min_tokens`: shortest prefix that the host caches.
    Parts whose paths are `steady` are known not to change, however they look.

    Cost: one pass over the text in front and over the marked parts.
    """
    pieces = list(_volatile_pieces(side, steady))
    return (*_volatile_front(side, pieces), *_volatile_marked(side, pieces), *_prefix_short(side, min_tokens))


def lint_log(sides: Sequence[Side], *, min_tokens: int = 0, window: int = WINDOW) -> LogReport:
    """What in these requests, in order, misses and why.

    Cost: `window` comparisons of each prompt's tokens.
    """
    seen: list[Finding] = []
    steady = _steady_paths(sides)
    num_reused = num_lost = 0
    for index, side in enumerate(sides):
        alone = lint_prompt(side, min_tokens=min_tokens, steady=steady)
        seen += [replace(one, request_index=index) for one in alone]
        found = closest(sides[max(index - window, 0) : index], side)
        if found is None:
            continue
        num_reused += found.num_reused
        num_lost += found.num_lost
        if found.num_lost:
            seen.append(replace(_miss(found), request_index=index))
    missed = {one.path for one in seen if one.rule == "miss"}
    told = [one for one in seen if one.rule != "volatile-front" or one.path not in missed]
    findings = sorted(_merged(told), key=lambda one: (-one.num_tokens, one.request_index))
    num_tokens = sum(len(side.rendered.tokens) for side in sides)
    return LogReport(tuple(findings), len(sides), num_tokens, num_reused, num_lost)


def closest(earlier: Sequence[Side], side: Side) -> Explanation | None:
    """The explanation against the earlier request that shares most, the latest of equals. None: there is none.

    A request of another scope counts where it shares more than all of the same scope.
    """
    if not earlier:
        return None
    lengths = [common_length(one.rendered.tokens, side.rendered.tokens) for one in earlier]
    ranks = [
        (length, one.scope == side.scope, index)
        for index, (length, one) in enumerate(zip(lengths, earlier, strict=True))
    ]
    return explain(earlier[max(ranks)[2]], side)


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


def _volatile_pieces(side: Side, steady: Set[str]) -> Iterator[_Place]:
    """The first volatile value of each part that may change."""
    wanted = {*_front_paths(side.prompt), *(part.path for part in side.prompt.parts if part.mark is not None)}
    for piece in side.rendered.pieces:
        if piece.path is not None and piece.path in wanted - steady:
            text = side.rendered.text[piece.start : piece.stop]
            found = next((one for one in find_volatile(text) if one.kind not in _LASTING), None)
            if found is not None:
                yield piece.path, found, piece.start


def _front_paths(prompt: Prompt) -> Iterator[str]:
    """Tools and system text that stand in front of the conversation."""
    front: list[Tool | Part] = [*prompt.tools, *prompt.system]
    for message in prompt.messages:
        if message.role != "system":
            break
        front += message.parts
    return (part.path for part in front)


def _steady_paths(sides: Sequence[Side]) -> set[str]:
    """Parts that say the same in each of several requests."""
    texts: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for side in sides:
        for path, text in texts_by_path(side.rendered).items():
            texts.setdefault(path, set()).add(text)
            counts[path] = counts.get(path, 0) + 1
    return {path for path, count in counts.items() if count > 1 and len(texts[path]) == 1}


def _miss(found: Explanation) -> Finding:
    return Finding(
        rule="miss",
        severity="error" if found.advice else "note",
        path=found.where,
        says=found.says,
        advice=found.advice,
        num_tokens=found.num_lost,
    )


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """One finding for each rule, path and, for misses, reason: the first seen, with how often and how much."""
    merged: dict[tuple[str, ...], Finding] = {}
    for one in findings:
        key = (one.rule, one.path, one.says if one.rule == "miss" else "")
        first = merged.get(key)
        merged[key] = (
            one
            if first is None
            else replace(first, num_requests=first.num_requests + 1, num_tokens=first.num_tokens + one.num_tokens)
        )
    return list(merged.values())


def _token_at(side: Side, character: int) -> int:
    """The token that holds this character."""
    return int(np.searchsorted(side.rendered.offsets[:, 1], character, side="right"))


def _shown(side: Side, found: Volatile, start: int) -> str:
    return f"{_NAMES[found.kind]} ({side.rendered.text[start + found.start : start + found.stop]})"
