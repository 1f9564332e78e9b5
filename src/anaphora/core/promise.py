"""A promise that cached tokens stay. Made and ended in `retention.py`; carried by the node that it ends with."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anaphora.core.index import Node


class Promise:
    """To keep a node and those above it. The cache's own; at most one for a node."""

    __slots__ = ("is_pinned", "lifetime_s", "node", "until")

    def __init__(self, node: "Node") -> None:
        self.node: Node | None = node  # None: no longer in force
        self.is_pinned = False  # kept until it is unpinned, whatever the time
        self.lifetime_s = 0.0
        self.until = float("-inf")

    def renew(self, now: float) -> None:
        """Start its lifetime anew. Lifetimes only grow, so it never ends sooner than before."""
        self.until = now + self.lifetime_s
