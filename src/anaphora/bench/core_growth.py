"""Measure how the index's costs grow: time for each operation from 10 thousand to 10 million cached tokens.

The pool is always full, so whatever is published evicts. Cached are conversations of 2,048 tokens that branch at every
128th, in nodes of 128 tokens. Times are of the thread's own CPU, so other processes hardly count.
"""

import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from anaphora.bench.core_index import LONG_PROMPT_TOKENS, SPACE, acquire, index_bytes_per_token, random_tokens, store
from anaphora.bench.lines import Line, at_most
from anaphora.bench.machine import Machine
from anaphora.bench.report import new_figure
from anaphora.core.cache import CacheLimits, PrefixCache
from anaphora.core.index import Tokens

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)

CONVERSATION_TOKENS = 2_048
NODE_TOKENS = 128

MOST_GROWTH = 4.0
"""Of a time from the smallest to the largest size, a thousand times larger: a logarithm grows 1.75 times, and the rest
is left for caches of the processor that hold less and less of the index."""


@dataclass(frozen=True, slots=True)
class Growth:
    """One operation's medians at each size, in microseconds."""

    name: str
    times_us: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The largest size's time over the smallest one's."""
        return self.times_us[-1] / self.times_us[0]


@dataclass(frozen=True, slots=True)
class GrowthNumbers:
    """What was measured."""

    sizes: tuple[int, ...]  # cached tokens
    operations: tuple[Growth, ...]
    long_prompt_ms: float  # match of a 50,000-token prompt at the largest size, in nodes of 128 tokens
    bytes_per_token: float  # memory of the index at the largest size

    def lines(self) -> Iterator[Line]:
        """The numbers as lines with their targets."""
        for one in self.operations:
            parts = {f"at_{size:,}_us": time_us for size, time_us in zip(self.sizes, one.times_us, strict=True)}
            yield Line(f"{one.name}: largest / smallest", one.ratio, "x", at_most(MOST_GROWTH), parts)
        largest = self.sizes[-1]
        yield Line(f"match of {LONG_PROMPT_TOKENS:,} tokens at {largest:,}", self.long_prompt_ms, "ms", at_most(1.0))
        yield Line(f"index memory for each token at {largest:,}", self.bytes_per_token, "bytes", at_most(16.0))


def measure_growth(
    *, sizes: Sequence[int] = SIZES, num_repeats: int = 300, progress: Callable[[str], None] = lambda doing: None
) -> GrowthNumbers:
    """Measure every operation at every size, and at the largest a long prompt and the memory. Takes a few minutes."""
    times: dict[str, list[float]] = {}
    long_prompt_ms = 0.0
    for size in sizes:
        progress(f"{size:,} cached tokens")
        world = _World(size)
        for name, time_us in world.times_us(num_repeats).items():
            times.setdefault(name, []).append(time_us)
        if size == max(sizes):
            long_prompt_ms = world.long_prompt_ms(min(LONG_PROMPT_TOKENS, size // 2))
        del world
        gc.collect()
    progress(f"memory of {max(sizes):,} cached tokens")
    operations = tuple(Growth(name, tuple(values)) for name, values in times.items())
    return GrowthNumbers(tuple(sizes), operations, long_prompt_ms, index_bytes_per_token(max(sizes)))


class _World:
    """A full cache of one size, and what can be asked of it."""

    def __init__(self, num_tokens: int) -> None:
        self._now = 0.0
        self._num_tokens = num_tokens
        limits = CacheLimits(num_slack=0, num_retainable=num_tokens // 2)
        self._cache = PrefixCache(num_tokens, clock=lambda: self._now, limits=limits)
        self._trunks: list[Tokens] = []
        self._seed = 0
        while self._cache.counts().free >= CONVERSATION_TOKENS:
            trunk = self._random(CONVERSATION_TOKENS)
            self._trunks.append(trunk)
            for stop in range(NODE_TOKENS, CONVERSATION_TOKENS + 1, NODE_TOKENS):
                store(self._cache, np.concatenate((trunk[:stop], self._random(NODE_TOKENS))))
        self._trunks = self._trunks[-2:]  # the others may be evicted by what is measured

    def times_us(self, num_repeats: int) -> dict[str, float]:
        """Time each operation, by name."""
        trunk, cache = self._trunks[-1], self._cache
        lifetime_s = min(num_repeats / 2, self._num_tokens // (4 * NODE_TOKENS))
        store(cache, trunk)

        def match() -> None:
            assert cache.peek(SPACE, trunk).num_tokens == CONVERSATION_TOKENS

        def lease_and_release() -> None:
            cache.release(acquire(cache, trunk, num_private=0))

        def publish_and_evict(tokens: Tokens) -> None:
            lease = acquire(cache, tokens, num_private=NODE_TOKENS)
            assert cache.publish(lease, tokens, len(tokens)) > NODE_TOKENS // 2
            cache.release(lease)

        def keep_and_let_lapse(tokens: Tokens) -> None:
            lease = acquire(cache, tokens, num_private=NODE_TOKENS)
            cache.publish(lease, tokens, len(tokens))
            assert cache.keep(lease, len(tokens), lifetime_s=lifetime_s) is None
            cache.release(lease)
            self._now += 1.0  # after a while one lapses with each

        fresh = [np.concatenate((trunk[:NODE_TOKENS], self._random(NODE_TOKENS))) for _ in range(2 * num_repeats)]
        return {
            f"match {CONVERSATION_TOKENS:,} tokens": _median_us([match] * num_repeats),
            "lease and release them": _median_us([lease_and_release] * num_repeats),
            f"publish {NODE_TOKENS} tokens and evict as many": _median_us(
                [partial(publish_and_evict, tokens) for tokens in fresh[:num_repeats]]
            ),
            "the same with a lifetime, another lapsing": _median_us(
                [partial(keep_and_let_lapse, tokens) for tokens in fresh[num_repeats:]]
            ),
        }

    def long_prompt_ms(self, num_tokens: int) -> float:
        """Time the match of a long prompt that others branch off from at every 128th token."""
        prompt = self._random(num_tokens)
        for stop in range(NODE_TOKENS, num_tokens + 1, NODE_TOKENS):
            store(self._cache, np.append(prompt[:stop], np.int32(0)))
        store(self._cache, prompt)

        def match() -> None:
            assert self._cache.peek(SPACE, prompt).num_tokens == num_tokens

        return _median_us([match] * 30) / 1e3

    def _random(self, num_tokens: int) -> Tokens:
        self._seed += 1
        return random_tokens(num_tokens, seed=self._seed)


def _median_us(operations: Sequence[Callable[[], None]]) -> float:
    times = []
    for operation in operations:
        start = time.thread_time_ns()
        operation()
        times.append(time.thread_time_ns() - start)
    return median(times) / 1e3


def write_growth(numbers: GrowthNumbers, machine: Machine, folder: Path) -> list[Path]:
    """Write growth.json and growth.png into a folder; answer their paths. Raises SettingsError without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    data, picture = folder / "growth.json", folder / "growth.png"
    lines = [asdict(line) | {"verdict": line.verdict} for line in numbers.lines()]
    told = {"machine": asdict(machine), "numbers": asdict(numbers), "lines": lines}
    data.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    _plot(numbers, machine, picture)
    return [data, picture]


def _plot(numbers: GrowthNumbers, machine: Machine, path: Path) -> None:
    """Draw time against cached tokens, both logarithmic: flat is a constant cost, a climb by itself a linear one."""
    figure = new_figure(8, 5)
    axes = figure.add_subplot()
    for one in numbers.operations:
        axes.plot(numbers.sizes, one.times_us, marker="o", label=f"{one.name} ({one.ratio:.2f} x)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    lowest = min(min(one.times_us) for one in numbers.operations)
    axes.set_ylim(lowest / 3, 1e3 * lowest)
    axes.set_xlabel("cached tokens")
    axes.set_ylabel("microseconds for each operation, median")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    figure.suptitle(machine.stamp, fontsize=6)
    figure.savefig(path, dpi=150)
