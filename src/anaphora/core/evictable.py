"""What a policy may know, and what it must answer. A policy orders what nobody leases; it never sees a leased node.

The cache tells a policy of each node that becomes evictable (`admit`) and of each that stops being so
(`withdraw`), and asks it for the next victim (`choose`). Only leaves can go, since a node without its parent
could not be found.
"""

from enum import IntEnum
from typing import Protocol, runtime_checkable


class Priority(IntEnum):
    """What goes first: all of a lower priority before any of a higher one, whatever the policy says of them."""

    LOW = -1  # work in bulk that nobody will ask for again
    NORMAL = 0
    HIGH = 1


class Evictable(Protocol):
    """What a policy may know about a node. Nodes are compared by identity."""

    note: object
    """The policy's own memory of a node, None at first. It stays with the node while that is leased; both halves of a
    split get it, so it must not be changed in place."""

    @property
    def used_at(self) -> float:
        """When it was last used, by the cache's clock. Nodes are admitted in the order of this time."""

    @property
    def num_tokens(self) -> int:
        """Slots that evicting it would free."""

    @property
    def is_leaf(self) -> bool:
        """Whether no other node hangs below it."""

    @property
    def parent(self) -> "Evictable | None":
        """The node above: what becomes a leaf once this one and its siblings are gone. None above a root."""

    @property
    def fingerprint(self) -> int:
        """A number that tokens which open the same way get again after they were evicted. Others may share it."""


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


@runtime_checkable
class Readmits(Protocol):
    """What a policy may offer besides: to take a node back that was not used.

    A node that is promised to stay is withdrawn when its policy chooses it, and comes back when the promise has lapsed.
    A policy without this method gets it by `admit`, as if it had been used just now.
    """

    def readmit(self, entry: Evictable) -> None:
        """Take back a node that was chosen and withdrawn, and not used since. Nodes of one path come leaf first."""
