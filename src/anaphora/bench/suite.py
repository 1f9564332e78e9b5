"""The main benchmark: everything that the project promises in numbers, in one run."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from anaphora.bench.decode import decode_line
from anaphora.bench.explaining import explaining_line, lint_line
from anaphora.bench.first_token import Case, lines_of, measure
from anaphora.bench.floor import floor_line, measure_hardware, weights_of, work_of
from anaphora.bench.lines import Line
from anaphora.bench.memory import memory_lines
from anaphora.bench.pair import ONE_TOKEN, Pair, pair_of

Progress = Callable[[str], None]
"""Told in words what is measured next."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run, and how often."""

    cases: tuple[Case, ...]
    ratio_at: int  # the prefix whose cold/hit ratio has a target; decoding is measured there too
    num_decoded: int
    num_decodes: int
    num_requests: int  # for memory
    memory_slots: int
    with_floor: bool = False


FULL = Plan(
    cases=(Case(409, 8, 9, 25), Case(2000, 16, 5, 25), Case(6000, 30, 2, 11)),
    ratio_at=2000,
    num_decoded=24,
    num_decodes=7,
    num_requests=1000,
    memory_slots=2048,
)
QUICK = Plan(
    cases=(Case(409, 8, 2, 5), Case(1000, 16, 1, 5)),
    ratio_at=2000,
    num_decoded=8,
    num_decodes=1,
    num_requests=50,
    memory_slots=512,
)

_NUM_WARM_UP_REQUESTS = 50


def run_suite(model: str, plan: Plan, *, cache_dir: Path | None, progress: Progress) -> Iterator[Line]:
    """Yield one line after another as they are measured."""
    progress("loading the model twice")
    longest = max(case.num_cached + case.num_new for case in plan.cases)
    with pair_of(model, cache_dir=cache_dir, num_slots=3 * longest + 4096) as pair:
        yield from time_lines(pair, plan, progress)
    del pair
    gc.collect()
    progress(f"memory over {plan.num_requests:,} requests")
    with pair_of(model, cache_dir=cache_dir, num_slots=plan.memory_slots) as pair:
        yield from memory_lines(pair, num_requests=plan.num_requests, num_warm_up=_NUM_WARM_UP_REQUESTS)
    progress("lint of a long log")
    yield lint_line()


def time_lines(pair: Pair, plan: Plan, progress: Progress) -> Iterator[Line]:
    """Yield the lines about time."""
    progress("warming up")
    for num_tokens in (16, 256, 256):
        pair.timed(pair.fresh.draw(num_tokens), ONE_TOKEN)
        pair.forward(pair.fresh.draw(num_tokens))
    if plan.with_floor:
        progress("what the hardware can do")
        hardware, weights = pair.on_engine_thread(measure_hardware).result, weights_of(pair.plain)
    decode_case = min(plan.cases, key=lambda case: abs(case.num_cached - plan.ratio_at))
    for case in plan.cases:
        progress(f"{case.name} tokens, cold and hit")
        found = measure(pair, case)
        yield from lines_of(found, num_for_ratio=plan.ratio_at)
        yield explaining_line(case.name, found.hit_s, num_cached=case.num_cached, num_new=case.num_new)
        if plan.with_floor:
            work = work_of(pair.engine.spec, weights, num_cached=case.num_cached, num_new=case.num_new)
            yield floor_line(case.name, found.hit_s, work, hardware)
        if case is decode_case:
            progress(f"decoding behind {case.num_cached:,} tokens")
            yield decode_line(pair, found.prefix, found.cache, num_tokens=plan.num_decoded, num_rounds=plan.num_decodes)
