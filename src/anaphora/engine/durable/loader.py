"""Loads records into slots, in a thread of its own. Who waits for one goes on when the engine's thread hears of it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from anaphora.core.extent import Extent
from anaphora.core.lease import Lease
from anaphora.engine.durable.claim import Claim
from anaphora.engine.durable.pieces import Opening, Wanted
from anaphora.engine.durable.pool_bytes import PoolBytes
from anaphora.engine.step import extents_between
from anaphora.tiers.base import Tier
from anaphora.tiers.memory import Memory
from anaphora.tiers.record import Record

log = logging.getLogger("anaphora")


@dataclass(slots=True, eq=False)
class Loading:
    """Records on their way into leased slots. Only the loader's thread changes it until it is done.

    `[0, num_present)` stood in the pool before; `[num_present, stop)` was loaded and verified.
    """

    opening: Opening
    wanted: list[Wanted]
    lease: Lease
    extents: tuple[Extent, ...]
    num_present: int
    stop: int
    claim: Claim = field(default_factory=Claim)
    num_bytes: int = 0
    took_s: float = 0.0
    num_failed: int = 0  # records that were there by the index and could not be used


class Loader:
    """The thread and its two queues: what a request waits for goes before what nobody asked for yet."""

    def __init__(self, tier: Tier, pool: PoolBytes, *, done: Callable[[Loading], None]) -> None:
        self._tier, self._pool, self._done = tier, pool, done
        self._memory = Memory()
        self._queue: deque[Loading] = deque()
        self._errands: deque[Callable[[], None]] = deque()
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._main, name="anaphora-loader", daemon=True)
        self._thread.start()

    def load(self, loading: Loading) -> None:
        """Queue a load."""
        with self._changed:
            self._queue.append(loading)
            self._changed.notify_all()

    def run(self, errand: Callable[[], None]) -> None:
        """Have the thread do something else when nobody waits for a load."""
        with self._changed:
            self._errands.append(errand)
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread behind the record that it is reading."""
        with self._changed:
            self._is_closing = True
            for loading in self._queue:
                loading.claim.withdraw()
            self._changed.notify_all()
        self._thread.join()

    def _main(self) -> None:
        while (work := self._next()) is not None:
            try:
                self._load(work) if isinstance(work, Loading) else work()
            except Exception:  # a fault of ours must not leave requests waiting
                log.exception("Loading from disk failed. Please report this. What was to be loaded is computed.")
            if isinstance(work, Loading):
                self._done(work)

    def _next(self) -> Loading | Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._errands or self._is_closing)
            if self._is_closing:
                return None
            return self._queue.popleft() if self._queue else self._errands.popleft()

    def _load(self, loading: Loading) -> None:
        """Load records, first tokens first, up to the first that can't be used."""
        started_at = time.perf_counter()
        for wanted in loading.wanted:
            if loading.claim.is_withdrawn:
                break
            record = self._tier.load(wanted.key, memory=self._memory)
            if not isinstance(record, Record) or not self._fits(record, wanted, loading.opening):
                loading.num_failed += 1
                break
            start = max(wanted.piece.start, loading.num_present)
            extents = list(extents_between(loading.extents, start, wanted.stop))
            if not self._pool.copy_in(record, start - wanted.piece.start, extents, loading.claim):
                break
            loading.num_bytes += record.size_bytes
            loading.stop = wanted.stop
        loading.took_s = time.perf_counter() - started_at

    def _fits(self, record: Record, wanted: Wanted, opening: Opening) -> bool:
        """Compare all that the keys and values depend on: the index is only believed for what is worth a look."""
        piece = wanted.piece
        num_tokens = wanted.stop - piece.start
        return (
            record.layout == self._pool.layout
            and record.namespace == piece.namespace
            and record.parent == piece.parent
            and np.array_equal(record.tokens[:num_tokens], opening.tokens[piece.start : wanted.stop])
        )
