"""The front door of the cache: peek, acquire, publish, release. Pure: no I/O, and time is passed in.

One thread owns a cache and calls it; nothing here is locked.

A slot is always in one of three states, and its owner is never in doubt:

    free        in the pool
    evictable   owned by an index node that nobody leases
    leased      owned by a leased index node, or private to one lease

    one lease:   token  0 .......... num_published .......... num_slots
                        |  index nodes, pinned  |  private slots  |
                         readable by anyone      readable by the holder

`publish` moves the border to the right. A slot goes from a lease to the index once, and from there only to
the pool.
"""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Protocol

import numpy as np

from anaphora.core.events import Cleared, Event, Evicted, Stored
from anaphora.core.extent import Extent, cut
from anaphora.core.index import Node, Tokens, Walk, check_node, extents_up_to, new_root, walk
from anaphora.core.lease import Counts, Lease, Match, Refusal
from anaphora.core.namespace import Namespace
from anaphora.core.policy import LeastRecentlyUsed, Policy
from anaphora.core.pool import Pool

SLACK = 32
"""Up to one slot in so many is freed beyond need, to keep free runs long. In `extents_per_lease` of the benchmark
`python -m anaphora.bench.core_index` (a full pool, conversations of 4,000 tokens) a lease ends with 72 extents without
it and 15 with it."""

EVICT_STEP = 256
"""Tokens evicted in one go while slots are freed for a long run: about the length of a turn of a conversation."""

MERGE_LIMIT = 2048
"""Nodes used together are joined when released if they have at most this many tokens together: an 8 KB copy,
about a microsecond, so that joining a path of any length stays cheap."""


class Cache(Protocol):
    """What an engine asks of a cache. Variants: `PrefixCache`, and `NoReuse` to do without."""

    def peek(self, namespace: Namespace, tokens: Tokens) -> Match:
        """Look up the longest cached prefix. Changes nothing."""

    def acquire(self, namespace: Namespace, tokens: Tokens, *, max_reuse: int, num_private: int) -> Lease | Refusal:
        """Pin the longest cached prefix, at most `max_reuse` tokens, with `num_private` fresh slots behind
        it."""

    def grow(self, lease: Lease, num_tokens: int) -> Refusal | None:
        """Add private slots to the end of a lease."""

    def publish(self, lease: Lease, tokens: Tokens, num_computed: int) -> int:
        """Announce that keys and values of `tokens[:num_computed]` stand in the lease's slots."""

    def release(self, lease: Lease) -> None:
        """Give a lease back."""

    def clear(self, namespace: Namespace | None) -> int:
        """Forget what is cached in a namespace, or in all."""

    def counts(self) -> Counts:
        """Count slots by state."""

    def check(self) -> None:
        """Assert every invariant."""


class PrefixCache:
    """A cache that reuses, token by token, whatever opens the same way.

    Eviction is token-granular: of the victim, a leaf, only as many tokens are cut off the end as are wanted.
    What is left stays the next victim, and stays a hit for prompts that share it. A long prompt is thus not
    lost for one token of another.

    Wanted is what is needed and, where the free slots lie in short runs only, a little more (`SLACK`): a pool that
    frees exactly what is needed ends as dust, and attention pays for every extent.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        policy: Policy | None = None,
        clock: Callable[[], float],
        listener: Callable[[Event], None] | None = None,
        num_slack: int | None = None,
    ) -> None:
        """Build an empty cache.

        `num_slack` is how many slots may be freed beyond need to keep free runs long: a 32nd of the pool unless given,
        0 where no keys or values are behind the slots.
        """
        self._pool = Pool(num_slots)
        self._num_slack = num_slots // SLACK if num_slack is None else num_slack
        self._policy: Policy = LeastRecentlyUsed() if policy is None else policy
        self._clock = clock
        self._listener = listener
        self._roots: dict[Namespace, Node] = {}
        self._leases: set[Lease] = set()
        self._num_evictable = 0

    def peek(self, namespace: Namespace, tokens: Tokens) -> Match:
        """Look up the longest cached prefix. Changes nothing, not even recency.

        Cost: one vectorised comparison of the tokens, O(1) for each node on the path.
        """
        root = self._roots.get(namespace)
        if root is None:
            return Match(0, (), diverged=False)
        found = walk(root, _checked(tokens))
        return Match(found.num_tokens, extents_up_to(found.node, found.num_within), found.has_diverged)

    def acquire(self, namespace: Namespace, tokens: Tokens, *, max_reuse: int, num_private: int) -> Lease | Refusal:
        """Pin the longest cached prefix, at most `max_reuse` tokens, with `num_private` fresh slots behind
        it.

        Evicts if it must, never what it has just matched. All or nothing: a refusal changes nothing. With
        `max_reuse=len(tokens)` a prompt that is published whole is leased whole, as its second and further
        answers do.
        Cost: as `peek`, plus O(1) for each node evicted, plus a copy of the node's tokens if the match ends
        inside it.
        """
        assert max_reuse >= 0
        assert num_private >= 0
        root = self._roots.get(namespace) or new_root(namespace)
        found = walk(root, _checked(tokens)[:max_reuse])
        num_available = self._pool.num_free + self._num_evictable - _count_unleased(found)
        if refusal := self._refusal(num_private, num_available, num_owned=found.num_tokens):
            return refusal
        self._roots[namespace] = root
        node = self._split_at(found)
        lease = Lease(namespace, num_reused=found.num_tokens, node=node)
        self._hold(node)
        self._leases.add(lease)
        self._take(lease, num_private)
        return lease

    def grow(self, lease: Lease, num_tokens: int) -> Refusal | None:
        """Add private slots to the end of a lease, in place if the slots behind it are free.

        Evicts if it must. A refusal changes nothing. Ask for 64 slots or more at a time where you can: each call that
        can't go on in place starts another extent.
        """
        assert lease in self._leases, "grow of a lease that is not open"
        assert num_tokens >= 0
        num_available = self._pool.num_free + self._num_evictable
        if refusal := self._refusal(num_tokens, num_available, num_owned=lease.num_slots):
            return refusal
        self._take(lease, num_tokens)
        return None

    def publish(self, lease: Lease, tokens: Tokens, num_computed: int) -> int:
        """Announce that keys and values of `tokens[:num_computed]` stand in the lease's slots.

        Others may read them from now on. Tokens already published must be given again, and be the same. Where
        someone else has published the same tokens meanwhile, the index's slots win: the lease's duplicates go
        back to the pool, and `lease.extents` names the index's slots instead (`lease.version` goes up).
        Returns the number of tokens newly written to the index, 0 in a namespace that was cleared since
        `acquire`.
        Cost: as `peek` on the new tokens, plus a copy of them (and of the node that they extend).
        """
        assert lease in self._leases, "publish on a lease that is not open"
        assert lease.node is not None
        assert lease.num_published <= num_computed <= min(lease.num_slots, len(tokens))
        fresh = _checked(tokens)[lease.num_published : num_computed]
        found = walk(lease.node, fresh)
        if found.num_tokens:
            self._adopt(lease, found)
        fresh = fresh[found.num_tokens :]
        if fresh.size:
            self._append(lease, fresh)
        lease.num_published = num_computed
        if not fresh.size or lease.node.is_cleared:
            return 0
        self._tell(Stored, lease.namespace, fresh.size)
        return fresh.size

    def release(self, lease: Lease) -> None:
        """Give a lease back: its private slots become free, its published ones evictable, last tokens first.

        Cost: O(1) for each node that nobody leases any more; small neighbours among them are joined.
        """
        assert lease in self._leases, "released twice"
        assert lease.node is not None
        self._leases.remove(lease)
        lease.is_open = False
        self._pool.give_back(lease.private)
        released = self._let_go(lease.node)
        used_at = self._clock()
        for node, above in zip_longest(released, released[1:]):
            if node.is_cleared:
                node.detach()
                self._pool.give_back(node.extents)
            elif above and _may_absorb(above, node):
                above.absorb(node)
            else:
                self._num_evictable += node.num_tokens
                node.used_at = used_at
                self._policy.admit(node)

    def clear(self, namespace: Namespace | None) -> int:
        """Forget what is cached in a namespace, or in all (None). Returns the number of tokens forgotten.

        Leases stay good for their holders, but nobody finds what they publish; their slots are freed on
        release.
        Cost: O(nodes).
        """
        names = list(self._roots) if namespace is None else [namespace] if namespace in self._roots else []
        num_cleared = 0
        for name in names:
            num_tokens = self._clear_tree(self._roots.pop(name))
            self._tell(Cleared, name, num_tokens)
            num_cleared += num_tokens
        return num_cleared

    def counts(self) -> Counts:
        """Count slots by state."""
        free, total = self._pool.num_free, self._pool.num_slots
        return Counts(free, self._num_evictable, total - free - self._num_evictable, total)

    def check(self) -> None:
        """Assert every invariant. Cost: O(slots)."""
        self._pool.check()
        roots = set(self._roots.values())
        num_leases: dict[Node, int] = {}
        for lease in self._leases:
            lease.check()
            assert lease.node is not None
            num_leases[lease.node] = num_leases.get(lease.node, 0) + 1
            roots.add(_root_of(lease.node))
        owners = np.zeros(self._pool.num_slots, dtype=np.int64)
        num_evictable = num_nodes = 0
        for root in roots:
            assert (self._roots.get(root.namespace) is root) == (not root.is_cleared), "a tree got lost"
            assert root.num_held or root.children, "an empty tree was kept"
            for node in _nodes_under(root):
                check_node(node)
                assert node.num_leases == num_leases.get(node, 0), "leases of a node are miscounted"
                is_evictable = node.parent is not None and not node.num_held
                assert (node in self._policy) == is_evictable, "the policy holds the wrong nodes"
                num_nodes += is_evictable
                num_evictable += node.num_tokens if is_evictable else 0
                _mark(owners, node.extents)
        assert num_nodes == len(self._policy), "the policy holds a node that is gone"
        assert num_evictable == self._num_evictable, "evictable slots are miscounted"
        for lease in self._leases:
            _mark(owners, lease.private)
        _mark(owners, self._pool.free_extents())
        assert (owners == 1).all(), "a slot has no owner, or two"

    def _refusal(self, num_needed: int, num_available: int, *, num_owned: int) -> Refusal | None:
        if num_owned + num_needed > self._pool.num_slots:
            return Refusal("larger_than_pool", num_needed, num_available)
        if num_needed > num_available:
            return Refusal("pool_full", num_needed, num_available)
        return None

    def _take(self, lease: Lease, num_slots: int) -> None:
        """Give a lease private slots, evicting until there are enough and, within limits, until they lie together."""
        pool = self._pool
        while (num_missing := num_slots - pool.num_free) > 0:
            self._evict(num_missing)
        num_wanted = num_slots + self._num_slack
        while self._num_evictable and not pool.has_run(num_slots):
            if (num_missing := num_wanted - pool.num_free) <= 0:
                break
            self._evict(min(num_missing, EVICT_STEP))
        lease.add_private(self._pool.take(num_slots, after=lease.end))

    def _evict(self, num_missing: int) -> None:
        """Evict the policy's victim, or only its last `num_missing` tokens if it has more."""
        victim = self._policy.choose()
        assert isinstance(victim, Node), "the policy made a node up"
        assert victim.is_leaf, "the policy chose a node that others hang from"
        assert not victim.num_held, "the policy chose a leased node"
        num_evicted = min(num_missing, victim.num_tokens)
        self._num_evictable -= num_evicted
        if num_evicted < victim.num_tokens:
            self._pool.give_back(victim.trim(num_evicted))
        else:
            self._policy.withdraw(victim)
            parent = victim.parent
            assert parent is not None
            victim.detach()
            self._pool.give_back(victim.extents)
            self._drop_if_empty(parent)
        self._tell(Evicted, victim.namespace, num_evicted)

    def _adopt(self, lease: Lease, found: Walk) -> None:
        """Let a lease use the index's slots for tokens that others published, and free its own copies."""
        node = self._split_at(found)
        assert lease.node is not None
        self._hold(node)
        released = self._let_go(lease.node)
        assert not released, "what was adopted does not hang below the lease's node"
        lease.node = node
        duplicates, lease.private = cut(lease.private, found.num_tokens)
        self._pool.give_back(duplicates)
        lease.has_moved()

    def _append(self, lease: Lease, tokens: Tokens) -> None:
        """Move a lease's next private slots into the index, under tokens that it does not have yet."""
        node = lease.node
        assert node is not None
        extents, lease.private = cut(lease.private, len(tokens))
        if node.parent is not None and node.is_leaf and node.num_leases == 1:
            node.extend(tokens, extents)  # nobody else's published part ends here
            return
        lease.node = Node(lease.namespace, node, tokens, extents)
        lease.node.num_leases = lease.node.num_held = 1
        node.num_leases -= 1  # num_held stays: what was held by the lease is held by the child now

    def _split_at(self, found: Walk) -> Node:
        """Get the node that ends exactly where a walk ended."""
        tail = found.node
        if found.num_within == tail.num_tokens:
            return tail
        head = tail.split(found.num_within)
        if not tail.num_held:
            self._policy.split(head, tail)
        return head

    def _hold(self, node: Node) -> None:
        """Lease a node. What was evictable on its path is not any more."""
        node.num_leases += 1
        node.num_held += 1
        while node.num_held == 1 and node.parent is not None:
            self._policy.withdraw(node)
            self._num_evictable -= node.num_tokens
            node = node.parent
            node.num_held += 1

    def _let_go(self, node: Node) -> list[Node]:
        """Undo one `_hold`. Returns the nodes that nobody leases any more, last tokens first."""
        node.num_leases -= 1
        node.num_held -= 1
        released: list[Node] = []
        while not node.num_held:
            if node.parent is None:
                self._drop_if_empty(node)
                break
            released.append(node)
            node = node.parent
            node.num_held -= 1
        return released

    def _drop_if_empty(self, node: Node) -> None:
        if node.parent is None and node.is_leaf and not node.num_held and not node.is_cleared:
            del self._roots[node.namespace]

    def _clear_tree(self, root: Node) -> int:
        num_tokens = 0
        for node in list(_nodes_under(root)):
            num_tokens += node.num_tokens
            if node.num_held or node is root:
                node.is_cleared = True
                continue
            self._policy.withdraw(node)
            self._num_evictable -= node.num_tokens
            self._pool.give_back(node.extents)
            node.detach()
        return num_tokens

    def _tell(self, kind: type[Stored | Evicted | Cleared], namespace: Namespace, num_tokens: int) -> None:
        if self._listener is not None:
            self._listener(kind(namespace, num_tokens, self._clock()))


def _checked(tokens: Tokens) -> Tokens:
    assert tokens.dtype == np.int32, "token ids are int32"
    assert tokens.ndim == 1, "token ids come as one row"
    return tokens


def _count_unleased(found: Walk) -> int:
    """Count the evictable slots that leasing a match would pin."""
    node, num_tokens, num_unleased = found.node, found.num_within, 0
    while not node.num_held and node.parent is not None:
        num_unleased += num_tokens
        node = node.parent
        num_tokens = node.num_tokens
    return num_unleased


def _may_absorb(above: Node, node: Node) -> bool:
    return len(above.children) == 1 and node.is_leaf and above.num_tokens + node.num_tokens <= MERGE_LIMIT


def _root_of(node: Node) -> Node:
    while node.parent is not None:
        node = node.parent
    return node


def _nodes_under(root: Node) -> Iterator[Node]:
    """Go through a tree, parents first."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children.values())
        yield node


def _mark(owners: np.ndarray[tuple[int], np.dtype[np.int64]], extents: tuple[Extent, ...]) -> None:
    for extent in extents:
        owners[extent.start : extent.stop] += 1
