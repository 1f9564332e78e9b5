"""Lists of evictable nodes, one for each rank: what policies with more than one list are made of.

    rank 0   oldest [B's leaf] [C's leaf] ...... [newest]
    rank 1   oldest [A] ................. [newest]          A has children: it is parked when its turn comes

A node with children can't go. Where it is the oldest of its rank it is parked; when the last node below it has gone, it
is the oldest of its rank again. So each `admit` and each eviction parks a node once at most. Below a node may hang some
that stand in other lists, those of another tenant or priority; when all nodes here are parked, they are looked through.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from anaphora.core.evictable import Evictable

Note = TypeVar("Note")

List = OrderedDict[Evictable, None]


@dataclass(slots=True)
class Rank:
    """One list, and the tokens of all nodes of this rank, parked ones too."""

    nodes: List
    num_tokens: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.num_tokens


class LeafLists:
    """Evictable nodes by rank and, within a rank, by last use. Cost: O(1) for each method, amortised."""

    def __init__(self) -> None:
        self.ranks: dict[int, Rank] = {}
        self._rank_of: dict[Evictable, tuple[int, int]] = {}  # rank, and tokens as counted there
        self._parked: dict[Evictable, None] = {}  # a set in order
        self._bereaved: list[Evictable] = []  # parked nodes that may be leaves by now

    def add(self, entry: Evictable, rank: int) -> None:
        """Take a node in as the newest of a rank."""
        assert entry not in self._rank_of, "admitted twice"
        if rank not in self.ranks:
            self.ranks[rank] = Rank(OrderedDict())
        self.ranks[rank].nodes[entry] = None
        self.ranks[rank].num_tokens += entry.num_tokens
        self._rank_of[entry] = (rank, entry.num_tokens)

    def remove(self, entry: Evictable) -> int:
        """Take a node out. Returns the rank that it had."""
        rank, num_tokens = self._rank_of.pop(entry)
        self.ranks[rank].num_tokens -= num_tokens
        if entry in self._parked:
            del self._parked[entry]
        else:
            del self.ranks[rank].nodes[entry]
        if entry.parent is not None and entry.parent in self._parked:
            self._bereaved.append(entry.parent)
        return rank

    def move(self, entry: Evictable, rank: int) -> None:
        """Make a node the newest of another rank. Its tokens are counted anew."""
        self.remove(entry)
        self.add(entry, rank)

    def oldest(self, rank: int) -> Evictable | None:
        """Find the oldest leaf of a rank. None where it has none."""
        self._unpark()
        if rank not in self.ranks:
            return None
        nodes = self.ranks[rank].nodes
        while nodes:
            entry = next(iter(nodes))
            if entry.is_leaf:
                return entry
            del nodes[entry]
            self._parked[entry] = None
        return None

    def num_tokens(self, rank: int) -> int:
        """Count the tokens of a rank, as they were when its nodes came in."""
        return self.ranks[rank].num_tokens if rank in self.ranks else 0

    def _unpark(self) -> None:
        if len(self._parked) == len(self._rank_of):
            self._bereaved = list(reversed(self._parked))
        while self._bereaved:
            entry = self._bereaved.pop()
            if entry in self._parked and entry.is_leaf:
                del self._parked[entry]
                nodes = self.ranks[self._rank_of[entry][0]].nodes
                nodes[entry] = None
                nodes.move_to_end(entry, last=False)

    def __len__(self) -> int:
        return len(self._rank_of)

    def __contains__(self, entry: object) -> bool:
        return entry in self._rank_of


class Memory(Generic[Note]):
    """Notes of nodes by fingerprint, of those that are gone too: so many for each node that is held.

    Least recently written goes first. An entry takes about 200 bytes and its note; a node of 128 tokens takes some
    1,500 bytes of index and megabytes of keys and values. Cost: O(1).
    """

    NUM_AT_LEAST = 8192

    def __init__(self, num_for_each_node: float = 8) -> None:
        self._num_for_each_node = num_for_each_node
        self._notes: OrderedDict[int, Note] = OrderedDict()

    def write(self, fingerprint: int, note: Note, *, num_nodes: int) -> None:
        """Remember a note."""
        self._notes[fingerprint] = note
        self._notes.move_to_end(fingerprint)
        while len(self._notes) > max(self._num_for_each_node * num_nodes, self.NUM_AT_LEAST):
            self._notes.popitem(last=False)

    def read(self, fingerprint: int) -> Note | None:
        """Recall a note."""
        return self._notes.get(fingerprint)
