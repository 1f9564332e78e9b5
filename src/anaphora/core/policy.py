"""Who is evicted next. A policy orders what nobody leases; it never sees a leased node.

The cache tells a policy of each node that becomes evictable (`admit`) and of each that stops being so
(`withdraw`), and asks it for the next victim (`choose`). Only leaves can go, since a node without its parent
could not be found.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol


class Evictable(Protocol):
    """What a policy may know about a node. Nodes are compared by identity."""

    @property
    def num_tokens(self) -> int:
        """Slots that evicting it would free."""

    @property
    def is_leaf(self) -> bool:
        """Whether no other node hangs below it."""


class Policy(Protocol):
    """An order of eviction.

    The cache keeps to this: nodes of one path are admitted leaf first, so a node is always admitted after all
    nodes below it that were used with it; a second `admit` of the same node means it was hit.
    """

    def admit(self, entry: Evictable) -> None:
        """Take in a node that nobody leases any more. It was used just now."""

    def withdraw(self, entry: Evictable) -> None:
        """Take out a node: it is leased again, or gone."""

    def split(self, head: Evictable, tail: Evictable) -> None:
        """Take in `head`, the new parent of `tail`: the front part of what `tail` was until now.

        The cache leases `head` at once: `withdraw(head)` comes before the next `choose`.
        """

    def choose(self) -> Evictable:
        """Name the next victim, a leaf. Changes nothing. Called only while a node is held here."""

    def __len__(self) -> int:
        """Count the nodes held here."""

    def __contains__(self, entry: object) -> bool:
        """Whether the node is held here."""


class LeastRecentlyUsed:
    """Evict what has not been used for longest.

    Nodes stand in the order of their last use. As paths are admitted leaf first, every node stands before its
    ancestors, so the first is always a leaf: no heap, no search.

        first                              last
        [leaf C] [leaf B] [A, parent of B and C]

    Cost: O(1) for each method.
    Source: RadixAttention, Zheng et al. 2024, arXiv:2312.07104, section 3 (LRU over leaves; theirs is a heap
    built anew for each eviction, ours is one list kept in order).
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[Evictable, None] = OrderedDict()

    def admit(self, entry: Evictable) -> None:
        """Put a node last."""
        assert entry not in self._entries, "admitted twice"
        self._entries[entry] = None

    def withdraw(self, entry: Evictable) -> None:
        """Take a node out of the order."""
        del self._entries[entry]

    def split(self, head: Evictable, tail: Evictable) -> None:
        """Put the head last: it is being used. The tail keeps its place."""
        assert tail in self._entries, "split what is not held here"
        self.admit(head)

    def choose(self) -> Evictable:
        """Name the first node."""
        return next(iter(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: object) -> bool:
        return entry in self._entries


POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType({"lru": LeastRecentlyUsed})
"""Every policy by the name that settings use."""
