"""Time things that are compared side by side, so that a noisy machine slows all of them alike."""

import time
from collections.abc import Callable
from statistics import median

Timed = Callable[[], float]
"""Does its work once and answers how many seconds the part that counts took."""


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(*variants: Timed, num_rounds: int, num_warm_up: int = 1) -> list[list[float]]:
    """Run A B A B ... (then B A B A ..., turn by turn); answer each variant's times, one a round.

    The order turns so that neither profits from what the other leaves behind.
    """
    for _ in range(num_warm_up):
        for variant in variants:
            variant()
    times: list[list[float]] = [[] for _ in variants]
    for round_index in range(num_rounds):
        order = list(range(len(variants)))
        for index in order if round_index % 2 == 0 else reversed(order):
            times[index].append(variants[index]())
    return times


def ratio(numerator: list[float], denominator: list[float]) -> float:
    """Median of one over median of the other."""
    return median(numerator) / median(denominator)


def best_seconds(work: Callable[[], object], *, num_rounds: int) -> float:
    """The fastest of some calls: for what the hardware can do, where all noise is slowness."""
    work()
    return min(seconds(work) for _ in range(num_rounds))


def median_us(work: Callable[[], object], *, num_rounds: int) -> float:
    """Median microseconds of some calls, after one that does not count."""
    work()
    return 1e6 * median(seconds(work) for _ in range(num_rounds))
