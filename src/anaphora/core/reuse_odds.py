"""Evict what is least likely to be used again soon, as learned from the workload itself.

Each node is in a class: how often it was used, and how long it takes on average from one use to the next. For each
class a table holds after how long its nodes were used again, gone ones included. From that follows, for a node of a
class that has waited for so long, its worth: the chance of a use for each second of room, over the best span to come.

    worth(class, age) = max over spans of  P(used within the span | not used up to `age`)
                                           -----------------------------------------------
                                           expected seconds until used, or until the span is over
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import frexp

import numpy as np
from numpy.typing import NDArray

from anaphora.core.evictable import Evictable
from anaphora.core.leaf_lists import LeafLists, Memory

NUM_AGES = 24
"""Ages by powers of two: 1/4 s, 1/2 s, 1 s ... 24 days."""
AGES_PER_SECOND = 4.0

NUM_GAPS = 12
NUM_USES = 5
_USES = (0, 0, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 4)
"""Number of uses -> class: once, twice, up to 4, up to 12, more."""

GAP_WEIGHT = 0.25
"""Of the newest gap in the running average."""
FADING = 0.999
"""Of the table, for each path used: it is about the last thousand."""
PRIOR_TOKENS = 4096.0
PRIOR_ODDS = (0.003, 0.3, 0.4, 0.5, 0.5)
"""What is assumed before anything was seen, as if so many tokens of each class had been: the chance, for each doubling
of age, that what was used once, twice, more often is used again. Small for once, so that a first sweep of documents
does not push out a conversation; a few requests outweigh it."""
MARGIN = 0.7
"""Worth is an estimate: LRU's choice stands unless another leaf is worth less than this part of it. Without a margin
one of five traces falls below LRU (docs/experiments.md)."""
NUM_PATHS_BETWEEN = 64
"""Paths used between two computations of worth, which take about a millisecond."""


@dataclass(frozen=True, slots=True)
class _Note:
    num_uses: int
    gap_s: float  # running average from use to use; negative while used once
    used_at: float
    rank: int


class ReuseOdds:
    """Evict the leaf of the lowest worth, if that is clearly lower than that of the leaf not used for longest.

    Knowing nothing, it takes what was used once before what was used again. What was evicted is remembered by
    fingerprint for a while, so that uses that came too late are learned from too.
    Cost: O(1), amortised; `choose` compares one node of each class.
    Source: Beckmann, Chen, Cidon 2018, "LHD: improving cache hit rate by maximizing hit density" (classes and learned
    ages; theirs samples victims and has no memory of the evicted); Gittins 1979, "Bandit processes and dynamic
    allocation indices" (the best span); O'Neil et al. 1993, "The LRU-K page replacement algorithm" (gaps as a feature).
    """

    def __init__(self) -> None:
        self._lists = LeafLists()
        self._seen: Memory[_Note] = Memory()
        num_classes = NUM_USES * NUM_GAPS
        self._num_used = np.zeros(num_classes)
        self._num_reused = np.zeros((num_classes, NUM_AGES))
        self._scale = 1.0  # what a token weighs; grows in place of fading the tables
        self._worth: list[list[float]] = []
        self._learn()
        self._now = 0.0
        self._num_paths = 0

    def admit(self, entry: Evictable) -> None:
        """Learn from the use of a node, and file it under its class."""
        if entry.is_leaf:
            self._count_path()
        self._now = now = entry.used_at
        note = entry.note if entry.note is not None else self._seen.read(entry.fingerprint)
        assert note is None or isinstance(note, _Note)
        weight = entry.num_tokens * self._scale
        if note is None:
            new = _Note(1, -1.0, now, rank=_rank_of(1, -1.0))
        else:
            gap_s = max(now - note.used_at, 0.0)
            self._num_reused[note.rank, _age_of(gap_s)] += weight
            average_s = gap_s if note.gap_s < 0 else note.gap_s + GAP_WEIGHT * (gap_s - note.gap_s)
            new = _Note(note.num_uses + 1, average_s, now, rank=_rank_of(note.num_uses + 1, average_s))
        self._num_used[new.rank] += weight
        entry.note = new
        self._seen.write(entry.fingerprint, new, num_nodes=len(self))
        self._lists.add(entry, new.rank)

    def withdraw(self, entry: Evictable) -> None:
        """Take a node out of its class. Its note stays with it."""
        self._lists.remove(entry)

    def split(self, head: Evictable, tail: Evictable) -> None:
        """File the head with the tail. It is counted as used when its lease ends."""
        assert tail in self._lists, "split what is not held here"
        head.note = tail.note
        assert isinstance(tail.note, _Note)
        self._lists.add(head, tail.note.rank)

    def choose(self) -> Evictable:
        """Name the leaf of the lowest worth among the oldest of each class, or the oldest of all if that is close."""
        candidates = list(self._oldest())
        oldest = min(candidates, key=lambda entry: entry.used_at)
        lowest = min(candidates, key=self._worth_of)
        return lowest if self._worth_of(lowest) < MARGIN * self._worth_of(oldest) else oldest

    def __len__(self) -> int:
        return len(self._lists)

    def __contains__(self, entry: object) -> bool:
        return entry in self._lists

    def _oldest(self) -> Iterator[Evictable]:
        for rank in self._lists.ranks:
            if (entry := self._lists.oldest(rank)) is not None:
                yield entry

    def _worth_of(self, entry: Evictable) -> float:
        assert isinstance(entry.note, _Note)
        return self._worth[entry.note.rank][_age_of(self._now - entry.used_at)]

    def _count_path(self) -> None:
        self._num_paths += 1
        self._scale /= FADING
        if self._num_paths % NUM_PATHS_BETWEEN == 0:
            self._num_used /= self._scale
            self._num_reused /= self._scale
            self._scale = 1.0
            self._learn()

    def _learn(self) -> None:
        odds = np.repeat(PRIOR_ODDS, NUM_GAPS)[:, None]
        prior = PRIOR_TOKENS * odds * (1.0 - odds) ** np.arange(NUM_AGES)
        self._worth = worth_of(self._num_used + PRIOR_TOKENS, self._num_reused + prior).tolist()


def worth_of(
    num_used: NDArray[np.float64],  # [num_classes] tokens used
    num_reused: NDArray[np.float64],  # [num_classes, num_ages] those of them used again at an age
) -> NDArray[np.float64]:  # [num_classes, num_ages]
    """Work out the worth of room for each class and age. Cost: O(classes * ages ** 2)."""
    num_ages = num_reused.shape[1]
    before = np.cumsum(num_reused, axis=1) - num_reused
    waiting = np.maximum(num_used[:, None] - before, 1e-9)
    chance = np.minimum(num_reused / waiting, 1.0)  # to be used at an age, for what has waited up to there
    seconds = 2.0 ** np.arange(num_ages) / AGES_PER_SECOND
    worth = np.zeros_like(num_reused)
    for age in range(num_ages):
        still = np.cumprod(1.0 - chance[:, age:], axis=1)
        reached = np.concatenate((np.ones((len(num_used), 1)), still[:, :-1]), axis=1)
        used = np.cumsum(reached * chance[:, age:], axis=1)
        room = np.cumsum(reached * (1.0 - chance[:, age:] / 2) * seconds[age:], axis=1)
        worth[:, age] = (used / room).max(axis=1)
    return worth


def _age_of(seconds: float) -> int:
    return min(max(frexp(seconds * AGES_PER_SECOND)[1] - 1, 0), NUM_AGES - 1)


def _rank_of(num_uses: int, gap_s: float) -> int:
    gap = 0 if gap_s < 0 else min(_age_of(gap_s) // 2, NUM_GAPS - 1)
    return _USES[min(num_uses, len(_USES) - 1)] * NUM_GAPS + gap
