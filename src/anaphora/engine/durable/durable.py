"""The tiers below the pool, as the engine's thread sees them: nothing here waits for a disk.

    a sequence waits     promote   what more of it is stored is loaded into leased slots, published, held for it
    a sequence ended     keep      what it published is held, copied out and stored, then let go

What is held for either gives way: writes to whoever needs room, loads to what runs.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from anaphora.core.cache import Cache
from anaphora.core.index import common_length
from anaphora.core.lease import Lease, Refusal
from anaphora.core.namespace import Namespace
from anaphora.engine.durable.chains import Chain, chains_of
from anaphora.engine.durable.loader import Loader, Loading
from anaphora.engine.durable.pieces import Opening, find_wanted
from anaphora.engine.durable.pool_bytes import PoolBytes
from anaphora.engine.durable.rates import Rates
from anaphora.engine.durable.writer import Writer, Writing
from anaphora.engine.kv_pool import KvPool
from anaphora.engine.models.spec import ModelSpec
from anaphora.engine.scheduler import Scheduler
from anaphora.engine.sequence import Sequence
from anaphora.engine.stats import DurableStats
from anaphora.tiers.base import Origin, Tier

MIN_MOVED_TOKENS = 16
"""Fewer tokens are computed as fast as they are found; see also `joining.MIN_JOINED`."""

HELD_SHARE = 4
"""Up to one slot in so many waits for the writer."""

PRELOADED_SHARE = 2
"""One slot in so many may be filled before anybody asks, unless told otherwise."""

PRELOADED_RECORDS = 8
"""Loaded at a time before anybody asks, so that who asks meanwhile does not wait for more."""

CLOSING_S = 10.0
"""What is queued is written when the engine is closed, for so long."""

Order = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Below:
    """What a `Durable` stands on."""

    tier: Tier
    pool: KvPool
    spec: ModelSpec
    shared: Namespace  # of what the operator declared shared


class Durable:
    """Stores what ends and loads what comes back. For the engine's thread, but for `stats`, `wait` and `close`."""

    def __init__(self, below: Below, cache: Cache, scheduler: Scheduler, *, post: Callable[[Order], None]) -> None:
        """Start the threads. `post` has the engine's thread do something; it does nothing once that has ended."""
        self._tier, self._spec, self._shared = below.tier, below.spec, below.shared
        self._cache, self._scheduler, self._post = cache, scheduler, post
        self._pool = PoolBytes(below.pool)
        self._num_slots = below.pool.num_slots
        self._rates = Rates()
        self._loads: dict[Loading, list[Sequence]] = {}  # and who waits for each
        self._writings: dict[Writing, None] = {}  # whose slots are held: queued, being written, or just written
        self._num_loaded_tokens = self._num_failed_loads = 0
        self._chains: deque[Chain] = deque()  # to be loaded before anybody asks
        self._preloading: Loading | None = None  # of the first chain
        self._num_preload_tokens = 0  # that may still be loaded so
        self._is_preloaded = threading.Event()
        self._last_stats: DurableStats | None = None  # once closed
        self._loader = Loader(below.tier, self._pool, done=self._loaded)
        self._writer = Writer(below.tier, self._pool, max_tokens=below.pool.num_slots // HELD_SHARE, done=self._written)

    def promote(self, sequence: Sequence) -> bool:
        """See `LowerTiers.promote`. Asks once for each sequence. Cost: O(tokens), a look into the index a record."""
        if sequence.is_loading:
            return True
        if sequence.was_sought or sequence.is_scored or sequence.num_tokens <= MIN_MOVED_TOKENS:
            return False
        sequence.was_sought = True
        probe = self._hold(sequence, sequence.num_tokens - 1)
        try:
            return self._join(sequence, probe) or self._begin(sequence, probe)
        finally:
            self._cache.release(probe)

    def keep(self, sequence: Sequence) -> None:
        """See `LowerTiers.keep`. Cost: as `acquire`."""
        lease = sequence.lease
        if lease is None or not lease.is_findable or lease.num_published < MIN_MOVED_TOKENS:
            return
        held = self._hold(sequence, lease.num_published)
        tokens = sequence.tokens[: held.num_reused]
        opening = Opening(tokens, sequence.namespace, self._shared, min(lease.num_shared, len(tokens)))
        writing = Writing(opening, self._origins(sequence.request.tenant), held, held.extents)
        self._writings[writing] = None
        if not self._writer.offer(writing):
            self._let_go(writing)

    def forget(self, sequence: Sequence) -> None:
        """See `LowerTiers.forget`. A load that nobody waits for any more ends."""
        sequence.is_loading = False
        for loading, waiting in list(self._loads.items()):
            if sequence in waiting:
                waiting.remove(sequence)
                if not waiting and loading is not self._preloading:
                    self._withdraw(loading)

    def preload(self, size_bytes: int | None) -> None:
        """Begin to load what was used last into free slots, up to so many bytes (None: half of the pool). Any thread.

        What a request waits for goes first.
        """
        half = self._num_slots // PRELOADED_SHARE
        num_tokens = half if size_bytes is None else size_bytes // self._pool.bytes_per_token

        def begin(chains: list[Chain]) -> None:
            self._chains, self._num_preload_tokens = deque(chains), num_tokens
            self._preload_next()

        def find() -> None:
            known = self._tier.recent(self._spec.digest, max_bytes=num_tokens * self._pool.bytes_per_token)
            chains = chains_of(known, model_digest=self._spec.digest, shared=self._shared)
            self._post(lambda: begin(chains))

        self._is_preloaded.clear()
        self._loader.run(find)

    def wait_for_preload(self, timeout_s: float) -> bool:
        """Wait until `preload` has loaded all that it is going to. False if that takes longer."""
        return self._is_preloaded.wait(timeout_s)

    def drop_background(self) -> bool:
        """See `LowerTiers.drop_background`. Cost: waits for a layer's copy at most."""
        writing = self._writer.take_back() or next(iter(self._writings), None)  # else one that was written just now
        if writing is not None:
            self._let_go(writing)
        elif self._preloading is not None:
            self._withdraw(self._preloading)
        else:
            return False
        return True

    def drop_load(self) -> bool:
        """See `LowerTiers.drop_load`. Cost: waits for a layer's copy at most."""
        if not self._loads:
            return False
        self._withdraw(next(reversed(self._loads)))
        return True

    def computed(self, num_rows: int, took_s: float) -> None:
        """See `LowerTiers.computed`."""
        self._rates.computed(num_rows, took_s)

    def stats(self) -> DurableStats:
        """Count what was moved so far. Thread-safe."""
        if self._last_stats is not None:
            return self._last_stats
        written = self._writer.written
        return DurableStats(
            num_loaded_tokens=self._num_loaded_tokens,
            num_failed_loads=self._num_failed_loads,
            num_stored_tokens=written.num_stored_tokens,
            num_dropped_tokens=written.num_dropped_tokens,
            num_refused_tokens=written.num_refused_tokens,
            disk_bytes=self._tier.size_bytes,
            disk_cap_bytes=self._tier.cap_bytes,
            num_disk_failures=self._tier.num_failures,
        )

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that was offered is written. False if that takes longer."""
        return self._writer.wait(timeout_s)

    def close(self) -> None:
        """Write what is queued and end the threads. The engine's thread has ended before. Idempotent."""
        if self._last_stats is not None:
            return
        self._loader.close()
        self._writer.close(timeout_s=CLOSING_S)
        self._last_stats = self.stats()
        self._tier.close()

    def _hold(self, sequence: Sequence, max_reuse: int) -> Lease:
        lease = self._cache.acquire(
            sequence.namespace, sequence.tokens, max_reuse=max_reuse, num_private=0, priority=sequence.priority
        )
        assert isinstance(lease, Lease), "a lease without private slots is never refused"
        return lease

    def _join(self, sequence: Sequence, probe: Lease) -> bool:
        """Let a sequence wait for a load that another waits for, if it needs the same."""
        for loading, waiting in self._loads.items():
            opening = loading.opening
            if opening.namespace == sequence.namespace and not loading.claim.is_withdrawn:
                coming = opening.tokens[: loading.wanted[-1].stop]
                num_shared = common_length(sequence.tokens[: sequence.num_tokens - 1], coming)
                if num_shared - max(probe.num_reused, loading.num_present) >= MIN_MOVED_TOKENS:
                    sequence.was_sought = False  # there may be more of it behind
                    self._let_wait(sequence, waiting, num_present=probe.num_reused)
                    return True
        return False

    def _begin(self, sequence: Sequence, probe: Lease) -> bool:
        """Load what is stored behind the cached part, if that is faster than computing it, and if there is room."""
        num_present, tokens = probe.num_reused, sequence.tokens[: sequence.num_tokens - 1]
        opening = Opening(tokens, sequence.namespace, self._shared, min(probe.num_shared, len(tokens)))
        wanted = find_wanted(self._tier, opening, num_present=num_present)
        num_new = wanted[-1].stop - num_present if wanted else 0
        if num_new < MIN_MOVED_TOKENS:
            return False
        num_read = wanted[-1].stop - wanted[0].piece.start
        if not self._rates.is_loading_faster(num_new, num_bytes=num_read * self._pool.bytes_per_token):
            return False
        lease = self._room(sequence, num_present, num_new)
        while not isinstance(lease, Lease) and self.drop_background():  # what it computes would need the same slots
            lease = self._room(sequence, num_present, num_new)
        if not isinstance(lease, Lease):
            return False
        waiting = self._start(Loading(opening, wanted, lease, lease.extents, num_present, num_present))
        self._let_wait(sequence, waiting, num_present=num_present)
        return True

    def _room(self, sequence: Sequence, num_present: int, num_new: int) -> Lease | Refusal:
        return self._cache.acquire(
            sequence.namespace,
            sequence.tokens,
            max_reuse=num_present,
            num_private=num_new,
            priority=sequence.priority,
        )

    def _preload_next(self) -> None:
        """Start the next load that nobody waits for, if there is one and free slots for it."""
        while self._chains and self._preloading is None:
            chain = self._chains[0]
            self._cache.register(chain.opening.namespace, chain.tenant, shared=self._shared)
            loading = self._preload_of(chain.opening)
            if loading == "nothing":
                self._chains.popleft()
            elif loading == "no room":
                self._chains.clear()
            else:
                self._preloading = loading
                self._start(loading)
        if self._preloading is None:
            self._is_preloaded.set()

    def _preload_of(self, opening: Opening) -> Loading | Literal["nothing", "no room"]:
        """Get slots for the next records of an opening that is not in the pool."""
        probe = self._acquire(opening, len(opening.tokens), 0)
        assert isinstance(probe, Lease), "a lease without private slots is never refused"
        num_present = probe.num_reused
        wanted = find_wanted(self._tier, opening, num_present=num_present)[:PRELOADED_RECORDS]
        self._cache.release(probe)
        if not wanted or probe.num_shared != opening.num_shared:  # something is shared no more, or since now
            return "nothing"
        num_new = wanted[-1].stop - num_present
        if num_new > min(self._num_preload_tokens, self._cache.counts().free):
            return "no room"
        lease = self._acquire(opening, num_present, num_new)
        if not isinstance(lease, Lease):
            return "no room"
        self._num_preload_tokens -= num_new
        return Loading(opening, wanted, lease, lease.extents, num_present, num_present)

    def _acquire(self, opening: Opening, max_reuse: int, num_private: int) -> Lease | Refusal:
        return self._cache.acquire(opening.namespace, opening.tokens, max_reuse=max_reuse, num_private=num_private)

    def _start(self, loading: Loading) -> list[Sequence]:
        """Begin a load. Returns the list of those who wait for it."""
        self._loads[loading] = []
        self._loader.load(loading)
        return self._loads[loading]

    @staticmethod
    def _let_wait(sequence: Sequence, waiting: list[Sequence], *, num_present: int) -> None:
        waiting.append(sequence)
        sequence.is_loading = True
        if sequence.num_on_device is None:
            sequence.num_on_device = num_present

    def _loaded(self, loading: Loading) -> None:
        """Called by the loader's thread."""
        self._post(lambda: self._publish(loading))

    def _publish(self, loading: Loading) -> None:
        """Announce what was loaded, hold it for those who waited, and let them go on."""
        self._rates.loaded(loading.num_bytes, loading.took_s)
        self._num_failed_loads += loading.num_failed
        if loading not in self._loads:
            return  # withdrawn meanwhile
        self._num_loaded_tokens += loading.stop - loading.num_present
        self._cache.publish(loading.lease, loading.opening.tokens, loading.stop)
        for sequence in self._loads.pop(loading):
            sequence.is_loading = False
            self._scheduler.hold(sequence)
        self._cache.release(loading.lease)
        if loading is self._preloading:
            self._preloading = None
            if loading.stop < loading.wanted[-1].stop:
                self._chains.popleft()  # the rest of it can't be loaded
            self._preload_next()

    def _withdraw(self, loading: Loading) -> None:
        """Stop a load. Those who waited for it compute."""
        loading.claim.withdraw()
        if loading is self._preloading:
            self._preloading = None
            self._chains.clear()
            self._is_preloaded.set()
        for sequence in self._loads.pop(loading):
            sequence.is_loading = False
        self._cache.release(loading.lease)

    def _written(self, writing: Writing) -> None:
        """Called by the writer's thread."""
        self._post(lambda: self._let_go(writing))

    def _let_go(self, writing: Writing) -> None:
        """Release what was held for the writer, if that has not been done."""
        if writing in self._writings:
            del self._writings[writing]
            self._cache.release(writing.lease)

    def _origins(self, tenant: str) -> tuple[Origin, Origin]:
        digest, name = self._spec.digest, self._spec.name
        return Origin(digest, name, None), Origin(digest, name, tenant)
