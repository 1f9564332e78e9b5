"""Policies that count uses: least frequently used, segmented LRU, greedy dual, adaptive replacement, S3-FIFO.

Each keeps whole paths sensible by itself: a head is used whenever its tail is, so it never ranks below it, and of
equal rank the tail goes first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from anaphora.core.evictable import Evictable
from anaphora.core.leaf_lists import LeafLists, Memory

MAX_COUNT = 63
"""Counts stop here: beyond it all is hot, and the search for the lowest count stays short."""


class _Listed:
    """What all of these share: nodes stand in lists by rank."""

    def __init__(self) -> None:
        self._lists = LeafLists()

    def withdraw(self, entry: Evictable) -> None:
        """Take a node out of its list. Its note stays with it."""
        self._lists.remove(entry)

    def __len__(self) -> int:
        return len(self._lists)

    def __contains__(self, entry: object) -> bool:
        return entry in self._lists

    def _first(self, ranks: Iterator[int]) -> Evictable:
        for rank in ranks:
            if (entry := self._lists.oldest(rank)) is not None:
                return entry
        raise AssertionError("no leaf is held here")


class LeastFrequentlyUsed(_Listed):
    """Evict what was used least often while cached; of equally often used nodes the oldest.

    Cost: O(1); `choose` looks at up to `MAX_COUNT` lists.
    Source: Shah, Mitra, Matani 2010, "An O(1) algorithm for implementing the LFU cache eviction scheme".
    """

    def admit(self, entry: Evictable) -> None:
        """Count one more use."""
        count = min(_count(entry) + 1, MAX_COUNT)
        entry.note = count
        self._lists.add(entry, count)

    def split(self, head: Evictable, tail: Evictable) -> None:
        """Give the head the tail's count. It is counted as used when its lease ends."""
        assert tail in self._lists, "split what is not held here"
        head.note = tail.note
        self._lists.add(head, _count(head))

    def choose(self) -> Evictable:
        """Name the oldest leaf of the lowest count."""
        return self._first(iter(range(1, MAX_COUNT + 1)))


ATTENTION_DEPTH = 4096
"""Tokens in front of a token at which attention over them costs as much to compute as all else of it: between 3,000
and 30,000 for models in use."""
COST_STEPS = 8
"""Ranks are whole numbers, so that nodes share lists: a cost of 1 is so many of them."""


class GreedyDual(_Listed):
    """Evict what has the lowest priority: uses x cost of a token, on top of the priority at which the last victim went.

    Cost over size is what a token costs to compute again, which grows with the tokens in front of it: the deep ends of
    long prompts are dear. Old counts fade as newcomers start higher.
    Cost: O(log priorities held) for a priority that is new, and O(nodes above) for each node used.
    Source: Cherkasova 1998, "Improving WWW proxies performance with greedy-dual-size-frequency caching policy".
    """

    def __init__(self) -> None:
        super().__init__()
        self._floor = 0
        self._known: list[int] = []  # a heap of the ranks that have a list

    def admit(self, entry: Evictable) -> None:
        """Rank a node by one more use."""
        entry.note = min(_count(entry) + 1, MAX_COUNT)
        self._add(entry, self._floor + _worth(entry))

    def split(self, head: Evictable, tail: Evictable) -> None:
        """Give the head the tail's count. It is counted as used when its lease ends."""
        assert tail in self._lists, "split what is not held here"
        head.note = tail.note
        self._add(head, self._floor + _worth(head))

    def choose(self) -> Evictable:
        """Name the oldest leaf of the lowest priority. From now on newcomers start there."""
        waiting: list[int] = []
        while (entry := self._lists.oldest(self._known[0])) is None:
            rank = heappop(self._known)
            if self._lists.ranks[rank].is_empty:
                del self._lists.ranks[rank]
            else:
                waiting.append(rank)  # parked nodes only
        self._floor = max(self._floor, self._known[0])
        for rank in waiting:
            heappush(self._known, rank)
        return entry

    def _add(self, entry: Evictable, rank: int) -> None:
        if rank not in self._lists.ranks:
            heappush(self._known, rank)
        self._lists.add(entry, rank)


_ONCE, _AGAIN = 0, 1


class SegmentedLRU(_Listed):
    """Evict what was used once before what was used again, as long as the latter holds its share at most.

    Beyond its share the oldest of what was used again stands trial as if it had been used once.
    Cost: O(1), amortised.
    Source: Karedla, Love, Wherry 1994, "Caching strategies to improve disk system performance" (SLRU).
    """

    SHARE = 0.8
    """Of the tokens held here, for what was used again. The usual choice in the literature."""

    def admit(self, entry: Evictable) -> None:
        """Put a node last of those used once, or of those used again."""
        count = _count(entry) + 1
        entry.note = count
        self._lists.add(entry, _AGAIN if count > 1 else _ONCE)

    def split(self, head: Evictable, tail: Evictable) -> None:
        """Give the head the tail's count. It is counted as used when its lease ends."""
        assert tail in self._lists, "split what is not held here"
        head.note = tail.note
        self._lists.add(head, _AGAIN)

    def choose(self) -> Evictable:
        """Name the oldest leaf of those used once."""
        lists = self._lists
        while True:
            once, again = lists.num_tokens(_ONCE), lists.num_tokens(_AGAIN)
            if again <= self.SHARE * (once + again) or (oldest := self._oldest_again()) is None:
                return self._first(iter((_ONCE, _AGAIN)))
            oldest.note = 0
            lists.move(oldest, _ONCE)

    def _oldest_again(self) -> Evictable | None:
        return self._lists.oldest(_AGAIN) if self._lists.num_tokens(_AGAIN) else None


@dataclass(frozen=True, slots=True)
class _Seen:
    rank: int


class AdaptiveReplacement(_Listed):
    """Evict from what was used once or from what was used again: whichever is missed less, as ghosts tell.

    A node that comes back after it was evicted says that its list was too short, and moves the border by its tokens.
    Cost: O(1), amortised.
    Source: Megiddo, Modha 2003, "ARC: a self-tuning, low overhead replacement cache" (theirs knows pages of one size;
    ours measures lists in tokens and finds ghosts by fingerprint).
    """

    def __init__(self) -> None:
        super().__init__()
        self._ghosts: Memory[_Seen] = Memory()
        self._target = 0.0  # tokens that may have been used once

    def admit(self, entry: Evictable) -> None:
        """Put a node last of its list, and move the border if it is one that was missed."""
        ghost = self._ghosts.read(entry.fingerprint) if entry.note is None else None
        if ghost is not None:
            held = self._lists.num_tokens(_ONCE) + self._lists.num_tokens(_AGAIN)
            step = entry.num_tokens if ghost.rank == _ONCE else -entry.num_tokens
            self._target = min(max(self._target + step, 0.0), float(held))
        rank = _ONCE if entry.note is None and ghost is None else _AGAIN
        entry.note = _Seen(rank)
        self._lists.add(entry, rank)
        self._ghosts.write(entry.fingerprint, _Seen(rank), num_nodes=len(self))

    def split(self, head: Evictable, tail: Evictable) -> None:
        """Put the head last of those used again: it is being used."""
        assert tail in self._lists, "split what is not held here"
        head.note = tail.note
        self._lists.add(head, _AGAIN)

    def choose(self) -> Evictable:
        """Name the oldest leaf of the list that is longer than it should be."""
        order = (_ONCE, _AGAIN) if self._lists.num_tokens(_ONCE) > self._target else (_AGAIN, _ONCE)
        return self._first(iter(order))


_SMALL, _MAIN = 0, 1


@dataclass(frozen=True, slots=True)
class _Turn:
    rank: int
    num_left: int  # rounds of the main queue that it will be spared


class ThreeQueues(_Listed):
    """Evict from a small queue of newcomers while that has more than its share, else from the main queue.

    Newcomers that are used again while cached, and what comes back after it was evicted, go to the main queue. There
    the first in line is sent to its end as often as it was used since it came, three times at most, and then goes.
    Cost: O(1), amortised.
    Source: Yang et al. 2023, "FIFO queues are all you need for cache eviction" (S3-FIFO). Theirs leaves a node in its
    place when it is hit and moves it when its turn comes; ours leaves its queue while it is leased and so joins the
    end of the main queue at once. Theirs counts pages, ours tokens; only leaves go.
    """

    SHARE = 0.1
    """Of the tokens held here, for newcomers: as in the paper."""
    MAX_ROUNDS = 3

    def __init__(self) -> None:
        super().__init__()
        self._ghosts: Memory[_Turn] = Memory()

    def admit(self, entry: Evictable) -> None:
        """Put a node last: of the newcomers, or in the main queue if it was used before."""
        if entry.note is not None:
            turn = _Turn(_MAIN, min(_turn_of(entry).num_left + 1, self.MAX_ROUNDS))
        elif self._ghosts.read(entry.fingerprint) is not None:
            turn = _Turn(_MAIN, 0)
        else:
            turn = _Turn(_SMALL, 0)
        entry.note = turn
        self._ghosts.write(entry.fingerprint, turn, num_nodes=len(self))
        self._lists.add(entry, turn.rank)

    def split(self, head: Evictable, tail: Evictable) -> None:
        """Put the head last in the tail's queue."""
        assert tail in self._lists, "split what is not held here"
        head.note = tail.note
        self._lists.add(head, _turn_of(head).rank)

    def choose(self) -> Evictable:
        """Name the oldest newcomer, or the first in line that is not sent to the end."""
        small, main = self._lists.num_tokens(_SMALL), self._lists.num_tokens(_MAIN)
        if small > self.SHARE * (small + main) and (entry := self._lists.oldest(_SMALL)) is not None:
            return entry
        while (entry := self._lists.oldest(_MAIN)) is not None and (num_left := _turn_of(entry).num_left):
            entry.note = _Turn(_MAIN, num_left - 1)
            self._lists.move(entry, _MAIN)
        return entry or self._first(iter((_SMALL,)))


def _turn_of(entry: Evictable) -> _Turn:
    assert isinstance(entry.note, _Turn)
    return entry.note


def _worth(entry: Evictable) -> int:
    """Give uses x the cost of computing a token there again, in `COST_STEPS`."""
    depth, above = 0, entry.parent
    while above is not None:
        depth += above.num_tokens
        above = above.parent
    return _count(entry) * (COST_STEPS + COST_STEPS * depth // ATTENTION_DEPTH)


def _count(entry: Evictable) -> int:
    assert entry.note is None or isinstance(entry.note, int)
    return entry.note or 0
