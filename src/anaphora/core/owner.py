"""Owners: whose a cached token is, how much of the pool each is entitled to, and what of it may go.

An owner is a tenant with a quota, or one of two that stand for the rest: everybody without a quota, and what the
operator shared. A quota is a share of the pool that others can't take away; what is free may be borrowed beyond it.

    pool    |== red's quota ==|== blue's quota ==|== what is shared, and everybody else ==|
    used    |RRRRRRRRRRRRRRRRRRRRR|BBBB|..free..|SSS|EEEEEEEEEEEEEEEE|
                               red has borrowed: what it uses least goes first when somebody needs room
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from anaphora.core.evictable import Policy


@dataclass(frozen=True, slots=True)
class Quotas:
    """Slots that tenants are entitled to. A tenant without one competes for what the others' quotas leave."""

    by_tenant: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    default: int | None = None  # of each tenant that is not named; None: none

    def of(self, tenant: str) -> int | None:
        """A tenant's quota. None if it has none."""
        return self.by_tenant.get(tenant, self.default)


class Rank:
    """Nodes of one owner and one priority that nobody leases, in the order of a policy."""

    __slots__ = ("num_evictable", "owner", "policy")

    def __init__(self, owner: "Owner", policy: Policy) -> None:
        self.owner = owner
        self.policy = policy
        self.num_evictable = 0  # slots; those of promised nodes are not among them


class Owner:
    """One tenant's part of the pool. Owners are compared by identity."""

    __slots__ = ("name", "num_evictable", "num_kept", "num_owned", "num_running", "quota", "ranks")

    def __init__(self, name: str, quota: int) -> None:
        self.name = name
        self.quota = quota
        self.num_owned = 0  # slots, cached or private to a lease
        self.num_evictable = 0
        self.num_kept = 0  # slots of kept nodes
        self.num_running = 0  # open leases that asked for private slots
        self.ranks: dict[int, Rank] = {}  # priority -> nodes, lowest first

    @property
    def num_borrowed(self) -> int:
        """Evictable slots beyond the quota: what others may take."""
        return min(self.num_evictable, max(0, self.num_owned - self.quota))

    def add_rank(self, priority: int, policy: Policy) -> Rank:
        """Make a place for nodes of a priority that were not met before."""
        assert priority not in self.ranks
        rank = Rank(self, policy)
        self.ranks = dict(sorted([*self.ranks.items(), (priority, rank)]))
        return rank


class Owners:
    """All owners, and which of them have borrowed.

    Cost: O(1) for each method; `first_to_lose` compares those who have borrowed.
    """

    def __init__(self, num_slots: int, quotas: Quotas) -> None:
        self._quotas = quotas
        self._tenants: dict[str, Owner] = {}
        self._num_unnamed = num_slots - sum(quotas.by_tenant.values())
        self.rest = Owner("", max(0, self._num_unnamed))
        self.shared = Owner("shared", num_slots)  # never over its quota: goes last
        self.num_borrowed = 0  # of all owners
        self._borrowers: dict[Owner, int] = {}

    def of(self, tenant: str) -> Owner:
        """The owner that a tenant's tokens belong to."""
        quota = self._quotas.of(tenant)
        if quota is None:
            return self.rest
        if tenant not in self._tenants:
            self._tenants[tenant] = Owner(tenant, quota)
        return self._tenants[tenant]

    def all(self) -> tuple[Owner, ...]:
        """Every owner, the one of what is shared last."""
        return (self.rest, *self._tenants.values(), self.shared)

    def changed(self, owner: Owner) -> None:
        """Note that an owner's counts have changed."""
        if owner is self.shared:
            self.rest.quota = max(0, self._num_unnamed - owner.num_owned)
            self._follow(self.rest)
        if owner.num_owned > owner.quota or owner in self._borrowers:
            self._follow(owner)

    def first_to_lose(self, asker: Owner, num_wanted: int) -> tuple[Owner, int] | None:
        """Whose slots go first when `asker` wants so many, and how many of them may go. None: nobody has borrowed.

        The one that is furthest beyond its quota, the asker with what it wants included. Others lose what they
        borrowed and no more.
        """
        best: tuple[Owner, int] | None = None
        farthest = 0
        if asker.num_evictable and (excess := asker.num_owned + num_wanted - asker.quota) > 0:
            best, farthest = (asker, asker.num_evictable), excess
        for owner in self._borrowers:
            if owner is not asker and (excess := owner.num_owned - owner.quota) > farthest:
                best, farthest = (owner, owner.num_borrowed), excess
        return best

    def any_to_lose(self) -> Owner:
        """Whose slots go when nobody has borrowed: who is nearest to its quota; what is shared last.

        Cost: O(owners).
        """
        able = [owner for owner in self.all() if owner.num_evictable]
        others = [owner for owner in able if owner is not self.shared]
        assert able, "nobody has anything evictable"
        return max(others, key=lambda owner: owner.num_owned - owner.quota) if others else self.shared

    def _follow(self, owner: Owner) -> None:
        num_before, num_now = self._borrowers.get(owner, 0), owner.num_borrowed
        if num_now == num_before:
            return
        self.num_borrowed += num_now - num_before
        if num_now:
            self._borrowers[owner] = num_now
        else:
            del self._borrowers[owner]
