"""The front door of the cache: peek, acquire, publish, release. Pure: no I/O, and time is passed in.

One thread owns a cache and calls it; nothing here is locked.

A slot is always in one of four states, and its owner is never in doubt:

    free        in the pool
    evictable   owned by an index node that nobody leases
    retained    the same, but promised to stay for a while, or pinned
    leased      owned by a leased index node, or private to one lease

    one lease:   token  0 .......... num_published .......... num_slots
                        |  index nodes, pinned  |  private slots  |
                         readable by anyone      readable by the holder

`publish` moves the border to the right. A slot goes from a lease to the index once, and from there only to
the pool.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

import numpy as np

from anaphora.core.default_policy import DEFAULT_POLICY
from anaphora.core.events import Cleared, Event, Evicted, Stored
from anaphora.core.evictable import Priority
from anaphora.core.eviction import Eviction
from anaphora.core.extent import Extent, count_slots, cut
from anaphora.core.forest import Forest
from anaphora.core.index import Node, Tokens, Walk, check_node, extents_up_to, place_in, walk
from anaphora.core.lease import Counts, Lease, Match, Refusal
from anaphora.core.namespace import Namespace
from anaphora.core.owner import Owner, Owners, Quotas
from anaphora.core.policy import POLICIES, Policy
from anaphora.core.pool import Pool
from anaphora.core.retention import Retention

SLACK = 32
"""Up to one slot in so many is freed beyond need, to keep free runs long. In `extents_per_lease` of the benchmark
`python -m anaphora.bench.core_index` (a full pool, conversations of 4,000 tokens) a lease ends with 72 extents without
it and 15 with it."""

EVICT_STEP = 256
"""Tokens evicted in one go while slots are freed for a long run: about the length of a turn of a conversation."""

RETENTION = 4
"""One slot in so many may be promised, unless told otherwise."""

MERGE_LIMIT = 2048
"""Nodes used together are joined when released if they have at most this many tokens together: an 8 KB copy,
about a microsecond, so that joining a path of any length stays cheap."""


class Cache(Protocol):
    """What an engine asks of a cache. Variants: `PrefixCache`, and `NoReuse` to do without."""

    def peek(self, namespace: Namespace, tokens: Tokens) -> Match:
        """Look up the longest cached prefix. Changes nothing."""

    def register(self, namespace: Namespace, tenant: str, *, shared: Namespace | None = None) -> None:
        """Say whose a namespace is, and where the regions lie that it shares with others."""

    def share(self, shared: Namespace, tokens: Tokens) -> None:
        """Declare a prefix shared among the namespaces registered with `shared`."""

    def acquire(
        self,
        namespace: Namespace,
        tokens: Tokens,
        *,
        max_reuse: int,
        num_private: int,
        priority: Priority = Priority.NORMAL,
    ) -> Lease | Refusal:
        """Pin the longest cached prefix, at most `max_reuse` tokens, with `num_private` fresh slots behind
        it."""

    def grow(self, lease: Lease, num_tokens: int) -> Refusal | None:
        """Add private slots to the end of a lease."""

    def publish(self, lease: Lease, tokens: Tokens, num_computed: int) -> int:
        """Announce that keys and values of `tokens[:num_computed]` stand in the lease's slots."""

    def keep(self, lease: Lease, num_tokens: int, *, lifetime_s: float) -> Refusal | None:
        """Promise that a lease's first published tokens stay for a while after they were last read."""

    def pin(self, lease: Lease, num_tokens: int) -> Refusal | None:
        """Promise that a lease's first published tokens stay until they are unpinned."""

    def unpin(self, namespace: Namespace, tokens: Tokens) -> int:
        """Take a pin back."""

    def release(self, lease: Lease) -> None:
        """Give a lease back."""

    def clear(self, namespace: Namespace | None) -> int:
        """Forget what is cached in a namespace, or in all."""

    def counts(self) -> Counts:
        """Count slots by state."""

    def check(self) -> None:
        """Assert every invariant."""


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """How the pool is divided, in slots."""

    num_slack: int | None = None
    """May be freed beyond need to keep free runs long. None: a 32nd of the pool. 0 where no keys or values are behind
    the slots."""
    num_retainable: int | None = None  # may be promised or pinned; None: a quarter of the pool
    quotas: Quotas = field(default_factory=Quotas)


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
        policy: Callable[[], Policy] = POLICIES[DEFAULT_POLICY],
        clock: Callable[[], float],
        listener: Callable[[Event], None] | None = None,
        limits: CacheLimits = CacheLimits(),
    ) -> None:
        """Build an empty cache. `policy` makes an order of eviction; each quota and priority has its own."""
        self._pool = Pool(num_slots)
        self._num_slack = num_slots // SLACK if limits.num_slack is None else limits.num_slack
        self._clock = clock
        self._listener = listener
        self._owners = Owners(num_slots, limits.quotas)
        self._owner_of_space: dict[Namespace, Owner] = {}
        self._unleased = Eviction(self._owners, make_policy=policy, owner_of=self._owner_of)
        budget = num_slots // RETENTION if limits.num_retainable is None else limits.num_retainable
        self._retention = Retention(budget, unleased=self._unleased, owner_of=self._owner_of)
        self._forest = Forest()
        self._leases: set[Lease] = set()

    def register(self, namespace: Namespace, tenant: str, *, shared: Namespace | None = None) -> None:
        """Say whose a namespace is, for quotas, and where the regions lie that it shares with others.

        Who never says so has no quota and shares nothing. What is said again must be the same.
        """
        owner = self._owners.of(tenant)
        assert self._owner_of_space.setdefault(namespace, owner) is owner, "a namespace has one tenant"
        if shared is not None:
            self._forest.connect(namespace, shared)
            self._owner_of_space.setdefault(shared, self._owners.shared)

    def share(self, shared: Namespace, tokens: Tokens) -> None:
        """Declare a prefix shared among the namespaces registered with `shared`. What follows it is shared by none.

        Leases that are open stay as they are.
        """
        self._forest.share(shared, _checked(tokens))

    def peek(self, namespace: Namespace, tokens: Tokens) -> Match:
        """Look up the longest cached prefix. Changes nothing, not even recency.

        Cost: one vectorised comparison of the tokens, O(1) for each node on the path.
        """
        found = self._forest.find(namespace, _checked(tokens), self._forest.num_shared(namespace, tokens))
        if found is None:
            return Match(0, (), diverged=False)
        return Match(found.num_tokens, extents_up_to(found.node, found.num_within), found.has_diverged)

    def acquire(
        self,
        namespace: Namespace,
        tokens: Tokens,
        *,
        max_reuse: int,
        num_private: int,
        priority: Priority = Priority.NORMAL,
    ) -> Lease | Refusal:
        """Pin the longest cached prefix, at most `max_reuse` tokens, with `num_private` fresh slots behind
        it.

        Evicts if it must, never what it has just matched. All or nothing: a refusal changes nothing. With
        `max_reuse=len(tokens)` a prompt that is published whole is leased whole, as its second and further
        answers do. Without private slots it is a hold: what is matched stays until it is released.
        What is reused gets at least `priority`, and each promise read whole starts anew.
        Cost: as `peek`, plus O(1) for each node evicted, plus a copy of the node's tokens if the match ends
        inside it.
        """
        assert max_reuse >= 0
        assert num_private >= 0
        self._expire()
        owner, num_shared = self._owner_of(namespace), self._forest.num_shared(namespace, _checked(tokens))
        found = self._forest.find(namespace, tokens[:max_reuse], num_shared)
        num_reused = 0 if found is None else found.num_tokens
        if refusal := self._refusal_to_lease(owner, found, num_private):
            return refusal
        if found is None:
            node = self._forest.plant(namespace, num_shared)
        else:
            node = self._split_at(found)
        lease = Lease(namespace, num_reused=num_reused, node=node, owner=owner, priority=priority)
        lease.num_shared = num_shared
        lease.is_running = num_private > 0
        owner.num_running += lease.is_running
        self._hold(node)
        self._raise(node, priority)
        self._retention.renew(node, now=self._clock())
        self._leases.add(lease)
        self._take(lease, num_private)
        return lease

    def grow(self, lease: Lease, num_tokens: int) -> Refusal | None:
        """Add private slots to the end of a lease, in place if the slots behind it are free.

        Evicts if it must. A refusal changes nothing. Ask for 64 slots or more at a time where you can: each call that
        can't go on in place starts another extent. A quota does not stop a lease that has begun.
        """
        assert lease in self._leases, "grow of a lease that is not open"
        assert num_tokens >= 0
        self._expire()
        num_available = self._pool.num_free + self._unleased.num_evictable
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
        assert lease.num_published <= num_computed <= min(lease.num_slots, len(tokens))
        _checked(tokens)
        num_written = 0
        for stop in (min(lease.num_shared, num_computed), num_computed):
            if lease.num_published < stop:
                num_written += self._publish(lease, tokens[lease.num_published : stop])
        return num_written

    def keep(self, lease: Lease, num_tokens: int, *, lifetime_s: float) -> Refusal | None:
        """Promise that a lease's first `num_tokens` published tokens stay for `lifetime_s` after they were last read.

        A read is an `acquire` that matches all of them. A promise for the same tokens is only ever prolonged.
        Refused, with nothing promised, where the budget is spent, the tenant's quota is too small for all that it has
        been promised, or the tokens were cleared.
        Cost: O(nodes on the path); a copy of a node's tokens if the promise ends inside it.
        """
        assert lifetime_s > 0
        node = self._node_to_keep(lease, num_tokens)
        if isinstance(node, Refusal):
            return node
        self._retention.keep(node, lifetime_s, now=self._clock())
        return None

    def pin(self, lease: Lease, num_tokens: int) -> Refusal | None:
        """Promise that a lease's first `num_tokens` published tokens stay until they are unpinned. Else as `keep`."""
        node = self._node_to_keep(lease, num_tokens)
        if isinstance(node, Refusal):
            return node
        self._retention.pin(node)
        return None

    def unpin(self, namespace: Namespace, tokens: Tokens) -> int:
        """Take back the pin of exactly these tokens. Returns the number of tokens that nothing keeps any more.

        A lifetime promised for them besides goes on.
        """
        found = self._forest.find(namespace, _checked(tokens), self._forest.num_shared(namespace, tokens))
        if found is None or found.num_tokens < len(tokens) or found.num_within < found.node.num_tokens:
            return 0
        return self._retention.unpin(found.node, now=self._clock())

    def release(self, lease: Lease) -> None:
        """Give a lease back: its private slots become free, its published ones evictable, last tokens first.

        Cost: O(1) for each node that nobody leases any more; small neighbours among them are joined.
        """
        assert lease in self._leases, "released twice"
        assert lease.node is not None
        assert lease.owner is not None
        self._leases.remove(lease)
        lease.is_open = False
        lease.owner.num_running -= lease.is_running
        self._give_back(lease.owner, lease.private)
        released = self._let_go(lease.node)
        used_at = self._clock()
        for node, above in zip_longest(released, released[1:]):
            if node.is_cleared:
                self._drop(node)
            elif above and _may_absorb(above, node):
                above.absorb(node)
            else:
                node.used_at = used_at
                self._unleased.admit(node)

    def clear(self, namespace: Namespace | None) -> int:
        """Forget what is cached in a namespace, or in all (None). Returns the number of tokens forgotten.

        Promises for it end. Leases stay good for their holders, but nobody finds what they publish; their slots are
        freed on release. What is shared is cleared under the name of the shared namespace, with all that hangs from it.
        Cost: O(nodes).
        """
        num_cleared: Counter[Namespace] = Counter()
        for root in self._forest.hide(namespace):
            num_cleared += self._clear_tree(root)
        for name, num_tokens in num_cleared.items():
            self._tell(Cleared, name, num_tokens)
        return num_cleared.total()

    def counts(self) -> Counts:
        """Count slots by state."""
        free, total = self._pool.num_free, self._pool.num_slots
        evictable, retained = self._unleased.num_evictable, self._unleased.num_retained
        return Counts(free, evictable, total - free - evictable - retained, total, retained)

    def check(self) -> None:
        """Assert every invariant. Cost: O(slots)."""
        self._pool.check()
        roots = set(self._forest.roots.values())
        num_leases: dict[Node, int] = {}
        for lease in self._leases:
            lease.check()
            assert lease.node is not None
            num_leases[lease.node] = num_leases.get(lease.node, 0) + 1
            roots.add(_root_of(lease.node))
        owners = np.zeros(self._pool.num_slots, dtype=np.int64)
        unleased: list[Node] = []
        grafts: set[Node] = set()
        owned: Counter[Owner] = Counter()
        kept: Counter[Owner] = Counter()
        for root in roots:
            assert (self._forest.roots.get(root.namespace) is root) == (not root.is_cleared), "a tree got lost"
            assert root.num_held or root.children, "an empty tree was kept"
            for node in _nodes_under(root):
                check_node(node)
                assert node.num_leases == num_leases.get(node, 0), "leases of a node are miscounted"
                if not node.is_root and not node.num_held:
                    unleased.append(node)
                if node.parent is not None and node.is_root:
                    grafts.add(node)
                owned[self._owner_of(node.namespace)] += node.num_tokens
                kept[self._owner_of(node.namespace)] += node.num_tokens if node.num_kept else 0
                _mark(owners, node.extents)
        self._unleased.check(unleased)
        self._forest.check(grafts)
        for lease in self._leases:
            assert lease.owner is not None
            owned[lease.owner] += sum(extent.length for extent in lease.private)
            _mark(owners, lease.private)
        _mark(owners, self._pool.free_extents())
        assert (owners == 1).all(), "a slot has no owner, or two"
        self._check_owners(owned, kept)

    def _check_owners(self, owned: Counter[Owner], kept: Counter[Owner]) -> None:
        running = Counter(lease.owner for lease in self._leases if lease.is_running)
        for owner in self._owners.all():
            assert owner.num_owned == owned[owner], "slots of an owner are miscounted"
            assert owner.num_kept == kept[owner], "kept slots of an owner are miscounted"
            assert owner.num_running == running[owner], "leases of an owner are miscounted"
        borrowed = sum(owner.num_borrowed for owner in self._owners.all())
        assert borrowed == self._owners.num_borrowed, "borrowed slots are miscounted"
        assert kept.total() == self._retention.num_kept <= self._retention.budget, "promises exceed their budget"

    def _owner_of(self, namespace: Namespace) -> Owner:
        return self._owner_of_space.get(namespace, self._owners.rest)

    def _refusal_to_lease(self, owner: Owner, found: Walk | None, num_needed: int) -> Refusal | None:
        """Say why a lease can't be had, if it can't."""
        num_shared, num_own = (0, 0) if found is None else self._count_evictable(found)
        num_free = self._pool.num_free
        num_available = num_free + self._unleased.num_evictable - num_shared - num_own
        num_owned = 0 if found is None else found.num_tokens
        if refusal := self._refusal(num_needed, num_available, num_owned=num_owned):
            return refusal
        if owner.num_running and owner.num_owned + num_needed > owner.quota:
            num_lent = self._owners.num_borrowed - owner.num_borrowed
            num_available = num_free + num_lent + owner.num_evictable - num_own
            if num_needed > num_available:
                return Refusal("quota_full", num_needed, num_available)
        return None

    def _refusal(self, num_needed: int, num_available: int, *, num_owned: int) -> Refusal | None:
        if num_owned + num_needed > self._pool.num_slots:
            return Refusal("larger_than_pool", num_needed, num_available)
        if num_needed > num_available:
            return Refusal("pool_full", num_needed, num_available)
        return None

    def _count_evictable(self, found: Walk) -> tuple[int, int]:
        """Count the evictable slots that leasing a match would pin: shared ones, and the tenant's own."""
        node, num_tokens, num_all, num_own = found.node, found.num_within, 0, 0
        own = node.namespace  # below a region the tenant's; in one the region's own
        while not node.num_held and not node.num_kept and node.parent is not None:
            num_all += num_tokens
            num_own += num_tokens if node.namespace is own else 0
            node = node.parent
            num_tokens = node.num_tokens
        if self._owner_of(own) is self._owners.shared:
            num_own = 0
        return num_all - num_own, num_own

    def _take(self, lease: Lease, num_slots: int) -> None:
        """Give a lease private slots, evicting until there are enough and, within limits, until they lie together."""
        pool, owner = self._pool, lease.owner
        assert owner is not None
        while (num_missing := num_slots - pool.num_free) > 0:
            victim, most = self._unleased.choose(owner, num_slots)
            self._evict(victim, min(num_missing, most), asker=lease.namespace)
        num_wanted = num_slots + self._num_slack
        while not pool.has_run(num_slots) and (num_missing := num_wanted - pool.num_free) > 0:
            spare = self._unleased.choose_spare(owner, num_slots)
            if spare is None:
                break
            self._evict(spare[0], min(num_missing, spare[1], EVICT_STEP), asker=lease.namespace)
        lease.add_private(pool.take(num_slots, after=lease.end))
        self._own(owner, num_slots)

    def _evict(self, victim: Node, num_missing: int, *, asker: Namespace) -> None:
        """Evict a node, or only its last `num_missing` tokens if it has more."""
        assert victim.is_leaf, "the policy chose a node that others hang from"
        assert not victim.num_held, "the policy chose a leased node"
        num_evicted = min(num_missing, victim.num_tokens)
        place = 0 if self._listener is None else place_in(victim, victim.num_tokens - num_evicted)
        if num_evicted < victim.num_tokens:
            self._unleased.shrink(victim, num_evicted)
            self._give_back(self._owner_of(victim.namespace), victim.trim(num_evicted))
        else:
            self._unleased.withdraw(victim)
            parent = victim.parent
            assert parent is not None
            self._drop(victim)
            self._drop_if_empty(parent)
        if self._listener is not None:
            self._listener(Evicted(victim.namespace, num_evicted, self._clock(), place, asker))

    def _publish(self, lease: Lease, fresh: Tokens) -> int:
        """Announce a lease's next tokens, all shared or none. Returns the number newly written."""
        num_published = lease.num_published + len(fresh)
        assert lease.node is not None
        if lease.num_shared <= lease.num_published and lease.node.namespace != lease.namespace:
            self._enter_graft(lease)
        found = walk(lease.node, fresh)
        if found.num_tokens:
            self._adopt(lease, found)
        fresh = fresh[found.num_tokens :]
        if fresh.size:
            self._append(lease, fresh)
        lease.num_published = num_published
        if not fresh.size or lease.node.is_cleared:
            return 0
        self._tell(Stored, lease.node.namespace, fresh.size)
        return fresh.size

    def _enter_graft(self, lease: Lease) -> None:
        """Let a lease that stands at the end of a shared region go on in the tree of its own namespace."""
        above = lease.node
        assert above is not None
        graft = above.grafts.get(lease.namespace)
        if graft is None:
            graft = self._forest.graft(lease.namespace, above)
            graft.num_leases = graft.num_held = 1
            above.num_leases -= 1
        else:
            self._hold(graft)
            self._let_go(above)
            self._raise(graft, lease.priority)
        lease.node = graft

    def _adopt(self, lease: Lease, found: Walk) -> None:
        """Let a lease use the index's slots for tokens that others published, and free its own copies."""
        node = self._split_at(found)
        assert lease.node is not None
        assert lease.owner is not None
        self._hold(node)
        released = self._let_go(lease.node)
        assert not released, "what was adopted does not hang below the lease's node"
        self._raise(node, lease.priority)
        lease.node = node
        duplicates, lease.private = cut(lease.private, found.num_tokens)
        self._give_back(lease.owner, duplicates)
        lease.has_moved()

    def _append(self, lease: Lease, tokens: Tokens) -> None:
        """Move a lease's next private slots into the index, under tokens that it does not have yet."""
        node = lease.node
        assert node is not None
        assert lease.owner is not None
        extents, lease.private = cut(lease.private, len(tokens))
        self._own(lease.owner, -len(tokens))
        self._own(self._owner_of(node.namespace), len(tokens))
        if _ends_here_alone(node) and node.priority == lease.priority:
            node.extend(tokens, extents)
            return
        lease.node = Node(node.namespace, node, tokens, extents)
        lease.node.priority = lease.priority
        lease.node.num_leases = lease.node.num_held = 1
        node.num_leases -= 1  # num_held stays: what was held by the lease is held by the child now

    def _split_at(self, found: Walk) -> Node:
        """Get the node that ends exactly where a walk ended."""
        tail = found.node
        if found.num_within == tail.num_tokens:
            return tail
        head = tail.split(found.num_within)
        if not tail.num_held:
            self._unleased.split(head, tail)
        return head

    def _hold(self, node: Node) -> None:
        """Lease a node. What was evictable or retained on its path is not any more."""
        node.num_leases += 1
        node.num_held += 1
        while node.num_held == 1 and node.parent is not None:
            self._unleased.withdraw(node)
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

    @staticmethod
    def _raise(node: Node, priority: int) -> None:
        """Give a leased node and those above it at least a priority."""
        while node.parent is not None and node.priority < priority:
            node.priority = priority
            node = node.parent

    def _expire(self) -> None:
        self._retention.expire(self._clock())

    def _node_to_keep(self, lease: Lease, num_tokens: int) -> Node | Refusal:
        """Get the node that ends with a lease's first tokens, or say why it can't be kept."""
        assert lease in self._leases, "a promise for a lease that is not open"
        assert 0 < num_tokens <= lease.num_published
        assert lease.node is not None
        self._expire()
        node, stop = lease.node, lease.num_published
        while stop - node.num_tokens >= num_tokens:
            assert node.parent is not None
            node, stop = node.parent, stop - node.num_tokens
        num_within = num_tokens - (stop - node.num_tokens)
        refusal = self._retention.refusal(node, num_within)
        return refusal or self._split_at(Walk(node, num_within, num_tokens, has_diverged=False))

    def _own(self, owner: Owner, num_slots: int) -> None:
        owner.num_owned += num_slots
        self._owners.changed(owner)

    def _give_back(self, owner: Owner, extents: tuple[Extent, ...]) -> None:
        self._pool.give_back(extents)
        self._own(owner, -count_slots(extents))

    def _drop(self, node: Node) -> None:
        """Take a node out of the tree and free its slots."""
        self._forest.remove(node)
        self._give_back(self._owner_of(node.namespace), node.extents)

    def _drop_if_empty(self, node: Node) -> None:
        if not node.is_root or not node.is_leaf or node.num_held or node.is_cleared:
            return
        self._forest.remove(node)

    def _clear_tree(self, root: Node) -> Counter[Namespace]:
        """Forget a tree, or a graft. Returns the number of tokens by namespace."""
        num_cleared: Counter[Namespace] = Counter()
        nodes = [node for node in _nodes_under(root) if not node.is_cleared]
        for node in nodes:
            self._retention.end(node)
        for node in reversed(nodes):  # from the leaves up
            num_cleared[node.namespace] += node.num_tokens
            if node.num_held or node.parent is None:
                node.mark_cleared()
            else:
                self._unleased.withdraw(node)
                self._drop(node)
        return num_cleared

    def _tell(self, kind: type[Stored | Cleared], namespace: Namespace, num_tokens: int) -> None:
        if self._listener is not None:
            self._listener(kind(namespace, num_tokens, self._clock()))


def _checked(tokens: Tokens) -> Tokens:
    assert tokens.dtype == np.int32, "token ids are int32"
    assert tokens.ndim == 1, "token ids come as one row"
    return tokens


def _ends_here_alone(node: Node) -> bool:
    """Whether a leased node can be extended in place: nothing but one lease ends with it."""
    return not node.is_root and node.is_leaf and node.num_leases == 1 and node.promise is None


def _may_absorb(above: Node, node: Node) -> bool:
    return (
        node.is_leaf
        and len(above.children) == 1
        and not above.grafts
        and not above.num_kept
        and not above.is_root
        and above.priority == node.priority
        and above.num_tokens + node.num_tokens <= MERGE_LIMIT
    )


def _root_of(node: Node) -> Node:
    while node.parent is not None:
        node = node.parent
    return node


def _nodes_under(root: Node) -> Iterator[Node]:
    """Go through a tree, parents first."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.below)
        yield node


def _mark(owners: np.ndarray[tuple[int], np.dtype[np.int64]], extents: tuple[Extent, ...]) -> None:
    for extent in extents:
        owners[extent.start : extent.stop] += 1
