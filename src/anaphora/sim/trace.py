"""A trace: requests of a recorded workload, in the order of their arrival.

A request keeps its prompt as block ids where the trace tells no more than those (`Blocks`), else as token ids. Blocks
become token ids when asked for: each token of a block has the block's number as its id.

    blocks of 512   [7 7 7 ... 7 | 9 9 9 ... 9 | 4 4 4]      the last block may be partial

Two blocks with different ids differ in their first token, so the index tells them apart exactly where the trace does.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anaphora.core.index import Tokens
from anaphora.errors import AnaphoraError

MAX_BLOCK_ID = 2**31 - 1

MAX_PROMPT_TOKENS = 2**26
"""A prompt of more is malformed: no model reads as many, and its token ids alone would take 256 MB."""


class TraceError(AnaphoraError):
    """A trace can't be read or replayed: which file, which line, why."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A prompt of whole blocks and perhaps a partial one at its end."""

    ids: NDArray[np.int32]  # [num_blocks]
    block_tokens: int
    num_tokens: int

    def expand(self) -> Tokens:
        """Write the prompt out as token ids. Cost: one write of the tokens."""
        return np.repeat(self.ids, self.block_tokens)[: self.num_tokens]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One call of the recorded workload. Times are seconds from the start of the trace."""

    time_s: float
    prompt: Blocks | Tokens
    session: str = ""  # requests of one conversation or agent; empty where the trace doesn't tell
    tenant: str = ""  # who shares cache with whom; tenants share nothing
    service_s: float = 0.0  # how long the recorded call took; 0 where the trace doesn't tell

    @property
    def num_tokens(self) -> int:
        return self.prompt.num_tokens if isinstance(self.prompt, Blocks) else len(self.prompt)

    def tokens(self) -> Tokens:
        """Give the prompt as token ids. Cost: one write of the tokens for a prompt of blocks, else none."""
        return self.prompt.expand() if isinstance(self.prompt, Blocks) else self.prompt


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that was left out."""

    file: str
    line: int  # from 1
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}"


Reuse = Literal["told", "unknown"]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests sorted by time, and what was wrong with the rest."""

    name: str
    requests: tuple[TraceRequest, ...]
    block_tokens: int  # the trace's own unit of reuse; 1 where it tells token ids
    problems: tuple[Problem, ...] = ()
    reuse: Reuse = "told"
    """unknown: the trace has lengths only (Azure). Every prompt is then taken for new: volume and room can be judged,
    reuse can't."""

    @property
    def num_tokens(self) -> int:
        """Count the prompt tokens of all requests."""
        return sum(request.num_tokens for request in self.requests)


@dataclass(slots=True)
class Intake:
    """Collects what a loader reads: requests, problems, and one number per block id of a scope."""

    is_strict: bool = False
    requests: list[TraceRequest] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    _numbers: dict[tuple[str, int | str], int] = field(default_factory=dict)

    def reject(self, path: Path, line: int, reason: str) -> None:
        """Note a line that is left out. Raises TraceError where the caller wants that."""
        problem = Problem(path.name, line, reason)
        if self.is_strict:
            raise TraceError(str(problem))
        self.problems.append(problem)

    def number(self, scope: str, block_ids: list[int | str]) -> NDArray[np.int32]:
        """Give blocks dense numbers: equal ids of one scope, and only they, get equal numbers."""
        numbers = self._numbers
        dense = [numbers.setdefault((scope, block_id), len(numbers)) for block_id in block_ids]
        assert len(numbers) <= MAX_BLOCK_ID
        return np.array(dense, dtype=np.int32)
