"""Which earlier tokens open longest like new ones: a tree of what was sent, exact, each shared opening kept once.

    add("RULES A")  add("RULES B")          nearest("RULES Bc") -> 7 tokens, of the second

    root ── "RULES " ──┬── "A"   latest: the first
                       └── "B"   latest: the second

Who was added first is forgotten first, so that the latest of a run is never forgotten before the run is.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, NewType, TypeVar

import numpy as np

from anaphora.core.index import NO_TOKENS, Tokens, common_length

Value = TypeVar("Value")
Handle = NewType("Handle", int)
"""Names what was added. Later ones are larger."""


@dataclass(frozen=True, slots=True)
class Nearest(Generic[Value]):
    """Who opens longest like some tokens, the latest of equals, and how many tokens are alike."""

    num_tokens: int  # at least one
    value: Value


@dataclass(frozen=True, slots=True)
class Added(Generic[Value]):
    """What was added, and who was nearest then."""

    handle: Handle
    nearest: Nearest[Value] | None


class _Run:
    """Tokens that follow those of its parent. `latest`: the last of those that pass or end here."""

    __slots__ = ("children", "latest", "num_ends", "parent", "tokens")

    def __init__(self, parent: "_Run | None", tokens: Tokens, latest: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.latest = latest
        self.num_ends = 0
        self.children: dict[int, _Run] = {}


class Openings(Generic[Value]):
    """Token sequences by how they open. Not for several threads."""

    def __init__(self) -> None:
        self._root = _Run(None, NO_TOKENS, -1)
        self._ends: OrderedDict[int, tuple[_Run, Value]] = OrderedDict()
        self._num_added = 0
        self.num_tokens = 0  # kept in the tree: those of shared openings count once

    def __len__(self) -> int:
        return len(self._ends)

    def nearest(self, tokens: Tokens) -> Nearest[Value] | None:
        """Who opens longest like these tokens. None: nobody has even the first.

        Cost: one comparison of the tokens, O(1) for each run on the way.
        """
        run, _, position = self._walk(self._root, tokens)
        return Nearest(position, self._ends[run.latest][1]) if position else None

    def add(self, tokens: Tokens, value: Value) -> Added[Value]:
        """Remember tokens, at least one, and say who of those before opens longest like them.

        Cost: as `nearest`, and a copy of what is new of them.
        """
        assert len(tokens), "nothing opens like nothing"
        number = self._num_added
        self._num_added += 1
        walked = self._walk(self._root, tokens)
        nearest = Nearest(walked[2], self._ends[walked[0].latest][1]) if walked[2] else None
        run = self._grow(self._root, tokens, number, walked)
        run.num_ends += 1
        self._ends[number] = run, value
        return Added(Handle(number), nearest)

    def extend(self, handle: Handle, tokens: Tokens) -> None:
        """Let what was added go on, unless it was forgotten meanwhile."""
        if handle not in self._ends or not len(tokens):
            return
        run, value = self._ends[handle]
        run.num_ends -= 1
        run = self._grow(run, tokens, handle, self._walk(run, tokens))
        run.num_ends += 1
        self._ends[handle] = run, value

    def tokens_of(self, handle: Handle) -> Tokens:
        """All tokens of what was added, and not forgotten yet. Cost: a copy of them."""
        run: _Run | None = self._ends[handle][0]
        pieces = []
        while run is not None:
            pieces.append(run.tokens)
            run = run.parent
        return np.concatenate(pieces[::-1])

    def forget_oldest(self) -> Value:
        """Forget who was added first. Cost: O(1) for each run that nobody else has."""
        _, (run, value) = self._ends.popitem(last=False)
        run.num_ends -= 1
        while not run.num_ends and not run.children and run.parent is not None:
            above = run.parent
            del above.children[int(run.tokens[0])]
            self.num_tokens -= len(run.tokens)
            run = above
        return value

    def check(self) -> None:
        """Assert every invariant. Cost: O(runs)."""
        ends: dict[_Run, list[int]] = {}
        for number, (run, _) in self._ends.items():
            ends.setdefault(run, []).append(number)
        num_tokens, waiting, order = 0, [self._root], []
        while waiting:
            run = waiting.pop()
            order.append(run)
            num_tokens += len(run.tokens)
            assert run.num_ends == len(ends.pop(run, ())), "ends of a run are miscounted"
            assert run.num_ends or run.children or run.parent is None, "a run that nobody has was kept"
            for key, child in run.children.items():
                assert child.parent is run
                assert len(child.tokens)
                assert key == child.tokens[0]
                assert child.latest in self._ends, "the latest of a run was forgotten"
                waiting.append(child)
        assert not ends, "somebody ends outside of the tree"
        assert num_tokens == self.num_tokens, "tokens are miscounted"

    def _walk(self, start: _Run, tokens: Tokens) -> tuple[_Run, int, int]:
        """Follow tokens from the end of a run: the last run reached, how many of its tokens, and of all, are alike."""
        run, num_within, position = start, len(start.tokens), 0
        spelled, size = tokens.tobytes(), tokens.itemsize  # so that a run that is alike costs one call
        while position < len(tokens):
            child = run.children.get(int(tokens[position]))
            if child is None:
                break
            run = child
            if spelled.startswith(child.tokens.data, size * position):
                num_within = len(child.tokens)
                position += num_within
                continue
            num_within = common_length(child.tokens, tokens[position:])
            position += num_within
            break
        return run, num_within, position

    def _grow(self, start: _Run, tokens: Tokens, number: int, walked: tuple[_Run, int, int]) -> _Run:
        """Get the run that ends with these tokens behind `start`, and note on the way who passes."""
        run, num_within, position = walked
        if num_within < len(run.tokens):
            run = self._split(run, num_within)
        if position < len(tokens):
            fresh = _Run(run, tokens[position:].copy(), number)
            run.children[int(fresh.tokens[0])] = fresh
            self.num_tokens += len(fresh.tokens)
            run = fresh
        passed: _Run | None = run
        while passed is not None and passed is not start:
            passed.latest = max(passed.latest, number)
            passed = passed.parent
        return run

    @staticmethod
    def _split(run: _Run, num_tokens: int) -> _Run:
        """Part a run in two. Who ended with it ends with the second part; returns the first."""
        assert run.parent is not None
        head = _Run(run.parent, run.tokens[:num_tokens].copy(), run.latest)
        run.parent.children[int(head.tokens[0])] = head
        run.tokens = run.tokens[num_tokens:].copy()
        run.parent = head
        head.children[int(run.tokens[0])] = run
        return head
