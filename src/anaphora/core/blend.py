"""Evict what was used least, where older uses count less: how fast they fade is learned from the workload itself.

Each use counts 1 and halves with every half-life that passes. With a half-life of nothing that is LRU, with an endless
one it is LFU; between them lies what is best for a workload, and where exactly differs a lot: coding agents want half a
minute, few-shot prefixes an hour, an airline's conversations nothing but LRU. So shadows (`shadows.py`) tell what each
half-life would hit in this cache, and the best is used if it is surely better than LRU.

The sum of a node's fading uses changes by the second, but all sums fade alike. So nodes are ordered by when the sum
will be down to 1, which only a use changes:

    rank = now + half-life * log2(sum)            used once: the time of that use, as in LRU
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from anaphora.core.evictable import Evictable
from anaphora.core.leaf_lists import Memory
from anaphora.core.shadows import Floats, Shadows

HALF_LIVES_S = (0.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
"""Shortest first: LRU. Steps of three: what is best differs by a thousand times, and neighbours keep much the same."""
LRU = 0
PRIOR = HALF_LIVES_S.index(300.0)
"""What is used until something comes back that one order would have kept and another not: what was used again outlives
a first sweep of what is used once."""
LONGEST = 8.0
"""A half-life is at most so many times as long as LRU keeps a node: what a longer one promises was not seen yet."""
BUCKETS_EACH = 256.0
"""Buckets of a shadow for each half-life."""
NARROWEST_S = 0.125
"""Width of a bucket at least."""

FADING = 0.9995
"""Of what was learned, for each path used: it is about the last two thousand."""
CERTAINTY_TO_CHANGE, CERTAINTY_TO_STAY = 1.7, 0.5
"""How far a lead over LRU must be above what chance gives, in standard deviations of the sum of so many paths. More to
change than to stay, so that two that are alike do not take turns."""
ENOUGH = 0.8
"""Of the best lead: the shortest half-life that has so much is taken, as the one nearest to LRU."""
NUM_PATHS_BETWEEN = 16
"""Paths used between two choices of the half-life, at least. A change sorts all that is held here, so as many nodes
must have been used since the last one as are held."""
REMEMBERED = 1.5
"""Nodes, gone ones included, for each that is held here."""
ROOM_FADING = 0.9999
"""Of the room, for each path used: it is the most tokens held here lately."""

Place = tuple[float, int, int]  # rank, serial number, tokens


@dataclass(frozen=True, slots=True)
class _Note:
    ranks: bytes  # [num_half_lives] float64: half the memory of an array
    num_tokens: int
    num_known: int  # of them, those that were there before the last use; the rest came with it


class Blend:
    """Evict the leaf whose fading uses sum up to the least, with the half-life that hits most.

    What was evicted is remembered by fingerprint for a while, so a node that comes back goes on where it was, and is
    learned from though it came too late.
    Cost: O(log nodes) for each node used or evicted, amortised, and O(half-lives) for each path used.
    Memory: a note of the ranks for each node, those included that are gone and remembered.
    Source: Lee et al. 2001, "LRFU: a spectrum of policies that subsumes the least recently used and least frequently
    used policies" (there the half-life is given); Qureshi et al. 2007, "Adaptive insertion policies for high
    performance caching" (a duel between policies, there on a part of the cache itself).
    """

    def __init__(self) -> None:
        self._half_lives = np.array(HALF_LIVES_S)
        self._per_half_life = np.array([0.0, *(1.0 / half_life for half_life in HALF_LIVES_S[1:])])
        self._shadows = Shadows(np.maximum(self._half_lives / BUCKETS_EACH, NARROWEST_S))
        self._seen: Memory[_Note] = Memory(REMEMBERED)
        self._path: dict[Evictable, None] = {}  # in order: used last, and not filed yet
        self._places: dict[Evictable, Place] = {}
        self._heap: list[tuple[float, int, Evictable]] = []
        self._parked: dict[Evictable, None] = {}  # in order: nodes with others below them, taken off the heap
        self._bereaved: list[Evictable] = []  # parked nodes that may be leaves by now
        self._victim: Evictable | None = None
        self._chosen = PRIOR
        self._leads = np.zeros(len(HALF_LIVES_S))  # over LRU, in tokens
        self._squares = np.zeros(len(HALF_LIVES_S))  # of the leads of single paths
        self._num_held = 0  # tokens
        self._room = 0.0
        self._num_filed = 0
        self._num_paths = 0
        self._num_filed_at_change = 0

    @property
    def half_life_s(self) -> float:
        """How long it takes for a use to count half, as chosen for now."""
        return HALF_LIVES_S[self._chosen]

    def admit(self, entry: Evictable) -> None:
        """Count one more use. What it teaches is learned when its path is complete."""
        assert entry not in self, "admitted twice"
        if entry.is_leaf:
            self._learn()
        self._path[entry] = None
        if entry.parent is None or entry.parent.parent is None:
            self._learn()  # now, not when the next request waits for it

    def withdraw(self, entry: Evictable) -> None:
        """Take a node out. Its note stays with it."""
        self._learn()
        _, _, num_tokens = self._places.pop(entry)
        self._num_held -= num_tokens
        self._parked.pop(entry, None)
        if entry.parent is not None and entry.parent in self._parked:
            self._bereaved.append(entry.parent)

    def split(self, head: Evictable, tail: Evictable) -> None:
        """File the head with the tail. It is counted as used when its lease ends.

        A tail that came with the last use alone has shown now that it does not share the past of what it hung from.
        """
        assert tail in self, "split what is not held here"
        self._learn()
        note = tail.note
        assert isinstance(note, _Note)
        rank, serial, num_tokens = self._places[tail]
        self._num_held -= num_tokens - tail.num_tokens
        num_known = max(note.num_known - head.num_tokens, 0)
        self._remember(head, _Note(note.ranks, head.num_tokens, min(note.num_known, head.num_tokens)))
        self._file(head, rank)
        ranks = note.ranks
        if not num_known:
            fresh = np.full((1, len(HALF_LIVES_S)), tail.used_at)
            sizes = np.array([float(tail.num_tokens)])
            self._shadows.take(_ranks_of([note]), sizes)
            self._shadows.add(fresh, sizes)
            ranks, rank = fresh.tobytes(), min(rank, tail.used_at)
            heappush(self._heap, (rank, serial, tail))
        self._remember(tail, _Note(ranks, tail.num_tokens, num_known))
        self._places[tail] = (rank, serial, tail.num_tokens)

    def readmit(self, entry: Evictable) -> None:
        """Put a node in front of those that were not chosen yet."""
        assert entry not in self, "readmitted what is held here"
        self._learn()
        self._file(entry, -np.inf)

    def choose(self) -> Evictable:
        """Name the leaf of the lowest rank."""
        self._learn()
        self._weigh_victim()
        for entry in self._bereaved:
            self._unpark(entry)
        self._bereaved.clear()
        while (victim := self._lowest()) is None:
            for entry in list(self._parked):  # what hung below was held in another order: that of another tenant
                self._unpark(entry)
        self._victim = victim
        return victim

    def __len__(self) -> int:
        return len(self._places) + len(self._path)

    def __contains__(self, entry: object) -> bool:
        return entry in self._places or entry in self._path

    def _learn(self) -> None:
        """Rank the nodes of the path that was used last, and see which half-lives would have kept them."""
        if not self._path:
            return
        path = list(self._path)
        self._path.clear()
        ranks = np.repeat(np.array([[entry.used_at] for entry in path]), len(HALF_LIVES_S), axis=1)
        nums_known = self._recall(path, ranks)
        self._shadows.add(ranks, np.array([float(entry.num_tokens) for entry in path]))
        for entry, row, num_known in zip(path, ranks, nums_known, strict=True):
            self._remember(entry, _Note(row.tobytes(), entry.num_tokens, num_known))
            self._file(entry, float(row[self._chosen]))
        self._weigh_victim()
        self._room = max(self._room * ROOM_FADING, float(self._num_held))
        self._shadows.fit(self._room)
        self._num_paths += 1
        if self._num_paths % NUM_PATHS_BETWEEN == 0:
            self._choose_half_life()

    def _recall(self, path: list[Evictable], ranks: Floats) -> list[int]:  # ranks: [num_nodes, num_half_lives]
        """Raise the ranks of nodes that were used before. Returns how many tokens of each were."""
        nums_known = [0] * len(path)
        known: list[int] = []
        notes: list[_Note] = []
        for index, entry in enumerate(path):
            note = entry.note or self._seen.read(entry.fingerprint)
            if note is not None:
                assert isinstance(note, _Note)
                nums_known[index] = min(note.num_tokens, entry.num_tokens)
                known.append(index)
                notes.append(note)
        if not known:
            return nums_known
        before = _ranks_of(notes)
        hits = self._shadows.take(before, np.array([float(nums_known[index]) for index in known]))
        now = ranks[known]
        ranks[known] = now + self._half_lives * np.logaddexp2(0.0, (before - now) * self._per_half_life)
        self._count_leads(hits - hits[LRU])
        return nums_known

    def _count_leads(self, leads: Floats) -> None:
        knew_nothing = not self._squares.any()
        self._leads = FADING * self._leads + leads
        self._squares = FADING * self._squares + leads * leads
        if knew_nothing and self._squares.any():
            self._choose_half_life()

    def _remember(self, entry: Evictable, note: _Note) -> None:
        entry.note = note
        self._seen.write(entry.fingerprint, note, num_nodes=len(self._places))

    def _file(self, entry: Evictable, rank: float) -> None:
        self._num_filed += 1
        self._places[entry] = (rank, self._num_filed, entry.num_tokens)
        self._num_held += entry.num_tokens
        heappush(self._heap, (rank, self._num_filed, entry))
        if len(self._heap) > 2 * len(self._places) + NUM_PATHS_BETWEEN:
            self._sort()

    def _lowest(self) -> Evictable | None:
        while self._heap:
            rank, serial, entry = self._heap[0]
            if entry in self._places and self._places[entry][:2] == (rank, serial):
                if entry.is_leaf:
                    return entry
                self._parked[entry] = None
            heappop(self._heap)
        assert any(entry.is_leaf for entry in self._parked), "no leaf is held here"
        return None

    def _unpark(self, entry: Evictable) -> None:
        if entry in self._parked and entry.is_leaf:
            del self._parked[entry]
            rank, serial, _ = self._places[entry]
            heappush(self._heap, (rank, serial, entry))

    def _sort(self) -> None:
        self._heap = [(rank, serial, entry) for entry, (rank, serial, _) in self._places.items()]
        heapify(self._heap)
        self._parked.clear()

    def _weigh_victim(self) -> None:
        """Count what was cut off the last victim's end."""
        entry, self._victim = self._victim, None
        if entry is not None and entry in self._places:
            rank, serial, num_tokens = self._places[entry]
            self._places[entry] = (rank, serial, entry.num_tokens)
            self._num_held -= num_tokens - entry.num_tokens

    def _choose_half_life(self) -> None:
        """Take the shortest half-life that is surely better than LRU and nearly the best. Else LRU."""
        if not self._squares.any() or self._num_filed < self._num_filed_at_change:
            return
        certainty = np.full(len(HALF_LIVES_S), CERTAINTY_TO_CHANGE)
        certainty[self._chosen] = CERTAINTY_TO_STAY
        is_sure = self._leads > certainty * np.sqrt(self._squares)
        is_short = self._half_lives <= LONGEST * self._shadows.span(LRU)
        leads = np.where(is_sure & is_short, self._leads, 0.0)
        best = int((leads >= ENOUGH * leads.max()).argmax())
        if best == self._chosen:
            return
        self._chosen = best
        self._num_filed_at_change = self._num_filed + len(self._places)
        for entry, (rank, serial, num_tokens) in self._places.items():
            assert isinstance(entry.note, _Note)
            new = rank if rank == -np.inf else float(_ranks_of([entry.note])[0, best])
            self._places[entry] = (new, serial, num_tokens)
        self._sort()


def _ranks_of(notes: list[_Note]) -> Floats:  # [num_notes, num_half_lives]
    return np.frombuffer(b"".join(note.ranks for note in notes)).reshape(len(notes), len(HALF_LIVES_S))
