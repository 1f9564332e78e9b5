"""What nobody leases: in which order it goes, and what of it has to stay for now.

    leased --release--> unleased, in its policy --chosen--> gone
                               |            ^
          chosen, but promised |            | the promise has lapsed
                               v            |
                              aside --------+

A promised node stays in its policy, which thus sees every use. Only when it is chosen it is set aside, so each use of
it costs one such detour at most, and no eviction looks at promised nodes again and again. Grafts have no tokens to
evict and go with the last node below them: they are never held here.
"""

from collections.abc import Callable, Iterable

from anaphora.core.evictable import Policy, Readmits
from anaphora.core.index import Node
from anaphora.core.namespace import Namespace
from anaphora.core.owner import Owner, Owners, Rank


class Eviction:
    """Nodes that nobody leases, by owner, priority and policy. Cost: that of the policy, amortised."""

    def __init__(
        self, owners: Owners, *, make_policy: Callable[[], Policy], owner_of: Callable[[Namespace], Owner]
    ) -> None:
        self.num_evictable = 0  # slots
        self.num_retained = 0  # slots of kept nodes that nobody leases
        self._owners = owners
        self._make_policy = make_policy
        self._owner_of = owner_of
        self._aside: set[Node] = set()

    def admit(self, node: Node) -> None:
        """Take in a node that nobody leases any more. Those of one path come leaf first."""
        if node.is_root:
            return
        rank = self._rank_of(node)
        rank.policy.admit(node)
        self._count(node, rank, node.num_tokens)

    def withdraw(self, node: Node) -> None:
        """Take out a node that is leased again, or gone."""
        if node.is_root:
            return
        rank = self._rank_of(node)
        if self._aside and node in self._aside:
            self._aside.remove(node)
        else:
            rank.policy.withdraw(node)
        self._count(node, rank, -node.num_tokens)

    def split(self, head: Node, tail: Node) -> None:
        """Take in the new front part of a node that is held here."""
        if tail in self._aside:
            self._aside.add(head)
        else:
            self._rank_of(tail).policy.split(head, tail)

    def shrink(self, node: Node, num_tokens: int) -> None:
        """Note that a node has lost tokens off its end."""
        self._count(node, self._rank_of(node), -num_tokens)

    def lapse(self, nodes: Iterable[Node]) -> None:
        """Make nodes evictable that are not kept any more, leaf first."""
        for node in nodes:
            if node.is_root:
                continue
            rank = self._rank_of(node)
            self.num_retained -= node.num_tokens
            self._count(node, rank, node.num_tokens)
            if node in self._aside:
                self._aside.remove(node)
                if isinstance(rank.policy, Readmits):
                    rank.policy.readmit(node)
                else:
                    rank.policy.admit(node)

    def choose(self, asker: Owner, num_wanted: int) -> tuple[Node, int]:
        """Name the next victim for an owner that wants so many slots, and how many of its tokens may go.

        From whoever is furthest beyond its quota; lowest priority first; then as the policy says.
        """
        owner, most = self._owners.first_to_lose(asker, num_wanted) or (self._owners.any_to_lose(), self.num_evictable)
        return self._first_of(owner), most

    def choose_spare(self, asker: Owner, num_wanted: int) -> tuple[Node, int] | None:
        """Name a victim whose slots are not needed: of those who have borrowed, or the asker's own."""
        found = self._owners.first_to_lose(asker, num_wanted)
        if found is None and asker.num_evictable:
            found = asker, asker.num_evictable
        return None if found is None else (self._first_of(found[0]), found[1])

    def check(self, unleased: Iterable[Node]) -> None:
        """Assert that it holds these nodes, each where it belongs, and counts them right."""
        counts: dict[Owner | Rank, int] = {}
        sizes: dict[Rank, int] = {}
        num_retained = num_aside = 0
        for node in unleased:
            rank, owner = self._rank_of(node), self._owner_of(node.namespace)
            sizes.setdefault(rank, 0)
            if node in self._aside:
                assert node.num_kept, "a node that may go was set aside"
                num_aside += 1
            else:
                assert node in rank.policy, "the policy does not hold an unleased node"
                sizes[rank] += 1
            if node.num_kept:
                num_retained += node.num_tokens
            else:
                for counted in (owner, rank):
                    counts[counted] = counts.get(counted, 0) + node.num_tokens
        assert num_aside == len(self._aside), "a node that is gone is set aside"
        assert num_retained == self.num_retained, "retained slots are miscounted"
        for owner in self._owners.all():
            assert counts.get(owner, 0) == owner.num_evictable, "evictable slots of an owner are miscounted"
            assert list(owner.ranks) == sorted(owner.ranks), "priorities are out of order"
            for rank in owner.ranks.values():
                assert counts.get(rank, 0) == rank.num_evictable, "evictable slots of a priority are miscounted"
                assert len(rank.policy) == sizes.get(rank, 0), "the policy holds a node that is leased or gone"
        assert self.num_evictable == sum(owner.num_evictable for owner in self._owners.all())

    def _first_of(self, owner: Owner) -> Node:
        rank = next(rank for rank in owner.ranks.values() if rank.num_evictable)
        while True:
            victim = rank.policy.choose()
            assert isinstance(victim, Node), "the policy made a node up"
            if not victim.num_kept:
                return victim
            rank.policy.withdraw(victim)
            self._aside.add(victim)

    def _rank_of(self, node: Node) -> Rank:
        owner = self._owner_of(node.namespace)
        return owner.ranks.get(node.priority) or owner.add_rank(node.priority, self._make_policy())

    def _count(self, node: Node, rank: Rank, num_tokens: int) -> None:
        if node.num_kept:
            self.num_retained += num_tokens
            return
        owner = rank.owner
        self.num_evictable += num_tokens
        rank.num_evictable += num_tokens
        owner.num_evictable += num_tokens
        if owner.num_owned > owner.quota:
            self._owners.changed(owner)
