"""What callers get from the cache: a match, a lease, a refusal, the counts. They only read it."""

from dataclasses import dataclass
from typing import Literal

from anaphora.core.extent import Extent, coalesce, count_slots
from anaphora.core.index import Node, extents_up_to
from anaphora.core.namespace import Namespace
from anaphora.core.owner import Owner


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix, as it stood when asked for. Nothing is pinned: acquire to use it."""

    num_tokens: int
    extents: tuple[Extent, ...]
    diverged: bool  # something cached goes on from here, with another token


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why slots could not be had. Nothing was changed."""

    reason: Literal["pool_full", "quota_full", "larger_than_pool", "retention_full"]
    """pool_full: leases hold the slots; try again when one is released. quota_full: the tenant is beyond its quota and
    what is left belongs to others; try again when one of its own leases is released. larger_than_pool: never.
    retention_full: the budget for promises is spent; nothing was promised."""
    num_needed: int  # slots asked for
    num_available: int  # slots that could have been given: free and evictable; or promised


@dataclass(frozen=True, slots=True)
class Counts:
    """The state of every slot. free + evictable + leased + retained == total, always."""

    free: int
    evictable: int  # cached, leased by nobody, promised to nobody
    leased: int  # cached and leased, or private to a lease
    total: int
    retained: int = 0  # cached, leased by nobody, promised to stay or pinned


class Lease:
    """The slots of one sequence, pinned until released. Made by `acquire`; the cache alone changes it.

        token     0               num_published           num_slots
                  |---------------|-----------------------|
        owner      index nodes,    private to this lease
                   pinned

    Who reads keys and values for `[0, n)` needs n <= what was reused, published or computed by its holder so
    far.
    """

    __slots__ = (
        "_extents",
        "is_open",
        "is_running",
        "namespace",
        "node",
        "num_published",
        "num_reused",
        "num_shared",
        "num_slots",
        "owner",
        "priority",
        "private",
        "version",
    )

    def __init__(
        self, namespace: Namespace, *, num_reused: int, node: Node | None, owner: Owner | None = None, priority: int = 0
    ) -> None:
        self.namespace = namespace
        self.num_reused = num_reused  # cached tokens at acquire
        self.num_published = num_reused  # tokens that stand in the index
        self.num_slots = num_reused  # tokens that there is room for, published ones included
        self.version = 0  # goes up whenever `extents` changes
        self.is_open = True  # not yet released
        self.num_shared = 0  # the cache's own: tokens of the shared region that the prompt opens with
        self.is_running = False  # the cache's own: private slots were asked for, so it is more than a hold on a match
        self.owner = owner  # the cache's own: whose quota the lease counts against
        self.priority = priority  # of what is published
        self.node = node  # the cache's own: where the published part ends; None where nothing is ever published
        self.private: tuple[Extent, ...] = ()  # the cache's own: slots of [num_published, num_slots)
        self._extents: tuple[Extent, ...] | None = None

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Slots of tokens `[0, num_slots)` in token order, coalesced. Cost: O(1) until `version` changes."""
        if self._extents is None:
            published = () if self.node is None else extents_up_to(self.node, self.node.num_tokens)
            self._extents = coalesce((*published, *self.private))
        return self._extents

    @property
    def is_findable(self) -> bool:
        """Whether others find what this lease publishes: the cache reuses, and was not cleared under the lease."""
        return self.node is not None and not self.node.is_cleared

    @property
    def end(self) -> int | None:
        """The slot right behind the last one; None for a lease without slots."""
        if self.private:
            return self.private[-1].stop
        return self.node.extents[-1].stop if self.node is not None and self.node.extents else None

    def add_private(self, extents: tuple[Extent, ...]) -> None:
        """Append slots at the end. The cache's own."""
        self.private = (*self.private[:-1], *coalesce((*self.private[-1:], *extents)))
        self.num_slots += count_slots(extents)
        self.has_moved()

    def has_moved(self) -> None:
        """Note that the slots are others now, or more. The cache's own."""
        self.version += 1
        self._extents = None

    def check(self) -> None:
        """Assert what must hold for one lease. Cost: O(depth + extents)."""
        assert self.is_open, "a released lease is still known"
        assert 0 <= self.num_published <= self.num_slots
        assert count_slots(self.private) == self.num_slots - self.num_published, "private slots are miscounted"
        assert self.private == coalesce(self.private), "private extents were not joined"
        assert count_slots(self.extents) == self.num_slots, "the extents do not cover the lease"
        depth, node = 0, self.node
        while node is not None:
            depth += node.num_tokens
            assert node.num_held > 0, "a leased node counts as evictable"
            assert node.parent is None or node.priority >= self.priority, "a used node ranks below its user"
            node = node.parent
        assert depth == self.num_published, "the lease ends elsewhere in the index"
        assert self.end == (self.extents[-1].stop if self.extents else None), "the lease ends at another slot"
        fresh = () if self.node is None else extents_up_to(self.node, self.node.num_tokens)
        assert self.extents == coalesce((*fresh, *self.private)), "the extents changed without notice"
