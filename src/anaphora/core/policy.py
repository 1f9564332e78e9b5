"""Every policy by name, and the simplest of them. What a policy is: `evictable.py`."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType

from anaphora.core.blend import Blend
from anaphora.core.counting import AdaptiveReplacement, GreedyDual, LeastFrequentlyUsed, SegmentedLRU, ThreeQueues
from anaphora.core.evictable import Evictable, Policy
from anaphora.core.reuse_odds import ReuseOdds

__all__ = ["POLICIES", "Evictable", "LeastRecentlyUsed", "Policy"]


class LeastRecentlyUsed:
    """Evict what has not been used for longest.

    Nodes stand in the order of their last use. As paths are admitted leaf first, every node stands before its
    ancestors, so the first is always a leaf: no heap, no search.

        first                              last
        [leaf C] [leaf B] [A, parent of B and C]

    What was chosen once and comes back unused goes before all of them.

    Cost: O(1) for each method.
    Source: RadixAttention, Zheng et al. 2024, arXiv:2312.07104, section 3 (LRU over leaves; theirs is a heap
    built anew for each eviction, ours is one list kept in order).
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[Evictable, None] = OrderedDict()
        self._readmitted: OrderedDict[Evictable, None] = OrderedDict()

    def admit(self, entry: Evictable) -> None:
        """Put a node last."""
        assert entry not in self, "admitted twice"
        self._entries[entry] = None

    def withdraw(self, entry: Evictable) -> None:
        """Take a node out of the order."""
        del (self._readmitted if entry in self._readmitted else self._entries)[entry]

    def split(self, head: Evictable, tail: Evictable) -> None:
        """Put the head last: it is being used. The tail keeps its place."""
        assert tail in self, "split what is not held here"
        self.admit(head)

    def readmit(self, entry: Evictable) -> None:
        """Put a node in front of those that were not chosen yet."""
        assert entry not in self, "readmitted what is held here"
        self._readmitted[entry] = None

    def choose(self) -> Evictable:
        """Name the first node."""
        return next(iter(self._readmitted or self._entries))

    def __len__(self) -> int:
        return len(self._entries) + len(self._readmitted)

    def __contains__(self, entry: object) -> bool:
        return entry in self._entries or entry in self._readmitted


POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {
        "lru": LeastRecentlyUsed,
        "lfu": LeastFrequentlyUsed,
        "slru": SegmentedLRU,
        "gdsf": GreedyDual,
        "arc": AdaptiveReplacement,
        "s3fifo": ThreeQueues,
        "odds": ReuseOdds,
        "blend": Blend,
    }
)
"""Every policy by the name that settings use."""
