"""Measure the index: what a hit costs, whether eviction slows down as the cache grows, what a cached token
weighs.

No model and no keys or values: the pure core alone. `measure()` returns the numbers; run the module to print
them.
"""

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from anaphora.core.cache import PrefixCache
from anaphora.core.index import Tokens
from anaphora.core.lease import Lease
from anaphora.core.namespace import Namespace

SPACE = Namespace(b"bench" + bytes(27))
LONG_PROMPT_TOKENS = 50_000
_VOCABULARY = 50_000


@dataclass(frozen=True, slots=True)
class CoreNumbers:
    """What was measured. Times are medians."""

    one_node_ms: float  # match and lease a 50,000-token prompt that is one node
    chain_ms: float  # the same over a path of 100 nodes
    inside_node_ms: float  # the same where the match ends inside a node, which is split for it
    release_ms: float  # release of the path of 100 nodes
    evict_small_us: float  # lease 32 slots, evicting one node out of 1,000
    evict_large_us: float  # the same out of 50,000
    evict_ratio: float  # large / small; 1 where the cost does not depend on the size
    bytes_per_token: float  # memory of the index for each cached token, nodes of 128 tokens
    num_tokens: int  # cached tokens at which that was measured
    extents_per_lease: float  # of conversations of 4,000 tokens that have filled a pool many times over


def measure(*, num_repeats: int = 20, num_tokens: int = 2_000_000) -> CoreNumbers:
    """Measure everything, in one process. Takes some seconds."""
    chain, one_node, inside = _hit_times(num_repeats)
    small = _evict_time_us(1_000)
    large = _evict_time_us(50_000)
    return CoreNumbers(
        one_node_ms=one_node[0],
        chain_ms=chain[0],
        inside_node_ms=inside[0],
        release_ms=chain[1],
        evict_small_us=small,
        evict_large_us=large,
        evict_ratio=large / small,
        bytes_per_token=index_bytes_per_token(num_tokens),
        num_tokens=num_tokens,
        extents_per_lease=extents_per_lease(),
    )


def extents_per_lease(*, num_turns: int = 2_000, growth: int = 64) -> float:
    """Run conversations through a pool of 100,000 slots and count the extents of a lease at its end, on average.

    Eight turns run at once, out of 40 conversations; three in ten start anew from one of three prompts of 1,500
    tokens. A turn asks 10 to 200 tokens and is answered with 20 to 400, that take their slots `growth` at a time.
    """
    rng = np.random.default_rng(0)
    cache = _cache(100_000)
    prompts = [random_tokens(1_500, seed=seed) for seed in range(3)]
    conversations = [random_tokens(int(rng.integers(300, 3_000)), seed=seed) for seed in range(40)]
    running: list[tuple[Lease, Tokens]] = []
    num_extents: list[int] = []
    while len(num_extents) < num_turns:
        while len(running) < 8:
            chosen = int(rng.integers(len(conversations)))
            if rng.random() < 0.3 or len(conversations[chosen]) > 6_000:
                conversations[chosen] = prompts[int(rng.integers(len(prompts)))]
            asked = rng.integers(0, _VOCABULARY, int(rng.integers(10, 200)), dtype=np.int32)
            tokens = np.concatenate((conversations[chosen], asked))
            num_private = len(tokens) - cache.peek(SPACE, tokens).num_tokens
            lease = acquire(cache, tokens, num_private=num_private)
            cache.publish(lease, tokens, len(tokens))
            answered = rng.integers(0, _VOCABULARY, int(rng.integers(20, 400)), dtype=np.int32)
            conversations[chosen] = np.concatenate((tokens, answered))
            running.append((lease, conversations[chosen]))
        lease, tokens = running.pop(0)
        if lease.num_slots < len(tokens):
            refusal = cache.grow(lease, min(growth, len(tokens) - lease.num_slots))
            assert refusal is None
            running.append((lease, tokens))
            continue
        cache.publish(lease, tokens, len(tokens))
        num_extents.append(len(lease.extents))
        cache.release(lease)
    return float(np.mean(num_extents[num_turns // 2 :]))


def _hit_times(num_repeats: int) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
    prompt = random_tokens(LONG_PROMPT_TOKENS, seed=1)
    chain = _cache(4 * LONG_PROMPT_TOKENS)
    for num_nodes in range(1, 101):
        stop = num_nodes * LONG_PROMPT_TOKENS // 100
        store(chain, prompt[:stop])
        # A branch at each node's end keeps it from being joined with the next.
        store(chain, np.append(prompt[:stop], np.int32(_VOCABULARY)))
    one = _cache(4 * LONG_PROMPT_TOKENS)
    store(one, prompt)
    return (
        _lease_time_ms(lambda: chain, prompt, num_repeats),
        _lease_time_ms(lambda: one, prompt, num_repeats),
        _lease_time_ms(lambda: _with_one_node(prompt), prompt[:-1], num_repeats),
    )


def _lease_time_ms(make_cache: Callable[[], PrefixCache], prompt: Tokens, num_repeats: int) -> tuple[float, float]:
    """Time acquire (with its extents) and release of a prompt that is cached whole."""
    acquire_times, release_times = [], []
    for _ in range(num_repeats):
        cache = make_cache()
        start = time.perf_counter()
        lease = acquire(cache, prompt, num_private=16)
        assert lease.extents
        acquired = time.perf_counter()
        cache.release(lease)
        acquire_times.append(acquired - start)
        release_times.append(time.perf_counter() - acquired)
        assert lease.num_reused == len(prompt)
    return 1e3 * median(acquire_times), 1e3 * median(release_times)


def _evict_time_us(num_nodes: int) -> float:
    """Time leases of 32 fresh slots from a cache that is full of that many leaves of 32 tokens."""
    cache = _cache(32 * num_nodes)
    for first in range(0, 32 * num_nodes, 32):
        store(cache, np.arange(first, first + 32, dtype=np.int32))
    times = []
    for _ in range(500):
        start = time.perf_counter()
        acquire(cache, np.empty(0, dtype=np.int32), num_private=32)
        times.append(time.perf_counter() - start)
    assert cache.counts().leased == 32 * 500
    return 1e6 * median(times)


def index_bytes_per_token(num_tokens: int) -> float:
    """Weigh the index: conversations of 2,048 tokens that branch at every 128th, all in nodes of 128 tokens."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    cache = _cache(2 * num_tokens)
    seed = 0
    while cache.counts().evictable < num_tokens:
        trunk = random_tokens(2_048, seed=seed)
        for stop in range(128, 2_048 + 1, 128):
            seed += 1
            store(cache, np.concatenate((trunk[:stop], random_tokens(128, seed=seed))))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / cache.counts().evictable


def _with_one_node(prompt: Tokens) -> PrefixCache:
    cache = _cache(2 * len(prompt))
    store(cache, prompt)
    return cache


def _cache(num_slots: int) -> PrefixCache:
    return PrefixCache(num_slots, clock=time.monotonic)


def store(cache: PrefixCache, tokens: Tokens) -> None:
    """Cache a prompt and let go of it."""
    num_private = len(tokens) - cache.peek(SPACE, tokens).num_tokens
    lease = acquire(cache, tokens, num_private=num_private)
    cache.publish(lease, tokens, len(tokens))
    cache.release(lease)


def acquire(cache: PrefixCache, tokens: Tokens, *, num_private: int) -> Lease:
    """Lease all that is cached of a prompt, with fresh slots behind it."""
    lease = cache.acquire(SPACE, tokens, max_reuse=len(tokens), num_private=num_private)
    assert isinstance(lease, Lease), lease
    return lease


def random_tokens(num_tokens: int, *, seed: int) -> Tokens:
    """Draw a prompt that shares no prefix with another seed's."""
    return np.random.default_rng(seed).integers(0, _VOCABULARY, num_tokens, dtype=np.int32)


def main() -> None:
    """Print the numbers, one a line."""
    for name, value in asdict(measure()).items():
        sys.stdout.write(f"{name:>16} {value:.4g}\n")


if __name__ == "__main__":
    main()
