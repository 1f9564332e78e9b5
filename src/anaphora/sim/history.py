"""What a trace asks for, seen as a whole: segments, working set, reuse distances. Needs the future: for judging only.

All prompts of the trace go into one tree that is never evicted from. Its nodes are the segments: runs of tokens that
every request of the trace uses whole or not at all. So tokens of a segment have the same past and the same future.

    requests    "abcdef"  "abcxy"  "abc"          segments   "abc" "def" "xy"
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anaphora.core.extent import Extent
from anaphora.core.index import Node, new_root, walk
from anaphora.core.namespace import Namespace
from anaphora.sim.trace import TraceRequest

SegmentPath = NDArray[np.int32]

NEVER = 2**62


@dataclass(frozen=True, slots=True)
class History:
    """The segments of a trace and which of them each request uses, head first."""

    sizes: NDArray[np.int64]  # [num_segments] tokens
    paths: tuple[SegmentPath, ...]  # one for each request
    num_tokens: int  # prompt tokens of all requests

    @property
    def working_set(self) -> int:
        """Count distinct tokens: each with all that stands before it."""
        return int(self.sizes.sum())

    def next_uses(self, size: int) -> list[NDArray[np.int64]]:
        """For each request and each segment of its path, the index of the next request that uses it, or NEVER.

        Requests for more than `size` tokens are no uses: a cache of that size can't serve them.
        """
        upcoming = np.full(len(self.sizes), NEVER, dtype=np.int64)
        answers: list[NDArray[np.int64]] = []
        for index in range(len(self.paths) - 1, -1, -1):
            path = self.paths[index]
            answers.append(upcoming[path])
            if self.sizes[path].sum() <= size:
                upcoming[path] = index
        answers.reverse()
        return answers


def history_of(requests: Iterable[TraceRequest], *, progress: Callable[[], None] = lambda: None) -> History:
    """Build the segments of a trace.

    Cost: as publishing every prompt once into an index that is never full; memory: the working set, 4 bytes a token.
    """
    roots: dict[str, Node] = {}
    ends: list[Node] = []
    slot = num_tokens = 0
    for request in requests:
        root = roots.setdefault(request.tenant, new_root(Namespace(request.tenant.encode("utf-8", "surrogatepass"))))
        tokens = request.tokens()
        found = walk(root, tokens)
        end = found.node if found.num_within == found.node.num_tokens else found.node.split(found.num_within)
        fresh = tokens[found.num_tokens :]
        if len(fresh):
            end = Node(root.namespace, end, fresh, (Extent(slot, len(fresh)),))
            slot += len(fresh)
        ends.append(end)
        num_tokens += len(tokens)
        progress()
    return _numbered(ends, num_tokens)


def _numbered(ends: list[Node], num_tokens: int) -> History:
    """Turn nodes into numbers. A node splits into a new head and itself, so each request's end is still its end."""
    numbers: dict[Node, int] = {}
    sizes: list[int] = []
    paths: list[SegmentPath] = []
    for end in ends:
        path: list[int] = []
        node: Node | None = end
        while node is not None and node.parent is not None:
            if node not in numbers:
                numbers[node] = len(sizes)
                sizes.append(node.num_tokens)
            path.append(numbers[node])
            node = node.parent
        paths.append(np.array(path[::-1], dtype=np.int32))
    return History(np.array(sizes, dtype=np.int64), tuple(paths), num_tokens)


@dataclass(frozen=True, slots=True)
class ReuseDistances:
    """How many distinct tokens were used between two uses of a token: the size an LRU cache needs to hit it."""

    bounds: tuple[int, ...]  # upper bounds in tokens, exclusive, powers of two
    counts: tuple[int, ...]  # tokens used again, each in the first bucket whose bound is above its distance
    num_first: int  # tokens used for the first time


def reuse_distances(history: History) -> ReuseDistances:
    """Measure reuse distances of all tokens of a trace.

    Of one prompt, tails are taken for older than heads. A token that is used twice in a row has the distance 1.
    Cost: O(log requests) for each segment used.
    """
    marks = _Sums(len(history.paths) + 1)
    last = np.full(len(history.sizes), -1, dtype=np.int64)
    counts = [0] * 64
    num_first = 0
    for index, path in enumerate(history.paths):
        sizes = history.sizes[path]
        above = 0  # tokens of this path last used with the segment, or later, that stand above it
        for place in range(len(path)):
            segment, size = int(path[place]), int(sizes[place])
            before = int(last[segment])
            if before < 0:
                num_first += size
            else:
                above = above + size if place and last[path[place - 1]] == before else size
                distance = marks.total - marks.up_to(before) + above
                _count_span(counts, distance - size + 1, distance)
        for segment, size in zip(path, sizes, strict=True):
            if last[segment] >= 0:
                marks.add(int(last[segment]), -int(size))
        marks.add(index, int(sizes.sum()))
        last[path] = index
    top = max((place for place, count in enumerate(counts) if count), default=0)
    return ReuseDistances(tuple(2**place for place in range(top + 1)), tuple(counts[: top + 1]), num_first)


def _count_span(counts: list[int], first: int, last: int) -> None:
    """Count the whole numbers `[first, last]`, each in the bucket of its number of bits."""
    for bucket in range(first.bit_length(), last.bit_length() + 1):
        counts[bucket] += min(last, 2**bucket - 1) - max(first, 2**bucket // 2) + 1


class _Sums:
    """Sums of all numbers up to a place, of numbers that change (a Fenwick tree). Cost: O(log places) each."""

    def __init__(self, num_places: int) -> None:
        self._tree = [0] * (num_places + 1)
        self.total = 0

    def add(self, place: int, amount: int) -> None:
        self.total += amount
        place += 1
        while place < len(self._tree):
            self._tree[place] += amount
            place += place & -place

    def up_to(self, place: int) -> int:
        """Sum of the numbers at `[0, place]`."""
        place += 1
        answer = 0
        while place:
            answer += self._tree[place]
            place -= place & -place
        return answer
