"""From the engine's deltas to what both protocols send: text, tool calls, ends. Pure.

Delta, Delta, ...  --AnswerReader-->  Begin, Text, Text, Call, ..., Finish   (per sequence)
                                      └── collect ──> Answer
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from anaphora.engine.request import Delta, FinishReason, TokenLogprob
from anaphora.prompt.tool_calls import CallParser, Parsed, ParsedText


@dataclass(frozen=True, slots=True)
class Begin:
    """The engine's first delta is there: the prompt is through the model and its counts are final."""

    request_index: int = 0


@dataclass(frozen=True, slots=True)
class TextPiece:
    sequence_index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A whole call. `arguments` is JSON text as generated."""

    sequence_index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Finish:
    sequence_index: int
    reason: FinishReason
    stop_string: str | None = None
    calls_tools: bool = False
    generated: str = ""  # the whole answer as the model wrote it, with what was put in front of it
    logprobs: tuple[TokenLogprob, ...] = ()  # of tokens that had no text of their own to go with


AnswerEvent = Begin | TextPiece | CallPiece | Finish


@dataclass(frozen=True, slots=True)
class Answer:
    """One sequence, finished."""

    blocks: tuple[TextPiece | CallPiece, ...]  # in the order generated; neighbouring text is one block
    finish: Finish
    logprobs: tuple[TokenLogprob, ...]

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, TextPiece))

    @property
    def calls(self) -> tuple[CallPiece, ...]:
        return tuple(block for block in self.blocks if isinstance(block, CallPiece))


@dataclass(frozen=True, slots=True)
class CallReading:
    """How calls are to be read from the answers of one request."""

    tool_names: tuple[str, ...]
    opening: str = ""  # the beginning of a call that was put in front of the answer
    is_single: bool = False  # at most one call; what comes after it is dropped


@dataclass(slots=True)
class _Sequence:
    parser: CallParser | None
    generated: str
    num_calls: int = 0
    waiting: list[TokenLogprob] = field(default_factory=list)


class AnswerReader:
    """Turn one request's deltas into events. `calls` None: everything is text."""

    def __init__(self, num_sequences: int, calls: CallReading | None, new_call_id: Callable[[], str]) -> None:
        self._calls = calls
        self._new_call_id = new_call_id
        self._has_begun = False
        self._sequences = [
            _Sequence(CallParser(calls.tool_names, opening=calls.opening), calls.opening)
            if calls
            else _Sequence(None, "")
            for _ in range(num_sequences)
        ]

    def read(self, delta: Delta) -> list[AnswerEvent]:
        """What this delta adds."""
        events: list[AnswerEvent] = [] if self._has_begun else [Begin()]
        self._has_begun = True
        sequence = self._sequences[delta.sequence_index]
        sequence.waiting += delta.logprobs
        if sequence.parser is None:
            parsed: Iterable[Parsed] = [ParsedText(delta.text)] if delta.text else []
        else:
            sequence.generated += delta.text
            parsed = sequence.parser.feed(delta.text)
            parsed = (*parsed, *sequence.parser.finish()) if delta.finish_reason else parsed
        events += [event for piece in parsed if (event := self._event(delta.sequence_index, piece)) is not None]
        if delta.finish_reason is not None:
            events.append(
                Finish(
                    sequence_index=delta.sequence_index,
                    reason=delta.finish_reason,
                    stop_string=delta.stop_string,
                    calls_tools=sequence.num_calls > 0,
                    generated=sequence.generated,
                    logprobs=_take(sequence.waiting),
                )
            )
        return events

    def _event(self, index: int, piece: Parsed) -> TextPiece | CallPiece | None:
        sequence = self._sequences[index]
        if self._calls is not None and self._calls.is_single and sequence.num_calls:
            return None
        if isinstance(piece, ParsedText):
            return TextPiece(index, piece.text, _take(sequence.waiting))
        sequence.num_calls += 1
        return CallPiece(index, self._new_call_id(), piece.name, piece.arguments)


def collect(events: Iterable[AnswerEvent], num_sequences: int) -> tuple[Answer, ...]:
    """Every sequence's whole answer, from all events of a request."""
    gathered: list[list[TextPiece | CallPiece]] = [[] for _ in range(num_sequences)]
    logprobs: list[list[TokenLogprob]] = [[] for _ in range(num_sequences)]
    finishes: dict[int, Finish] = {}
    for event in events:
        if isinstance(event, Begin):
            continue
        if isinstance(event, Finish):
            finishes[event.sequence_index] = event
        else:
            gathered[event.sequence_index].append(event)
        if not isinstance(event, CallPiece):
            logprobs[event.sequence_index] += event.logprobs
    return tuple(
        Answer(_joined(blocks), finishes[index], tuple(logprobs[index])) for index, blocks in enumerate(gathered)
    )


def _joined(pieces: Sequence[TextPiece | CallPiece]) -> tuple[TextPiece | CallPiece, ...]:
    blocks: list[TextPiece | CallPiece] = []
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, TextPiece):
            texts.append(piece.text)
            continue
        if texts:
            blocks.append(TextPiece(piece.sequence_index, "".join(texts)))
            texts = []
        blocks.append(piece)
    if texts:
        blocks.append(TextPiece(pieces[-1].sequence_index, "".join(texts)))
    return tuple(blocks)


def _take(waiting: list[TokenLogprob]) -> tuple[TokenLogprob, ...]:
    taken = tuple(waiting)
    waiting.clear()
    return taken
