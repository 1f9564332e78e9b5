"""The cache with everything at once, against a plain model: tenants, a shared region, promises, pins, priorities, time.

The model keeps one entry for each cached prefix. After every operation it is compared with the cache: what is cached
(prefix by prefix), all counts, every refusal. Which tokens were evicted is seen from outside; the model says whether
they were allowed to go. Tokens are 0 and 1 and prompts short, so that prompts share, diverge and collide all the time.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from anaphora.core.cache import CacheLimits, PrefixCache
from anaphora.core.evictable import Priority
from anaphora.core.lease import Counts, Lease, Refusal
from anaphora.core.namespace import Namespace
from anaphora.core.owner import Quotas
from anaphora.core.policy import POLICIES
from anaphora.testing.honest_memory import slots_of

NUM_SLOTS = 24
BUDGET = 9
QUOTAS = {"red": 6, "blue": 8}
COMMON = Namespace(b"c" * 32)
SPACES = {Namespace(letter * 32): name for letter, name in ((b"r", "red"), (b"R", "red"), (b"b", "blue"), (b"g", ""))}
REGIONS = ((0, 1, 1), (0, 1, 1, 0))

Key = tuple[Namespace, tuple[int, ...], tuple[int, ...]]
"""Namespace, epochs, prefix. Epochs say how often the tree was cleared before: of a tree of its own one number; below a
region the region's length, the tenant's number, the region's number."""


@dataclass(eq=False)
class Running:
    """A lease and what its holder knows."""

    lease: Lease
    space: Namespace
    tokens: list[int]
    keys: list[Key]  # of all tokens that it may publish, as they were named when it began
    num_computed: int
    num_private: int  # asked for at first
    priority: Priority
    epoch: int  # of its namespace when it began

    @property
    def array(self) -> np.ndarray:
        return np.array(self.tokens, dtype=np.int32)


class Memory:
    """Every slot remembers the whole prefix it was written for, and whose that is."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[Namespace, tuple[int, ...]]] = {}

    def compute(self, one: Running, stop: int) -> None:
        """Write what is not computed yet, reading all that comes before."""
        self.read(one)
        for place in range(one.num_computed, stop):
            self._written[slots_of(one.lease.extents)[place]] = self._expected(one, place)
        one.num_computed = max(one.num_computed, stop)

    def read(self, one: Running) -> None:
        """Assert that a lease's slots hold its own tokens, or its region's."""
        slots = slots_of(one.lease.extents)
        for place in range(one.num_computed):
            assert self._written.get(slots[place]) == self._expected(one, place), "a lease reads what is not its own"

    @staticmethod
    def _expected(one: Running, place: int) -> tuple[Namespace, tuple[int, ...]]:
        return (COMMON if place < one.lease.num_shared else one.space, tuple(one.tokens[: place + 1]))


@dataclass
class Promised:
    """What was promised for exactly one prefix."""

    until: float = float("-inf")
    lifetime_s: float = 0.0
    is_pinned: bool = False


@dataclass
class Model:
    """What is cached, one entry for each prefix: slow and plain."""

    cached: dict[Key, Priority] = field(default_factory=dict)
    num_pins: Counter[Key] = field(default_factory=Counter)
    promised: dict[Key, Promised] = field(default_factory=dict)
    num_cleared: Counter[Namespace] = field(default_factory=Counter)
    running: list[Running] = field(default_factory=list)
    now: float = 0.0

    def key(self, space: Namespace, tokens: Iterable[int], num_shared: int) -> Key:
        prefix = tuple(tokens)
        if not num_shared:
            return (space, (self.num_cleared[space],), prefix)
        common = (self.num_cleared[COMMON],)
        if len(prefix) <= num_shared:
            return (COMMON, common, prefix)
        return (space, (num_shared, self.num_cleared[space], *common), prefix)

    def keys(self, space: Namespace, tokens: list[int]) -> list[Key]:
        num_shared = num_shared_of(tokens)
        return [self.key(space, tokens[: stop + 1], num_shared) for stop in range(len(tokens))]

    def matched(self, keys: list[Key]) -> list[Key]:
        return keys[: next((i for i, key in enumerate(keys) if key not in self.cached), len(keys))]

    @property
    def kept(self) -> set[Key]:
        """Every prefix of what is promised now."""
        return {
            key
            for end, promise in self.promised.items()
            if promise.is_pinned or promise.until > self.now
            for key in self.path(end)
        }

    def path(self, end: Key) -> list[Key]:
        """The keys of all prefixes of a key that is cached."""
        space, epochs, prefix = end
        num_shared = epochs[0] if len(epochs) == 3 else 0
        if space == COMMON:
            num_shared = len(prefix)
        return [
            (COMMON, epochs[-1:], prefix[:stop]) if stop <= num_shared else (space, epochs, prefix[:stop])
            for stop in range(1, len(prefix) + 1)
        ]

    @property
    def evictable(self) -> set[Key]:
        kept = self.kept
        return {key for key in self.cached if not self.num_pins[key] and key not in kept}

    def num_private(self, one: Running) -> int:
        return one.lease.num_slots - one.lease.num_published

    @property
    def counts(self) -> Counts:
        private = sum(map(self.num_private, self.running))
        leased = sum(1 for key in self.cached if self.num_pins[key]) + private
        evictable = len(self.evictable)
        retained = len(self.cached) + private - leased - evictable
        return Counts(NUM_SLOTS - len(self.cached) - private, evictable, leased, NUM_SLOTS, retained)

    def owner(self, space: Namespace) -> str:
        return "shared" if space == COMMON else SPACES[space]

    def owned(self) -> Counter[str]:
        owned = Counter(self.owner(key[0]) for key in self.cached)
        for one in self.running:
            owned[self.owner(one.space)] += self.num_private(one)
        return owned

    def quota(self, owner: str) -> int:
        if owner == "shared":
            return NUM_SLOTS
        return QUOTAS.get(owner, max(0, NUM_SLOTS - sum(QUOTAS.values()) - self.owned()["shared"]))

    def is_alive(self, key: Key) -> bool:
        """Whether its tree was not cleared."""
        space, epochs, _ = key
        if len(epochs) == 3:
            return epochs[1:] == (self.num_cleared[space], self.num_cleared[COMMON])
        return epochs == (self.num_cleared[space],)

    def refusal(self, space: Namespace, matched: list[Key], num_needed: int) -> Refusal | None:
        """What `acquire` has to answer."""
        free, evictable = self.counts.free, self.evictable - set(matched)
        if len(matched) + num_needed > NUM_SLOTS:
            return Refusal("larger_than_pool", num_needed, free + len(evictable))
        if num_needed > free + len(evictable):
            return Refusal("pool_full", num_needed, free + len(evictable))
        asker, owned = self.owner(space), self.owned()
        is_running = any(one.num_private and self.owner(one.space) == asker for one in self.running)
        if is_running and owned[asker] + num_needed > self.quota(asker):
            able = Counter(self.owner(key[0]) for key in self.evictable)
            lent = sum(
                min(able[owner], max(0, owned[owner] - self.quota(owner)))
                for owner in ("red", "blue", "")
                if owner != asker
            )
            available = free + lent + sum(self.owner(key[0]) == asker for key in evictable)
            if num_needed > available:
                return Refusal("quota_full", num_needed, available)
        return None


class Pressure:
    """Cache, model and memory, driven together."""

    def __init__(self, policy: str = "lru") -> None:
        self.model = Model()
        limits = CacheLimits(num_slack=0, num_retainable=BUDGET, quotas=Quotas(QUOTAS))
        self.cache = PrefixCache(NUM_SLOTS, policy=POLICIES[policy], clock=lambda: self.model.now, limits=limits)
        for space, tenant in SPACES.items():
            self.cache.register(space, tenant, shared=COMMON)
        for region in REGIONS:
            self.cache.share(COMMON, np.array(region, dtype=np.int32))
        self.memory = Memory()
        self.situations: Counter[str] = Counter()
        self.num_operations = 0

    @property
    def running(self) -> list[Running]:
        return self.model.running

    def acquire(
        self, space: Namespace, tokens: list[int], *, max_reuse: int, num_private: int, priority: Priority
    ) -> None:
        model = self.model
        keys = model.keys(space, tokens)
        matched = model.matched(keys)[:max_reuse]
        expected = model.refusal(space, matched, num_private)
        before = model.evictable
        array = np.array(tokens, dtype=np.int32)
        lease = self.cache.acquire(space, array, max_reuse=max_reuse, num_private=num_private, priority=priority)
        if isinstance(lease, Refusal):
            assert lease == expected
            self.situations[f"refused: {lease.reason}"] += 1
        else:
            assert expected is None
            assert lease.num_reused == len(matched)
            model.num_pins.update(matched)
            for key in matched:
                model.cached[key] = max(priority, model.cached[key])
            for key in matched:
                if key in model.promised and key in model.kept:
                    promise = model.promised[key]
                    promise.until = max(promise.until, model.now + promise.lifetime_s)
            model.running.append(self._begin(lease, space, tokens, priority, num_private))
            self.see_evictions(before - set(matched), asker=model.owner(space))
        self.verify()

    def compute_and_publish(self, one: Running, stop: int) -> None:
        """Compute what is not computed yet, and publish all of it."""
        model, lease = self.model, one.lease
        if lease.num_published <= lease.num_shared:
            self._name_below_region(one)
        stop = max(lease.num_published, min(stop, lease.num_slots, len(one.tokens)))
        self.memory.compute(one, stop)
        fresh = one.keys[lease.num_published : stop]
        new = [key for key in fresh if key not in model.cached]
        written = sum(model.is_alive(key) for key in new)
        assert self.cache.publish(lease, one.array, stop) == written
        if len(new) < len(fresh):
            self.situations["adopted"] += 1
        for key in fresh:
            model.cached[key] = max(one.priority, model.cached.get(key, Priority.LOW))
        for key in one.keys[: lease.num_published]:
            model.cached[key] = max(one.priority, model.cached[key])
        model.num_pins.update(fresh)
        self.verify()

    def grow(self, one: Running, num_slots: int, tokens: list[int]) -> None:
        model = self.model
        for token in tokens:
            self._append(one, token)
        before, counts = model.evictable, model.counts
        available = counts.free + counts.evictable
        refusal = self.cache.grow(one.lease, num_slots)
        if one.lease.num_slots + (num_slots if refusal else 0) > NUM_SLOTS:
            assert refusal == Refusal("larger_than_pool", num_slots, available)
        elif num_slots > available:
            assert refusal == Refusal("pool_full", num_slots, available)
        else:
            assert refusal is None
            self.see_evictions(before, asker=model.owner(one.space))
        self.verify()

    def keep(self, one: Running, num_tokens: int, lifetime_s: float | None) -> None:
        """Promise for a time, or (None) pin."""
        model = self.model
        keys = one.keys[:num_tokens]
        end, kept = keys[-1], model.kept
        new = [key for key in keys if key not in kept]
        owner = model.owner(end[0])
        own = [key for key in new if key[0] == end[0]]
        kept_by_owner = sum(model.owner(key[0]) == owner for key in kept)
        if not model.is_alive(end):
            expected: Refusal | None = Refusal("retention_full", len(new), 0)
        elif len(new) > BUDGET - len(kept):
            expected = Refusal("retention_full", len(new), BUDGET - len(kept))
        elif len(own) > model.quota(owner) - kept_by_owner:
            expected = Refusal("retention_full", len(new), max(0, model.quota(owner) - kept_by_owner))
        else:
            expected = None
        lease = one.lease
        if lifetime_s is None:
            assert self.cache.pin(lease, num_tokens) == expected
        else:
            assert self.cache.keep(lease, num_tokens, lifetime_s=lifetime_s) == expected
        self.situations["promise refused" if expected else "promised"] += 1
        if expected is None:
            promise = model.promised.get(end)
            if promise is None or not (promise.is_pinned or promise.until > model.now):
                promise = model.promised[end] = Promised()
            if lifetime_s is None:
                promise.is_pinned = True
            else:
                promise.lifetime_s = max(promise.lifetime_s, lifetime_s)
                promise.until = max(promise.until, model.now + promise.lifetime_s)
        self.verify()

    def unpin(self, space: Namespace, tokens: list[int]) -> None:
        model = self.model
        before = len(model.kept)
        keys = model.keys(space, tokens)
        if keys and keys[-1] in model.cached and (promise := model.promised.get(keys[-1])) and promise.is_pinned:
            promise.is_pinned = False
            self.situations["unpinned"] += 1
        self.cache.unpin(space, np.array(tokens, dtype=np.int32))
        assert len(model.kept) <= before
        self.verify()

    def release(self, one: Running) -> None:
        model = self.model
        model.running.remove(one)
        published = one.keys[: one.lease.num_published]
        if one.num_computed < len(one.tokens):
            self.situations["cancelled"] += 1
        self.cache.release(one.lease)
        model.num_pins.subtract(published)
        for key in published:
            if not model.num_pins[key] and not model.is_alive(key):
                del model.cached[key]
        self.verify()

    def wait(self, seconds: float) -> None:
        before = len(self.model.kept)
        self.model.now += seconds
        if len(self.model.kept) < before:
            self.situations["lapsed"] += 1
        self.verify()

    def clear(self, space: Namespace | None) -> None:
        model = self.model
        alive = [key for key in model.cached if model.is_alive(key)]
        spaces = [*SPACES, COMMON] if space is None else [space]
        model.num_cleared.update(spaces)
        gone = [key for key in alive if not model.is_alive(key)]
        assert self.cache.clear(space) == len(gone)
        for key in gone:
            model.promised.pop(key, None)
            if not model.num_pins[key]:
                del model.cached[key]
        self.verify()

    def see_evictions(self, before: set[Key], *, asker: str) -> None:
        """Find what the cache evicted of what was evictable before, and judge whether it might."""
        model = self.model
        gone = {key for key in before if not self._is_found(key)}
        if not gone:
            return
        priorities = {key: model.cached.pop(key) for key in gone}
        for key in gone:
            model.promised.pop(key, None)
        evictable = model.evictable
        for key in gone:
            left = [model.cached[k] for k in evictable if model.owner(k[0]) == model.owner(key[0])]
            assert all(priorities[key] <= priority for priority in left), "a higher priority went first"
        self._judge_owners(gone, evictable, asker)

    def _judge_owners(self, gone: set[Key], evictable: set[Key], asker: str) -> None:
        model = self.model
        owned = model.owned()
        able = Counter(model.owner(key[0]) for key in evictable)
        losers = {model.owner(key[0]) for key in gone}
        borrowers = {o for o in ("red", "blue", "") if able[o] and owned[o] > model.quota(o)}
        for owner in losers - {asker}:
            if owner == "shared":
                assert not able.keys() - {"shared"}, "what is shared went before the rest"
            elif owned[owner] < model.quota(owner):
                assert not borrowers, "a tenant within its quota lost before one that has borrowed"
                self.situations["lost within the quota"] += 1
            else:
                self.situations["lost what was borrowed"] += 1

    def verify(self) -> None:
        """Compare all three, and let the cache check itself."""
        model = self.model
        self.num_operations += 1
        self.cache.counts()
        self.cache._expire()
        self.cache.check()
        assert self.cache.counts() == model.counts
        for key, promise in list(model.promised.items()):
            if not promise.is_pinned and promise.until <= model.now:
                del model.promised[key]
        ends = {key for key in model.cached if model.is_alive(key)}
        ends -= {(*key[:2], key[2][:-1]) for key in ends}
        for key in ends:
            assert self._is_found(key), "what the model has is not cached"
        for one in model.running:
            assert len(slots_of(one.lease.extents)) == one.lease.num_slots
            self.memory.read(one)

    def _is_found(self, key: Key) -> bool:
        """Whether the cache finds a prefix, asked as a prompt that goes on behind it."""
        space, _, prefix = key
        if space == COMMON:
            space, tail = next(iter(SPACES)), [r for r in REGIONS if r[: len(prefix)] == prefix][-1][len(prefix) :]
            prefix = (*prefix, *tail)
            return self.cache.peek(space, np.array(prefix, dtype=np.int32)).num_tokens >= len(key[2])
        return self.cache.peek(space, np.array(prefix, dtype=np.int32)).num_tokens == len(prefix)

    def _begin(
        self, lease: Lease, space: Namespace, tokens: list[int], priority: Priority, num_private: int
    ) -> Running:
        keys, epoch = self.model.keys(space, tokens), self.model.num_cleared[space]
        assert lease.num_shared == num_shared_of(tokens)
        return Running(lease, space, list(tokens), keys, lease.num_reused, num_private, priority, epoch)

    def _append(self, one: Running, token: int) -> None:
        """Add a token to a sequence, one with which it does not spell another region than it began with."""
        if num_shared_of([*one.tokens, token]) != one.lease.num_shared:
            token = 1 - token
        one.tokens.append(token)
        epochs: tuple[int, ...] = (one.epoch,)
        if one.lease.num_shared:
            last = one.keys[-1][1]
            epochs = last if len(last) == 3 else (one.lease.num_shared, one.epoch, last[-1])
        one.keys.append((one.space, epochs, tuple(one.tokens)))

    def _name_below_region(self, one: Running) -> None:
        """Name what a sequence publishes first below a region: it meets what its tenant has there by now.

        Nothing is found below a region that was cleared, so there it stays by itself.
        """
        common = self.model.num_cleared[COMMON]
        for place, (space, epochs, prefix) in enumerate(one.keys):
            if len(epochs) == 3:
                meets = self.model.num_cleared[space] if epochs[-1] == common else -1 - id(one)
                one.keys[place] = (space, (epochs[0], meets, epochs[-1]), prefix)


def num_shared_of(tokens: Iterable[int]) -> int:
    """Count the tokens of the longest region that a prompt opens with."""
    prompt = tuple(tokens)
    return max((len(region) for region in REGIONS if prompt[: len(region)] == region), default=0)
