"""The events of one HTTP request, whose answer may come from several engine requests."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import MappingProxyType

from anaphora.api.account import Account, account_of
from anaphora.api.answers import AnswerEvent, AnswerReader, Begin
from anaphora.api.contracts import Tab
from anaphora.api.explaining import Inquiry
from anaphora.engine.request import Delta, TokenLogprob
from anaphora.engine.stream import Stream
from anaphora.errors import AnaphoraError, EngineFailure, EngineStopped, RequestError


class Source:
    """Streams and the readers of their deltas, as one flow of events.

    Sequences are numbered request by request: index = request index * sequences per request + sequence index.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        readers: Sequence[AnswerReader],
        tab: Tab | None = None,
        *,
        fields: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`fields`: what the request calls fields that the engine names in its refusals."""
        assert len(streams) == len(readers), "every stream has its reader"
        assert tab is None or len(tab.reckonings) == len(streams), "every stream is reckoned"
        self._tab = tab
        self._fields = fields
        self._streams = tuple(streams)
        self._readers = tuple(readers)
        self._inquiries: tuple[Inquiry, ...] = ()
        self.num_sequences = sum(stream.request.sampling.num_sequences for stream in streams)

    def watch(self, inquiries: Sequence[Inquiry]) -> None:
        """Tell these what happens, one for each engine request."""
        assert len(inquiries) == len(self._streams), "every stream is inquired into"
        self._inquiries = tuple(inquiries)

    def abort(self) -> None:
        """Stop whatever still runs, and free it. Does nothing when all is over."""
        for stream in self._streams:
            stream.abort()
        for inquiry in self._inquiries:
            inquiry.fail()

    def account(self) -> Account:
        """What has been accounted so far: complete when the events are over."""
        begun = [number for number, stream in enumerate(self._streams) if stream.receipt is not None]
        tab = None if self._tab is None else self._tab.only(begun)
        misses = [one.miss for one in self._inquiries if one.miss is not None]
        return account_of([self._streams[number].receipt for number in begun], tab, misses)

    def prompt_logprobs(self, request_index: int) -> tuple[TokenLogprob | None, ...]:
        return self._streams[request_index].prompt_logprobs

    async def events(self) -> AsyncGenerator[AnswerEvent, None]:
        """Everything that happens, in the order it happens.

        Raises: RequestTimeout, EngineFailure, EngineStopped; RequestError for a form that takes too much to follow.
        """
        if len(self._streams) == 1:
            async for event in self._events_of(0):
                yield event
            return
        arrived: asyncio.Queue[AnswerEvent | AnaphoraError | None] = asyncio.Queue()
        tasks = [asyncio.create_task(self._pump(index, arrived)) for index in range(len(self._streams))]
        try:
            num_running = len(tasks)
            while num_running:
                item = await arrived.get()
                if isinstance(item, AnaphoraError):
                    raise item
                if item is None:
                    num_running -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _events_of(self, request_index: int) -> AsyncGenerator[AnswerEvent, None]:
        stream, reader = self._streams[request_index], self._readers[request_index]
        inquiry = self._inquiries[request_index] if self._inquiries else None
        first = request_index * stream.request.sampling.num_sequences
        async for delta in self._deltas(stream):
            if delta.finish_reason == "error":
                raise EngineFailure(delta.error or "The step failed.")
            if delta.finish_reason == "abort":
                raise EngineStopped("The request was stopped before its answer was complete.")
            if inquiry is not None:
                _inform(inquiry, delta, stream)
            for event in reader.read(delta):
                if isinstance(event, Begin):
                    if self._tab is not None:
                        self._tab.publish(request_index)
                    yield Begin(request_index)
                elif first:
                    yield dataclasses.replace(event, sequence_index=first + event.sequence_index)
                else:
                    yield event

        if inquiry is not None and stream.receipt is not None:
            inquiry.end(stream.receipt)

    async def _deltas(self, stream: Stream) -> AsyncGenerator[Delta, None]:
        try:
            async for delta in stream:
                yield delta
        except RequestError as error:
            raise renamed(error, self._fields) from None

    async def _pump(self, request_index: int, arrived: asyncio.Queue[AnswerEvent | AnaphoraError | None]) -> None:
        try:
            async for event in self._events_of(request_index):
                arrived.put_nowait(event)
        except AnaphoraError as error:
            arrived.put_nowait(error)
        else:
            arrived.put_nowait(None)


def renamed(error: RequestError, fields: Mapping[str, str]) -> RequestError:
    """The error with the field called as the request calls it, here and at the front of the message."""
    own = error.field or ""
    if own in fields:
        error.field = fields[own]
        if error.message.startswith(f"{own}: "):
            error.message = f"{error.field}: {error.message.removeprefix(f'{own}: ')}"
            error.args = (error.message,)
    return error


def _inform(inquiry: Inquiry, delta: Delta, stream: Stream) -> None:
    if inquiry.miss is None:
        assert stream.receipt is not None, "a request that has begun to answer has a receipt"
        inquiry.begin(stream.receipt)
    inquiry.take(delta)
