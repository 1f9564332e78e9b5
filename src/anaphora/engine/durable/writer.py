"""Write-behind: one thread copies finished prompts out of the pool and stores them. Answers never wait for it.

engine's thread    hold the slots, offer                                     release
writer's thread                         copy out a record, store it, ...  done
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from anaphora.core.extent import Extent
from anaphora.core.lease import Lease
from anaphora.engine.durable.claim import Claim
from anaphora.engine.durable.pieces import Opening, Piece, nearest, pieces_of
from anaphora.engine.durable.pool_bytes import PoolBytes
from anaphora.engine.step import extents_between
from anaphora.tiers.base import Origin, Outcome, Tier
from anaphora.tiers.memory import Memory
from anaphora.tiers.record import Record

log = logging.getLogger("anaphora")

NICENESS = 10
"""The model's threads go first."""


@dataclass(frozen=True, slots=True, eq=False)
class Writing:
    """An opening whose keys and values stand in held slots."""

    opening: Opening
    origins: tuple[Origin, Origin]  # of what is shared, and of the rest
    lease: Lease
    extents: tuple[Extent, ...]
    claim: Claim = field(default_factory=Claim)


@dataclass(slots=True)
class Written:
    """What became of the tokens that were offered, so far. Those that were stored before are in none of them."""

    num_stored_tokens: int = 0
    num_dropped_tokens: int = 0  # the queue was full, or the slots were needed
    num_refused_tokens: int = 0  # the tier failed, or had no room


class Writer:
    """The thread and its queue. `max_tokens` bounds what waits in it; a single opening may be longer."""

    def __init__(self, tier: Tier, pool: PoolBytes, *, max_tokens: int, done: Callable[[Writing], None]) -> None:
        self.written = Written()
        self._tier, self._pool, self._done = tier, pool, done
        self._max_tokens = max_tokens
        self._memory = Memory()
        self._queue: deque[Writing] = deque()
        self._doing: Writing | None = None
        self._introduced: set[bytes] = set()
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._main, name="anaphora-writer", daemon=True)
        self._thread.start()

    def offer(self, writing: Writing) -> bool:
        """Queue an opening. False, and it is counted as dropped, if too much waits already."""
        num_tokens = len(writing.opening.tokens)
        with self._changed:
            num_waiting = sum(len(one.opening.tokens) for one in self._queue)
            if self._is_closing or (num_waiting and num_waiting + num_tokens > self._max_tokens):
                self.written.num_dropped_tokens += num_tokens
                return False
            self._queue.append(writing)
            self._changed.notify_all()
        return True

    def take_back(self) -> Writing | None:
        """Give up what was offered last, and its slots are free to use. None: nothing was offered.

        Cost: waits for a layer's copy if the slots are being read right now.
        """
        with self._changed:
            writing = self._queue.pop() if self._queue else self._doing
            if writing is None or writing.claim.is_withdrawn:
                return None
            if writing is not self._doing:
                self.written.num_dropped_tokens += len(writing.opening.tokens)
        writing.claim.withdraw()
        return writing

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is left to write. False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and self._doing is None, timeout_s)

    def close(self, *, timeout_s: float) -> None:
        """Write what is queued, as far as the time allows, and end the thread."""
        self.wait(timeout_s)
        with self._changed:
            self._is_closing = True
            self._queue.clear()
            if self._doing is not None:
                self._doing.claim.withdraw()
            self._changed.notify_all()
        self._thread.join()

    def _main(self) -> None:
        thread_id = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread_id, min(19, os.getpriority(os.PRIO_PROCESS, thread_id) + NICENESS))
        while (writing := self._next()) is not None:
            try:
                self._write(writing)
            except Exception:  # a fault of ours must not leave slots held
                log.exception("Storing on disk failed. Please report this. What was to be stored is dropped.")
            self._done(writing)
            with self._changed:
                self._doing = None
                self._changed.notify_all()

    def _next(self) -> Writing | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            self._doing = self._queue.popleft() if self._queue else None
            return self._doing

    def _write(self, writing: Writing) -> None:
        """Store what is not stored yet, first tokens first, and count the rest as used."""
        used, stop = [], 0
        for piece in pieces_of(writing.opening):
            if piece.is_whole and self._tier.has(piece.key):
                used.append(piece.key)
            else:
                entry, num_found = nearest(self._tier, writing.opening, piece)
                if entry is not None and num_found == piece.stop - piece.start:
                    used.append(entry.key)
                elif not self._store(writing, piece):
                    break
                elif entry is not None and num_found == len(entry.tokens):
                    self._tier.delete(entry.key)  # the new record holds all of its tokens
            stop = piece.stop
        num_left = len(writing.opening.tokens) - stop
        if writing.claim.is_withdrawn:
            self.written.num_dropped_tokens += num_left
        else:
            self.written.num_refused_tokens += num_left
        self._tier.use(used)

    def _store(self, writing: Writing, piece: Piece) -> bool:
        """Copy a piece out of the pool and store it. False: the rest of the opening would be out of reach."""
        extents = list(extents_between(writing.extents, piece.start, piece.stop))
        kv = self._pool.copy_out(extents, writing.claim, self._memory)
        if kv is None:
            return False
        tokens = writing.opening.tokens[piece.start : piece.stop]
        outcome = self._tier.store(Record(piece.namespace, piece.parent, tokens, self._pool.layout, kv))
        if outcome is Outcome.STORED:
            self.written.num_stored_tokens += len(tokens)
            self._introduce(writing, piece)
        return outcome in (Outcome.STORED, Outcome.ALREADY_STORED)

    def _introduce(self, writing: Writing, piece: Piece) -> None:
        """Say whose the records of a namespace are, once."""
        if piece.namespace not in self._introduced:
            self._introduced.add(piece.namespace)
            shared, own = writing.origins
            is_shared = piece.namespace == writing.opening.shared
            self._tier.introduce(piece.namespace, shared if is_shared else own)
