"""Time to the first token: cold and on a hit, through the engine and through plain Transformers.

cold     [ fresh prompt ...................... ]   engine: nothing cached     plain: one forward pass
hit      [ cached prefix .......... | fresh    ]   engine: computes the tail  plain: the tail over an attached cache
"""

from dataclasses import dataclass
from statistics import median
from typing import Any

from anaphora.bench.lines import Line, at_least, at_most
from anaphora.bench.pair import Pair, Tokens
from anaphora.bench.timing import interleaved, ratio

MAX_HIT = at_most(1.10)
MAX_COLD = at_most(1.02)
MIN_COLD_TO_HIT = at_least(25)


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt's shape, and how often it is run."""

    num_cached: int
    num_new: int
    num_cold: int  # pairs of cold runs
    num_hits: int  # pairs of hits

    @property
    def name(self) -> str:
        return f"{self.num_cached:,}+{self.num_new}"


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Seconds to the first token, one a run."""

    case: Case
    cold: list[float]  # engine
    plain_cold: list[float]
    hit: list[float]  # engine
    bare_hit: list[float]
    prefix: Tokens  # left in the engine's cache
    cache: Any  # the same prefix as a Transformers cache

    @property
    def hit_s(self) -> float:
        return median(self.hit)


def measure(pair: Pair, case: Case) -> FirstTokens:
    """Run one case. Asserts from the receipts that cold runs reused nothing and hits everything."""
    prompts: list[Tokens] = []
    caches: list[Any] = []

    def plain_cold() -> float:
        # Both see the same prompt: whichever runs first in its round draws it.
        prompt = next_prompt("plain")
        caches.clear()  # one cache of a long prompt at a time
        timed = pair.forward(prompt)
        caches.append(timed.result)
        return timed.took_s

    def engine_cold() -> float:
        timing = pair.timed(next_prompt("engine"))
        assert timing.receipt.num_reused_tokens == 0, timing.receipt
        return timing.first_token_s

    seen = {"plain": 0, "engine": 0}

    def next_prompt(who: str) -> Tokens:
        if seen[who] == len(prompts):
            prompts.append(pair.fresh.draw(case.num_cached + case.num_new))
        seen[who] += 1
        return prompts[seen[who] - 1]

    cold, plain = interleaved(engine_cold, plain_cold, num_rounds=case.num_cold, num_warm_up=0)
    prefix, cache = prompts[-1][: case.num_cached], caches[-1]
    cache.crop(-case.num_new)
    hit, bare = _hits(pair, case, prefix, cache)
    return FirstTokens(case, cold, plain, hit, bare, prefix, cache)


def _hits(pair: Pair, case: Case, prefix: Tokens, cache: Any) -> tuple[list[float], list[float]]:
    def engine_hit() -> float:
        tokens = pair.followed(prefix, case.num_new)
        timing = pair.timed(tokens)
        assert timing.receipt.num_computed_tokens == case.num_new, timing.receipt
        return timing.first_token_s

    def bare_hit() -> float:
        timed = pair.forward(pair.fresh.draw(case.num_new), cache)
        cache.crop(-case.num_new)
        return timed.took_s

    hit, bare = interleaved(engine_hit, bare_hit, num_rounds=case.num_hits, num_warm_up=2)
    return hit, bare


def lines_of(found: FirstTokens, *, num_for_ratio: int) -> list[Line]:
    """Say what was found. The cold/hit ratio has a target at prefixes of `num_for_ratio` tokens alone."""
    case, name = found.case, found.case.name
    ms = {
        "cold_ms": 1e3 * median(found.cold),
        "plain_cold_ms": 1e3 * median(found.plain_cold),
        "hit_ms": 1e3 * median(found.hit),
        "bare_hit_ms": 1e3 * median(found.bare_hit),
    }

    def parts(*names: str) -> dict[str, float]:
        return {key: ms[key] for key in names}

    return [
        Line(f"{name}: cold / hit", ratio(found.cold, found.hit), "x",
             MIN_COLD_TO_HIT if case.num_cached == num_for_ratio else None, parts("cold_ms", "hit_ms")),
        Line(f"{name}: hit / bare forward over an attached cache", ratio(found.hit, found.bare_hit), "x",
             MAX_HIT, parts("hit_ms", "bare_hit_ms")),
        Line(f"{name}: cold / plain Transformers", ratio(found.cold, found.plain_cold), "x",
             MAX_COLD, parts("cold_ms", "plain_cold_ms")),
    ]  # fmt: skip
