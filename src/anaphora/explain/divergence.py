"""Where two rendered prompts part: the token, the characters, and the part of the request.

    first    <|im_start|>system\\nToday is Monday.<|im_end|>...
    second   <|im_start|>system\\nToday is Tuesday.<|im_end|>...
             tokens alike               ^ text_index       token_index: the token that holds it
             [ template        )[ system ...               path: system, at its character 9

Reuse stops at a token, the cause is a part. A part's change can show later than in the part: where its new text
ends just as the old one went on. So the cause is a part at the differing character that differs, else one behind
or before it; only where none does is it what the template writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from anaphora.core.index import common_length
from anaphora.prompt.locate import Piece
from anaphora.prompt.render import Rendered

EXCERPT_BEFORE, EXCERPT_AFTER = 24, 48
"""Characters of an excerpt: enough to know the place again, few enough for one line for each side."""


ANSWER = "answer"
"""The path of what the model wrote behind a prompt, where that is remembered. What comes back there is the part."""

LONGEST_TOKEN = 64
"""Characters. Texts that are alike for longer than this behind a token that differs were cut differently."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A few characters around a place. `at` is where the place is within `text`."""

    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of two prompts. All indexes count from 0 and hold for both sides."""

    token_index: int  # tokens in front of it are alike
    text_index: int  # characters in front of it are alike
    path: str | None  # the part that differs; None: the template's own text, with no part behind it
    part_index: int | None  # character within the part; None: the difference is not in a part's text
    byte_index: int | None  # the same in bytes of UTF-8
    first: Excerpt
    second: Excerpt


class Written(Protocol):
    """A prompt's text, and which part each stretch of it is from."""

    @property
    def text(self) -> str: ...

    @property
    def pieces(self) -> tuple[Piece, ...]: ...


class Pair:
    """Two prompts of which the second leaves the first, with what both questions about them need.

    Of the first only its text and pieces are looked at.
    """

    def __init__(self, first: Written, second: Rendered) -> None:
        self.first = first
        self.second = second

    @cached_property
    def old(self) -> Mapping[str, str]:
        """What the parts of the first say."""
        return texts_by_path(self.first)

    @cached_property
    def new(self) -> Mapping[str, str]:
        """What the parts of the second say."""
        return texts_by_path(self.second)

    def diverge(self, token_index: int) -> Divergence:
        """Where the second leaves the first, `token_index` being the first token that differs.

        Cost: one pass over the parts.
        """
        first, second = self.first, self.second
        start, stop = second.offsets[token_index].tolist()
        text_index = _first_difference(first.text, second.text, start)
        if text_index > stop + LONGEST_TOKEN:
            text_index = start
        piece = self._culprit(text_index)
        near = piece or _next_piece(second, text_index) or _next_piece(first, text_index)
        part_index = self._within(piece, text_index)
        return Divergence(
            token_index=token_index,
            text_index=text_index,
            path=near.path if near else None,
            part_index=part_index,
            byte_index=None if part_index is None or piece is None else _num_bytes(second.text, piece, part_index),
            first=_excerpt(first.text, text_index),
            second=_excerpt(second.text, text_index),
        )

    def repeated_tokens(self, start: int) -> int:
        """Tokens of the second prompt from `start` on in parts that the first has too: what one early change costs.

        A part that begins in front of `start` is not counted. Cost: one pass over the parts behind.
        """
        first_character = int(self.second.offsets[start, 0])
        behind = [piece for piece in self.second.pieces if piece.path is not None and piece.start >= first_character]
        if not behind:
            return 0
        known = set(self.old.values())
        repeated = [piece for piece in behind if self.new[piece.path or ""] in known]
        starts = self.second.offsets[:, 0]
        begins = np.searchsorted(starts, [piece.start for piece in repeated], side="left")
        ends = np.searchsorted(starts, [piece.stop for piece in repeated], side="left")
        return int((ends - begins).sum())

    def tail_tokens(self, divergence: Divergence) -> int:
        """Tokens of the second prompt at the end of the part that differs, where both sides end that part alike.

        0 where one side lacks the part. Cost: one pass over the part's text.
        """
        old = next((piece for piece in self.first.pieces if piece.path == divergence.path), None)
        new = next((piece for piece in self.second.pieces if piece.path == divergence.path), None)
        if old is None or new is None or divergence.part_index is None:
            return 0
        one = self.first.text[old.start + divergence.part_index : old.stop]
        other = self.second.text[new.start + divergence.part_index : new.stop]
        num_alike = num_common(one[::-1], other[::-1])
        starts = self.second.offsets[:, 0]
        borders = np.searchsorted(starts, [new.stop - num_alike, new.stop], side="left")
        return int(borders[1] - borders[0])

    def rest_of_part(self, divergence: Divergence) -> int:
        """Tokens of the second prompt from the difference to the end of the part that it is in."""
        stop = max((piece.stop for piece in self.second.pieces if piece.path == divergence.path), default=0)
        return max(0, int(np.searchsorted(self.second.offsets[:, 0], stop)) - divergence.token_index)

    def _culprit(self, text_index: int) -> Piece | None:
        """The part at the difference that the sides do not share; else such a part behind or before it."""
        pieces = [piece for piece in (*self.second.pieces, *self.first.pieces) if piece.path]
        here = [piece for piece in pieces if piece.start <= text_index <= piece.stop and self._differs(piece)]
        if here:
            return min(here, key=lambda piece: (piece.path == ANSWER, piece.start))
        behind = (_next_piece(self.second, text_index), _next_piece(self.first, text_index))
        if (found := next((piece for piece in behind if piece is not None and self._differs(piece)), None)) is not None:
            return found
        # A part that only one side names (`system` beside `system[0]`) may say the same: no cause if it ended before.
        before = [piece for piece in pieces if piece.stop < text_index and piece.path in self.old]
        before = [piece for piece in before if piece.path in self.new and self._differs(piece)]
        return min(before, key=lambda piece: piece.start, default=None)

    def _within(self, piece: Piece | None, text_index: int) -> int | None:
        """The character of a part that a place is at: where both sides have it, not behind what they share of it."""
        if piece is None or piece.start > text_index:
            return None
        old, new = text_of(self.first, piece.path), text_of(self.second, piece.path)
        index = min(text_index, piece.stop) - piece.start
        return index if old is None or new is None else min(index, num_common(old, new))

    def _differs(self, piece: Piece) -> bool:
        """Whether the sides do not say the same in the part that a piece is from."""
        return text_of(self.first, piece.path) != text_of(self.second, piece.path)


def diverge(first: Rendered, second: Rendered) -> Divergence | None:
    """Where the second prompt leaves the first. None: one goes on where the other ends, or they are equal.

    Cost: one pass over the tokens and the parts.
    """
    token_index = common_length(first.tokens, second.tokens)
    if token_index == min(len(first.tokens), len(second.tokens)):
        return None
    return Pair(first, second).diverge(token_index)


def texts_by_path(written: Written) -> dict[str, str]:
    """What each part says in the prompt as it was rendered."""
    texts: dict[str, str] = {}
    for piece in written.pieces:
        if piece.path is not None:
            texts[piece.path] = texts.get(piece.path, "") + written.text[piece.start : piece.stop]
    return texts


def text_of(written: Written, path: str | None) -> str | None:
    """What one part says in the prompt as it was rendered. None: there is no such part."""
    found = [written.text[piece.start : piece.stop] for piece in written.pieces if piece.path == path]
    return "".join(found) if found else None


def num_common(one: str, other: str) -> int:
    """Count the characters that open both. Cost: one comparison of the texts, by halves."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _first_difference(first: str, second: str, start: int) -> int:
    """The first differing character. Tokens that differ over equal text count from where they begin."""
    if first[:start] != second[:start]:
        start = 0  # different text may encode to equal tokens
    index = start + num_common(first[start:], second[start:])
    return start if index == len(first) == len(second) else index


def _next_piece(written: Written, text_index: int) -> Piece | None:
    """The first part that ends behind this character."""
    return next((piece for piece in written.pieces if piece.path and piece.stop > text_index), None)


def _num_bytes(text: str, piece: Piece, part_index: int) -> int:
    return len(text[piece.start : piece.start + part_index].encode("utf-8", "surrogatepass"))


def _excerpt(text: str, at: int) -> Excerpt:
    start = max(at - EXCERPT_BEFORE, 0)
    return Excerpt(text[start : at + EXCERPT_AFTER], at - start)
