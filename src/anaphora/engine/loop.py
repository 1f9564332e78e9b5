"""The engine's thread: takes orders from an inbox, steps while there is work, sleeps while there is none."""

import logging
import threading
from collections.abc import Callable

import torch

from anaphora.engine.job import Job
from anaphora.engine.stepper import Stepper
from anaphora.engine.stream import Stream
from anaphora.errors import AnaphoraError, EngineFailure, EngineStopped, RequestTimeout

log = logging.getLogger("anaphora")

Order = Callable[[Stepper], None]

CHECK_INTERVAL_S = 60.0
"""At most one integrity check of the cache per minute, and only when there is nothing else to do."""

BLOCKED_S = 0.05
"""Where all that is left waits for a lower tier, time limits are looked at so often."""


class EngineLoop:
    """Owns the `Stepper`: nothing else touches it after `start`."""

    def __init__(self, stepper: Stepper, *, num_threads: int | None, clock: Callable[[], float]) -> None:
        self._stepper = stepper
        self._num_threads = num_threads
        self._clock = clock
        self._changed = threading.Condition()
        self._inbox: list[Order] = []
        self._is_stopping = False
        self._has_worked = False
        self._is_blocked = False  # the last step found nothing to do
        self._next_check_at = 0.0
        self._thread = threading.Thread(target=self._main, name="anaphora-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, order: Order) -> None:
        """Have the engine's thread carry out an order between two steps. Raises EngineStopped after `stop`."""
        with self._changed:
            if self._is_stopping:
                raise EngineStopped("The engine was closed.")
            self._inbox.append(order)
            self._changed.notify()

    def abort(self, stream: Stream) -> None:
        """Abort a stream's job; nothing happens if it has ended."""

        def order(stepper: Stepper) -> None:
            if (job := stepper.jobs.get(id(stream))) is not None:
                stepper.abort(job)

        with self._changed:
            if not self._is_stopping:
                self._inbox.append(order)
                self._changed.notify()

    def stop(self) -> None:
        """End every job with EngineStopped and the thread with it. Idempotent."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _main(self) -> None:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)  # OpenMP keeps this per thread
        with torch.inference_mode():
            while self._turn():
                pass
        self._end_all(lambda: EngineStopped("The engine was closed while this request was in flight."))

    def _turn(self) -> bool:
        """Carry out orders and make a step; False when the engine is to stop.

        What fails here is a fault of the engine's own: the requests in flight are lost, later ones are served.
        """
        orders, is_stopping = self._next_orders()
        try:
            for order in orders:
                order(self._stepper)
            if not is_stopping:
                self._expire()
                did = self._stepper.step()
                self._has_worked |= did
                self._is_blocked = not did
        except Exception as error:
            log.exception("The engine failed between two steps. Please report this.")
            reason = f"The engine failed: {error}"
            self._stepper.stats.num_failed += len(self._stepper.jobs)
            self._end_all(lambda: EngineFailure(reason))
        return not is_stopping

    def _end_all(self, error: Callable[[], AnaphoraError]) -> None:
        for job in list(self._stepper.jobs.values()):
            self._stepper.end(job, error())

    def _next_orders(self) -> tuple[list[Order], bool]:
        """Wait until there is something to do."""
        with self._changed:
            while not (self._inbox or self._is_stopping or self._stepper.jobs):
                if self._has_worked and self._clock() >= self._next_check_at:
                    self._check()
                    continue
                self._changed.wait()
            if self._is_blocked and self._stepper.jobs and not (self._inbox or self._is_stopping):
                self._changed.wait(BLOCKED_S)
            orders, self._inbox = self._inbox, []
            return orders, self._is_stopping

    def _check(self) -> None:
        """Check the cache's integrity. A failed check empties the cache; it never stops serving."""
        self._has_worked = False
        self._next_check_at = self._clock() + CHECK_INTERVAL_S
        try:
            self._stepper.cache.check()
        except AssertionError:
            log.exception("The cache failed its integrity check and was emptied. Please report this.")
            self._stepper.stats.num_failed_checks += 1
            self._stepper.cache.clear(None)

    def _expire(self) -> None:
        now = self._clock()
        late = [job for job in self._stepper.jobs.values() if _is_late(job, now)]
        for job in late:
            self._stepper.stats.num_failed += 1
            limit = job.request.timeout_s
            self._stepper.end(job, RequestTimeout(f"The request was not finished within its limit of {limit} s."))


def _is_late(job: Job, now: float) -> bool:
    return job.deadline is not None and now >= job.deadline
