"""Requests that can wait: batches, answered line by line beside requests that can't.

    add ──> [ lines of batch 1 | lines of batch 2 | ... ]  one line of each in turn
               └── answer(line), few at once ──> outcomes ──> ended: the lines' bodies are dropped, outcomes are kept

While others are served, one line is answered at a time, so that a batch goes on but hardly slows anybody. Batches live
in memory, apart for each tenant, and end with the server. Belongs to the event loop.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from anaphora.engine.request import Tenant
from anaphora.errors import Overloaded, UnknownObject

LIFETIME_S = 24 * 3600.0
"""What has not begun by then expires, as hosted."""
MAX_TENANT_BYTES = 256 * 2**20
"""Of a tenant's batches, requests and answers together."""
MAX_TENANT_BATCHES = 1000
_LINE_BYTES = 512
"""What a line takes besides its texts, and its outcome besides the answer: about."""
_LOOK_AGAIN_S = 0.5
"""How often to see whether others have left room."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a batch."""

    custom_id: str
    path: str  # of the endpoint that answers it
    body: bytes

    @property
    def size(self) -> int:
        """Bytes that stay when the line has been answered, without the answer."""
        return len(self.custom_id) + _LINE_BYTES


@dataclass(frozen=True, slots=True)
class LineReply:
    """What the endpoint said to a line."""

    status: int
    body: Mapping[str, Any]
    request_id: str
    size: int  # bytes of the body


Outcome = LineReply | Literal["canceled", "expired"]


@dataclass(slots=True)
class Batch:
    """One batch. Times are seconds since 1970."""

    batch_id: str
    tenant: Tenant
    kind: str  # whose: each API sees its own
    lines: tuple[Line, ...]
    created_at: float
    about: Mapping[str, Any] = field(default_factory=dict)  # what the API wants to tell of it
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # by the line's number
    canceled_at: float | None = None
    ended_at: float | None = None
    produced: dict[str, Any] = field(default_factory=dict)  # what its end left behind
    num_begun: int = 0
    size: int = 0

    @property
    def expires_at(self) -> float:
        return self.created_at + LIFETIME_S

    def count(self, wanted: Callable[[Outcome], bool]) -> int:
        """How many lines have such an outcome."""
        return sum(1 for outcome in self.outcomes.values() if wanted(outcome))


AnswerLine = Callable[[Batch, Line], Awaitable[LineReply]]


class BatchQueue:
    """Batches by tenant and id, and the task that works on them."""

    def __init__(
        self,
        answer: AnswerLine,
        *,
        num_at_once: Callable[[int], int],
        on_end: Callable[[Batch], None] = lambda batch: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`num_at_once` is asked, with the number of lines that are being answered, how many may be."""
        self._answer = answer
        self._num_at_once = num_at_once
        self._on_end = on_end
        self.clock = clock
        self._batches: OrderedDict[str, Batch] = OrderedDict()  # oldest first
        self._active: deque[Batch] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, batch: Batch) -> None:
        """Take a batch. Forgets the tenant's oldest ended ones where there is no room.

        Raises: Overloaded where there is none even so.
        """
        batch.size = sum(line.size + len(line.body) for line in batch.lines)
        own = [one for one in self._batches.values() if one.tenant == batch.tenant]
        size, ended = sum(one.size for one in own) + batch.size, [one for one in own if one.ended_at is not None]
        while (size > MAX_TENANT_BYTES or len(own) >= MAX_TENANT_BATCHES) and ended:
            oldest = ended.pop(0)
            own.remove(oldest)
            size -= self._batches.pop(oldest.batch_id).size
        if size > MAX_TENANT_BYTES or len(own) >= MAX_TENANT_BATCHES:
            raise Overloaded("There is no room for another batch until others have ended.", retry_after_s=60.0)
        self._batches[batch.batch_id] = batch
        if not batch.lines:
            batch.ended_at = self.clock()
            return
        self._active.append(batch)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    def get(self, tenant: Tenant, kind: str, batch_id: str) -> Batch:
        """The batch of that id.

        Raises: UnknownObject.
        """
        batch = self._batches.get(batch_id)
        if batch is None or (batch.tenant, batch.kind) != (tenant, kind):
            raise UnknownObject(f"There is no batch {batch_id[:80]!r} here (any more).")
        return batch

    def all_of(self, tenant: Tenant, kind: str) -> list[Batch]:
        """A tenant's batches, newest first."""
        return [one for one in reversed(self._batches.values()) if (one.tenant, one.kind) == (tenant, kind)]

    def cancel(self, batch: Batch) -> None:
        """Begin no more lines of a batch; those that have begun are answered. Does nothing to one that has ended."""
        if batch.ended_at is None and batch.canceled_at is None:
            batch.canceled_at = self.clock()
            self._drop_rest(batch, "canceled")

    def forget(self, batch: Batch) -> None:
        """Drop an ended batch and its outcomes."""
        assert batch.ended_at is not None
        del self._batches[batch.batch_id]

    async def close(self) -> None:
        """Stop working."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            while self._active or running:
                self._begin_lines(running)
                if running:
                    done, running = await asyncio.wait(
                        running, timeout=_LOOK_AGAIN_S, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in done:
                        task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _begin_lines(self, running: set[asyncio.Task[None]]) -> None:
        num_passed = 0
        while num_passed < len(self._active) and len(running) < max(1, self._num_at_once(len(running))):
            begun = self._next_line()
            num_passed = num_passed + 1 if begun is None else 0
            if begun is not None:
                running.add(asyncio.get_running_loop().create_task(self._answer_line(*begun)))

    def _next_line(self) -> tuple[Batch, int] | None:
        """Take a line of the batch whose turn it is. None: that one has none to begin now.

        The first line of a batch is answered before others begin, so that they find what it left in the cache.
        """
        batch = self._active.popleft()
        if self.clock() >= batch.expires_at:
            self._drop_rest(batch, "expired")
        if batch.num_begun == len(batch.lines):
            return None
        self._active.append(batch)
        if batch.num_begun and not batch.outcomes:
            return None
        batch.num_begun += 1
        return batch, batch.num_begun - 1

    async def _answer_line(self, batch: Batch, number: int) -> None:
        reply = await self._answer(batch, batch.lines[number])
        batch.outcomes[number] = reply
        batch.size += reply.size
        self._end_if_done(batch)

    def _drop_rest(self, batch: Batch, outcome: Literal["canceled", "expired"]) -> None:
        for number in range(batch.num_begun, len(batch.lines)):
            batch.outcomes[number] = outcome
        batch.num_begun = len(batch.lines)
        self._end_if_done(batch)

    def _end_if_done(self, batch: Batch) -> None:
        if batch.ended_at is None and len(batch.outcomes) == len(batch.lines):
            batch.ended_at = self.clock()
            batch.lines = tuple(Line(line.custom_id, line.path, b"") for line in batch.lines)
            answers = sum(one.size for one in batch.outcomes.values() if isinstance(one, LineReply))
            batch.size = answers + sum(line.size for line in batch.lines)
            self._on_end(batch)
