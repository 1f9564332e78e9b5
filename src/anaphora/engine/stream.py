"""The answer side of a request: deltas cross from the engine thread to whoever waits, blocking or in asyncio."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from anaphora.engine.request import Completion, Delta, Generation, GenerationRequest, Receipt, TokenLogprob
from anaphora.errors import AnaphoraError


class Stream:
    """Deltas of one request, in order. Iterate it once, with `for` or with `async for`.

    `receipt` is set when the first delta is there (prompt counts are final then) and final after the last.
    `prompt_logprobs` is complete when the first delta is there.
    Raises while iterating: RequestTimeout, EngineFailure, EngineStopped.
    """

    def __init__(self, request: GenerationRequest, *, abort: Callable[["Stream"], None]) -> None:
        self.request = request
        self.receipt: Receipt | None = None
        self.prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        self._abort = abort
        self._changed = threading.Condition()
        self._items: deque[Delta | AnaphoraError] = deque()
        self._is_closed = False
        self._wake: Callable[[], object] | None = None

    def abort(self) -> None:
        """Stop the request; what it holds is freed before the next step. Does nothing if it has ended."""
        self._abort(self)

    def __iter__(self) -> Iterator[Delta]:
        while True:
            with self._changed:
                while not self._items and not self._is_closed:
                    self._changed.wait()
                if not self._items:
                    return
                item = self._items.popleft()
            if isinstance(item, AnaphoraError):
                raise item
            yield item

    async def __aiter__(self) -> AsyncIterator[Delta]:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        with self._changed:
            self._wake = lambda: loop.call_soon_threadsafe(arrived.set)
        while True:
            with self._changed:
                item = self._items.popleft() if self._items else None
                is_closed = self._is_closed
                if item is None:
                    arrived.clear()
            if item is None:
                if is_closed:
                    return
                await arrived.wait()
            elif isinstance(item, AnaphoraError):
                raise item
            else:
                yield item

    def result(self) -> Generation:
        """Wait for the end; answer everything at once. Raises as iterating does."""
        return self._collected(list(self))

    async def aresult(self) -> Generation:
        """Await the end; answer everything at once. Raises as iterating does."""
        return self._collected([delta async for delta in self])

    def put(self, item: Delta | AnaphoraError) -> None:
        """Add a delta, or the error that ends the stream. For the engine's thread."""
        with self._changed:
            if not self._is_closed:
                self._items.append(item)
                self._is_closed = isinstance(item, AnaphoraError)
            self._notify()

    def close(self) -> None:
        """End the stream after what it holds. For the engine's thread."""
        with self._changed:
            self._is_closed = True
            self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        if self._wake is not None:
            try:
                self._wake()
            except RuntimeError:  # the reader's event loop is gone, and so is the reader
                self._wake = None

    def _collected(self, deltas: list[Delta]) -> Generation:
        assert self.receipt is not None, "a stream that ended without an error has a receipt"
        completions = (
            _completion([delta for delta in deltas if delta.sequence_index == index])
            for index in range(self.request.sampling.num_sequences)
        )
        return Generation(tuple(completions), self.receipt, self.prompt_logprobs)


def _completion(deltas: list[Delta]) -> Completion:
    last = deltas[-1]
    assert last.finish_reason is not None
    return Completion(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        finish_reason=last.finish_reason,
        stop_string=last.stop_string,
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
    )
