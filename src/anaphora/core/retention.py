"""Lifetimes: what was promised to stay, until when, within a budget. Time is passed in.

A promise ends with a node and keeps all that stands in front of it too. Reading the whole of it renews it:

    time      0        5        10        15
    promise   |--5-----|
                  read |--5-----|
                                lapsed: evictable like anything else

Due promises are found by a heap that is right or early: renewing writes the new time into the promise alone, and the
heap is put right when the old time comes. So a renewal costs O(1), and each lifetime that passes O(log promises).
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from anaphora.core.eviction import Eviction
from anaphora.core.index import Node
from anaphora.core.lease import Refusal
from anaphora.core.namespace import Namespace
from anaphora.core.owner import Owner
from anaphora.core.promise import Promise


class Retention:
    """All promises in force. A kept node is one that a promise ends with, or that stands in front of one."""

    def __init__(self, budget: int, *, unleased: Eviction, owner_of: Callable[[Namespace], Owner]) -> None:
        self.budget = budget  # slots that may be kept
        self.num_kept = 0  # slots of kept nodes, leased ones included
        self._unleased = unleased
        self._owner_of = owner_of
        self._due: list[tuple[float, int, Promise]] = []  # a heap; times are right or early
        self._numbers = count()

    def refusal(self, node: Node, num_within: int) -> Refusal | None:
        """Say why a promise that ends `num_within` tokens into a node can't be made, if it can't.

        Cost: O(nodes above that are not kept).
        """
        owner = self._owner_of(node.namespace)
        num_new = num_own = 0
        above: Node | None = node
        num_tokens = num_within
        while above is not None and not above.num_kept:
            num_new += num_tokens
            num_own += num_tokens if above.namespace == node.namespace else 0
            above = above.parent
            num_tokens = 0 if above is None else above.num_tokens
        num_left = 0 if node.is_cleared else self.budget - self.num_kept
        if num_new > num_left:
            return Refusal("retention_full", num_new, num_left)
        if num_own > owner.quota - owner.num_kept:
            return Refusal("retention_full", num_new, max(0, owner.quota - owner.num_kept))
        return None

    def keep(self, node: Node, lifetime_s: float, *, now: float) -> None:
        """Keep a leased node and those above it for a time after they were last read."""
        promise = self._promise_of(node)
        promise.lifetime_s = max(promise.lifetime_s, lifetime_s)
        promise.renew(now)
        self._watch(promise)

    def pin(self, node: Node) -> None:
        """Keep a leased node and those above it until they are unpinned."""
        self._promise_of(node).is_pinned = True

    def unpin(self, node: Node, *, now: float) -> int:
        """Take a node's pin back. Returns the number of tokens that nothing keeps any more."""
        if node.promise is None or not node.promise.is_pinned:
            return 0
        node.promise.is_pinned = False
        self._watch(node.promise)
        return self.expire(now)

    def renew(self, node: Node | None, *, now: float) -> None:
        """Start the promises of a node and of those above it anew. Cost: O(nodes on the path) if there are any."""
        while node is not None and self.num_kept:
            if node.promise is not None:
                node.promise.renew(now)
            node = node.parent

    def expire(self, now: float) -> int:
        """End the promises whose time is over. Returns the number of tokens that nothing keeps any more.

        Cost: O(1) if there is none.
        """
        num_before = self.num_kept
        while self._due and self._due[0][0] <= now:
            _, _, promise = heappop(self._due)
            if promise.node is None or promise.is_pinned:
                continue  # what is unpinned is watched again
            if promise.until > now:
                self._watch(promise)
            else:
                self.end(promise.node)
        return num_before - self.num_kept

    def end(self, node: Node) -> None:
        """End a node's promise, if it has one: what it kept goes the way of everything else."""
        promise = node.promise
        if promise is None:
            return
        promise.node = node.promise = None
        lapsed: list[Node] = []
        above: Node | None = node
        while above is not None:
            above.num_kept -= 1
            if above.num_kept:
                break
            self._count(above, -above.num_tokens)
            if not above.num_held and above.parent is not None:
                lapsed.append(above)
            above = above.parent
        self._unleased.lapse(lapsed)

    def _promise_of(self, node: Node) -> Promise:
        """Get a leased node's promise, a new one if it has none."""
        assert node.num_held, "a promise is made while the node is leased"
        if node.promise is None:
            node.promise = Promise(node)
            above: Node | None = node
            while above is not None:
                above.num_kept += 1
                if above.num_kept > 1:
                    break
                self._count(above, above.num_tokens)
                above = above.parent
        return node.promise

    def _count(self, node: Node, num_tokens: int) -> None:
        self.num_kept += num_tokens
        self._owner_of(node.namespace).num_kept += num_tokens

    def _watch(self, promise: Promise) -> None:
        heappush(self._due, (promise.until, next(self._numbers), promise))
