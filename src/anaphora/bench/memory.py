"""Memory over many requests: the pool's bytes are fixed, and the process does not grow."""

import os
from pathlib import Path

from anaphora.bench.lines import Line, at_most
from anaphora.bench.pair import ONE_TOKEN, Pair

MAX_GROWTH = at_most(1.02)
"""Resident memory at the end over that after the warm-up. 2 % is room for the allocator's own moods."""

NUM_SHARED = 128
NUM_NEW = 8


def memory_lines(pair: Pair, *, num_requests: int, num_warm_up: int) -> list[Line]:
    """Fill the pool, then send requests that share a prefix, so that every one writes, and evicts to do so.

    Use a small pool: filling it takes a cold prefill of each of its slots.
    """
    engine = pair.engine
    num_slots = engine.stats().num_slots
    while engine.stats().num_evicted_tokens < num_slots:
        pair.timed(pair.fresh.draw(num_slots // 2))
    prefix = pair.fresh.draw(NUM_SHARED)
    pool_before = engine.stats().kv_pool_bytes
    resident: list[int] = []
    for index in range(num_warm_up + num_requests):
        pair.timed(pair.followed(prefix, NUM_NEW), ONE_TOKEN)
        if index >= num_warm_up:
            resident.append(resident_bytes())
    stats = engine.stats()
    assert stats.num_slots == num_slots
    assert stats.num_free_slots + stats.num_evictable_slots + stats.num_leased_slots == num_slots
    return [
        Line(
            f"resident memory after {num_requests:,} requests / before",
            max(resident[-10:]) / resident[0],
            "x",
            MAX_GROWTH,
            {"first_mib": resident[0] / 2**20, "last_mib": resident[-1] / 2**20, "most_mib": max(resident) / 2**20},
        ),
        Line(
            "KV pool after / before (a hard cap)",
            stats.kv_pool_bytes / pool_before,
            "x",
            at_most(1.0),
            {"pool_mib": stats.kv_pool_bytes / 2**20, "evicted_tokens": stats.num_evicted_tokens},
        ),
    ]


def resident_bytes() -> int:
    """How much physical memory this process holds."""
    num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return num_pages * os.sysconf("SC_PAGESIZE")
