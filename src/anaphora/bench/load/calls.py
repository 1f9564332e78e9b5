"""What is asked and what came of it: the data that the rooms of the load tool hand to each other.

Messages and tools are spelled as Chat Completions spells them; the other wires translate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RUN = "run"
"""The name of a wave that is the whole of its round."""

Message = Mapping[str, Any]
Tool = Mapping[str, Any]  # name, description, parameters


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, sent when the one before it in its conversation is answered."""

    messages: tuple[Message, ...]  # those that come new to the history
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns over one growing history."""

    kind: str
    system: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    keeps_answers: bool = False  # the server's own answers go into the history; else the turns bring recorded ones


@dataclass(frozen=True, slots=True)
class Ask:
    """One request in full."""

    kind: str
    system: str
    messages: tuple[Message, ...]
    max_tokens: int
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Pace:
    """How requests arrive.

    Closed loop: `concurrency` conversations at a time, the next begins when one ends. Poisson: with `rate_per_s`,
    conversations begin at random times, whether or not the server keeps up, so that requests come at that rate.
    """

    concurrency: int = 1
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Wave:
    """Conversations that are measured together. Waves of a round follow one another."""

    name: str
    conversations: tuple[Conversation, ...]
    pace: Pace
    counts: bool = True  # False: it only prepares the server


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that was answered in full. Seconds count from when it was due."""

    kind: str
    due_s: float  # after the wave's begin
    first_s: float  # first piece of the answer
    total_s: float  # end of the answer
    gaps_s: tuple[float, ...]  # between pieces
    prompt_tokens: int
    cached_tokens: int | None  # None: the server does not tell
    output_tokens: int
    text: str

    @property
    def computed_tokens(self) -> int | None:
        return None if self.cached_tokens is None else self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class Failed:
    """A request without a whole answer."""

    kind: str
    due_s: float
    total_s: float
    problem: str  # its kind, by which failures are counted
    message: str


@dataclass(frozen=True, slots=True)
class WaveResult:
    """What one server made of one wave."""

    wall_s: float  # from the first request due to the last answer's end
    answered: tuple[Answered, ...]
    failed: tuple[Failed, ...]
    num_unasked: int  # turns of conversations that broke off before them

    @property
    def output_tokens_per_s(self) -> float:
        return sum(one.output_tokens for one in self.answered) / self.wall_s
