"""Percentiles, totals and ratios of what was measured. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from anaphora.bench.lines import Line, Target
from anaphora.bench.load.calls import Answered, WaveResult


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles in milliseconds."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One server in one wave, over all rounds."""

    num_answered: int
    errors: Mapping[str, int]  # kind -> how many
    num_unasked: int  # turns that a failed one before them took away
    wall_s: float  # all rounds together
    requests_per_s: float  # this and the next: median of the rounds
    output_tokens_per_s: float
    first_token: Spread | None  # None: nothing was answered; so below
    gap: Spread | None  # between pieces of an answer; None also if no answer has two
    token: Spread | None  # a request's time after its first piece, for each token; None as above
    total: Spread | None
    prompt_tokens: int
    cached_tokens: int | None  # None: the server does not tell
    output_tokens: int

    @property
    def computed_tokens(self) -> int | None:
        return None if self.cached_tokens is None else self.prompt_tokens - self.cached_tokens


def summary_of(rounds: Sequence[WaveResult]) -> Summary:
    """Add the rounds up."""
    answered = [one for result in rounds for one in result.answered]
    cached = [one.cached_tokens for one in answered]
    token_s = [
        (one.total_s - one.first_s) / (one.output_tokens - 1)
        for one in answered
        if one.gaps_s and one.output_tokens > 1
    ]
    return Summary(
        num_answered=len(answered),
        errors=dict(Counter(one.problem for result in rounds for one in result.failed)),
        num_unasked=sum(result.num_unasked for result in rounds),
        wall_s=sum(result.wall_s for result in rounds),
        requests_per_s=median(len(result.answered) / result.wall_s for result in rounds),
        output_tokens_per_s=median(result.output_tokens_per_s for result in rounds),
        first_token=spread_of([one.first_s for one in answered]),
        gap=spread_of([gap_s for one in answered for gap_s in one.gaps_s]),
        token=spread_of(token_s),
        total=spread_of([one.total_s for one in answered]),
        prompt_tokens=sum(one.prompt_tokens for one in answered),
        cached_tokens=None if None in cached else sum(one or 0 for one in cached),
        output_tokens=sum(one.output_tokens for one in answered),
    )


def spread_of(seconds: Sequence[float]) -> Spread | None:
    """Give the percentiles, in milliseconds; None of nothing."""
    if not seconds:
        return None
    p50, p90, p99, largest = (float(value) for value in np.percentile(np.array(seconds) * 1e3, (50, 90, 99, 100)))
    return Spread(p50, p90, p99, largest)


Figure = Callable[[WaveResult], float]
"""One number of one server's wave."""


def paired_ratio(left: Sequence[WaveResult], right: Sequence[WaveResult], figure: Figure) -> list[float]:
    """Divide round by round: what slowed the machine in a round slowed both sides.

    Rounds that one side gave no answers in are left out.
    """
    pairs = zip(left, right, strict=True)
    return [figure(one) / figure(other) for one, other in pairs if one.answered and other.answered]


def ratio_line(name: str, ratios: Sequence[float], target: Target | None, parts: Mapping[str, float]) -> Line:
    """Make a line of the median of some rounds' ratios; with none, one that meets no target."""
    value = median(ratios) if ratios else float("nan")
    spread = {"least": min(ratios), "most": max(ratios)} if len(ratios) > 1 else {}
    return Line(name, value, "x", target, {**parts, **spread})


def first_ms(result: WaveResult) -> float:
    """Median time to the first piece."""
    return 1e3 * median(one.first_s for one in result.answered)


def worst_first_ms(result: WaveResult) -> float:
    return 1e3 * max(one.first_s for one in result.answered)


def throughput(result: WaveResult) -> float:
    """Output tokens a second, from the first request due to the last answer's end."""
    return result.output_tokens_per_s


def median_of(rounds: Sequence[WaveResult], figure: Figure) -> float:
    """Give a figure's median over the rounds that have answers; not a number if none has."""
    values = [figure(result) for result in rounds if result.answered]
    return median(values) if values else float("nan")


def computed(answered: Sequence[Answered]) -> int | None:
    """Tokens of prompts that were computed; None if the server does not tell."""
    counts = [one.computed_tokens for one in answered]
    return None if None in counts else sum(count or 0 for count in counts)
