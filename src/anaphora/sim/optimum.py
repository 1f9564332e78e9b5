"""The best that any policy could do with a cache of a given size, knowing the future.

Belady's rule for prefix trees: evict the token whose next use is furthest away; of tokens with the same next use, the
one that stands deepest. A token is used whenever one below it is, so what goes first is always the end of a leaf.

What it bounds: tokens hit, over all policies, in a cache of `size` tokens that holds whatever prefixes it likes. Each
request needs room for its whole prompt while it runs, as in `PrefixCache`, and one larger than the cache is refused.
All tokens weigh the same, and a request ends before the next begins. There it is exact: Belady's rule is optimal for
items of one size that must all be let in, and it keeps prefixes whole by itself, so no hit lies behind a miss.

What it does not bound: time saved (tokens late in a prompt cost more to compute), caches that need not hold a prompt
while it runs, caches with a lower tier, and routing over several replicas.
Source: Belady 1966, "A study of replacement algorithms for a virtual-storage computer" (there: pages).
"""

from heapq import heappop, heappush

import numpy as np

from anaphora.sim.history import NEVER, History


def optimal_hits(history: History, size: int) -> list[int]:
    """For each request, the tokens hit under Belady's rule in `size` tokens. The last token of a prompt counts as
    computed, as in an engine. A prompt larger than `size` gets 0 and leaves the cache as it is.

    Cost: O(log segments) for each segment used.
    """
    held = np.zeros(len(history.sizes), dtype=np.int64).tolist()  # tokens of each segment in the cache
    sizes: list[int] = history.sizes.tolist()
    due: list[int] = [NEVER] * len(sizes)
    furthest: list[tuple[int, int, int]] = []  # (-next use, -depth, segment), some out of date
    hits: list[int] = []
    num_held = 0
    for path_array, uses_array in zip(history.paths, history.next_uses(size), strict=True):
        path, uses = path_array.tolist(), uses_array.tolist()
        num_tokens = sum(sizes[segment] for segment in path)
        if num_tokens > size:
            hits.append(0)
            continue
        num_hit = sum(held[segment] for segment in path)
        hits.append(min(num_hit, num_tokens - 1))
        num_held += num_tokens - num_hit
        for depth, (segment, use) in enumerate(zip(path, uses, strict=True)):
            held[segment] = sizes[segment]
            due[segment] = use
            if num_held <= size:
                heappush(furthest, (-use, -depth, segment))
        if num_held > size:
            num_held -= _make_room(num_held - size, set(path), (held, due, furthest))
            for depth, (segment, use) in enumerate(zip(path, uses, strict=True)):
                heappush(furthest, (-use, -depth, segment))
    return hits


def _make_room(
    num_wanted: int, in_use: set[int], state: tuple[list[int], list[int], list[tuple[int, int, int]]]
) -> int:
    """Evict what is used last, sparing the running request. Returns the tokens evicted."""
    held, due, furthest = state
    num_evicted = 0
    while num_evicted < num_wanted:
        use, depth, segment = heappop(furthest)
        if segment in in_use or due[segment] != -use or not held[segment]:
            continue  # the running request's are pushed again; others were evicted, or used since
        num_cut = min(held[segment], num_wanted - num_evicted)
        held[segment] -= num_cut
        num_evicted += num_cut
        if held[segment]:
            heappush(furthest, (use, depth, segment))
    return num_evicted
