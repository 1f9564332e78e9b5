"""No cache, as a variant of the cache: the same door, and nothing is kept or reused."""

from collections.abc import Callable

from anaphora.core.events import Event
from anaphora.core.evictable import Priority
from anaphora.core.index import Tokens
from anaphora.core.lease import Counts, Lease, Match, Refusal
from anaphora.core.namespace import Namespace
from anaphora.core.policy import Policy
from anaphora.core.pool import Pool


class NoReuse:
    """Hand out private slots and forget them on release. Nothing is ever published or evictable."""

    def __init__(
        self,
        num_slots: int,
        *,
        policy: Callable[[], Policy] | None = None,
        clock: Callable[[], float] | None = None,
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        """Build it with the arguments of `PrefixCache`; all but `num_slots` have no effect."""
        self._pool = Pool(num_slots)
        self._leases: set[Lease] = set()

    def peek(self, namespace: Namespace, tokens: Tokens) -> Match:
        """Find nothing."""
        return Match(0, (), diverged=False)

    def register(self, namespace: Namespace, tenant: str, *, shared: Namespace | None = None) -> None:
        """Forget it: whose what is makes no difference."""

    def share(self, shared: Namespace, tokens: Tokens) -> None:
        """Forget it: nothing is shared."""

    def acquire(
        self,
        namespace: Namespace,
        tokens: Tokens,
        *,
        max_reuse: int,
        num_private: int,
        priority: Priority = Priority.NORMAL,
    ) -> Lease | Refusal:
        """Take `num_private` fresh slots. A refusal changes nothing."""
        assert max_reuse >= 0
        assert num_private >= 0
        lease = Lease(namespace, num_reused=0, node=None)
        if refusal := self._take(lease, num_private):
            return refusal
        self._leases.add(lease)
        return lease

    def grow(self, lease: Lease, num_tokens: int) -> Refusal | None:
        """Add private slots to the end of a lease. A refusal changes nothing."""
        assert lease in self._leases, "grow of a lease that is not open"
        assert num_tokens >= 0
        return self._take(lease, num_tokens)

    def publish(self, lease: Lease, tokens: Tokens, num_computed: int) -> int:
        """Keep nothing. `lease.num_published` stays 0."""
        assert lease in self._leases, "publish on a lease that is not open"
        assert 0 <= num_computed <= min(lease.num_slots, len(tokens))
        return 0

    def keep(self, lease: Lease, num_tokens: int, *, lifetime_s: float) -> Refusal:
        """Promise nothing."""
        return Refusal("retention_full", num_tokens, 0)

    def pin(self, lease: Lease, num_tokens: int) -> Refusal:
        """Promise nothing."""
        return Refusal("retention_full", num_tokens, 0)

    def unpin(self, namespace: Namespace, tokens: Tokens) -> int:
        """Find no pin."""
        return 0

    def release(self, lease: Lease) -> None:
        """Free a lease's slots."""
        assert lease in self._leases, "released twice"
        self._leases.remove(lease)
        lease.is_open = False
        self._pool.give_back(lease.private)

    def clear(self, namespace: Namespace | None) -> int:
        """Forget nothing: there is nothing."""
        return 0

    def counts(self) -> Counts:
        """Count slots by state."""
        free, total = self._pool.num_free, self._pool.num_slots
        return Counts(free, 0, total - free, total)

    def check(self) -> None:
        """Assert every invariant. Cost: O(extents)."""
        self._pool.check()
        extents = [extent for lease in self._leases for extent in lease.private]
        extents = sorted([*extents, *self._pool.free_extents()], key=lambda extent: extent.start)
        stop = 0
        for extent in extents:
            assert extent.start == stop, "a slot has no owner, or two"
            stop = extent.stop
        assert stop == self._pool.num_slots, "a slot has no owner"
        for lease in self._leases:
            lease.check()

    def _take(self, lease: Lease, num_slots: int) -> Refusal | None:
        num_available = self._pool.num_free
        if lease.num_slots + num_slots > self._pool.num_slots:
            return Refusal("larger_than_pool", num_slots, num_available)
        if num_slots > num_available:
            return Refusal("pool_full", num_slots, num_available)
        lease.add_private(self._pool.take(num_slots, after=lease.end))
        return None
