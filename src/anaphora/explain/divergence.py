"""Where two rendered prompts part: the token, the characters, and the part of the request.

    first    <|im_start|>system\\nToday is Monday.<|im_end|>...
    second   <|im_start|>system\\nToday is Tuesday.<|im_end|>...
             tokens alike               ^ text_index       token_index: the token that holds it
             [ template        )[ system ...               path: system, at its character 9

Reuse stops at a token, the cause is a part. A part's change can show later than in the part: where its new text
ends just as the old one went on. So the cause is a part at the differing character that differs, else one behind
or before it; only where none does is it what the template writes.
"""

from dataclasses import dataclass

import numpy as np

from anaphora.core.index import common_length
from anaphora.prompt.locate import Piece
from anaphora.prompt.render import Rendered

EXCERPT_BEFORE, EXCERPT_AFTER = 24, 48
"""Characters of an excerpt: enough to know the place again, few enough for one line for each side."""


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
    first: Excerpt
    second: Excerpt


def diverge(first: Rendered, second: Rendered) -> Divergence | None:
    """Where the second prompt leaves the first. None: one goes on where the other ends, or they are equal.

    Cost: one pass over the tokens and the parts.
    """
    token_index = common_length(first.tokens, second.tokens)
    if token_index == min(len(first.tokens), len(second.tokens)):
        return None
    text_index = _first_difference(first, second, token_index)
    piece = _culprit(first, second, text_index)
    near = piece or _next_piece(second, text_index) or _next_piece(first, text_index)
    return Divergence(
        token_index=token_index,
        text_index=text_index,
        path=near.path if near else None,
        part_index=min(text_index, piece.stop) - piece.start if piece and piece.start <= text_index else None,
        first=_excerpt(first.text, text_index),
        second=_excerpt(second.text, text_index),
    )


def repeated_tokens(first: Rendered, second: Rendered, start: int) -> int:
    """Tokens of the second prompt from `start` on in parts that the first has too: what one early change costs.

    A part that begins in front of `start` is not counted. Cost: one pass over the parts.
    """
    known = set(texts_by_path(first).values())
    texts = texts_by_path(second)
    spans = (span for span in second.token_spans() if span.path is not None and span.start >= start)
    return sum(span.stop - span.start for span in spans if texts[span.path or ""] in known)


def tail_tokens(first: Rendered, second: Rendered, divergence: Divergence) -> int:
    """Tokens of the second prompt at the end of the part that differs, where both sides end that part alike.

    0 where one side lacks the part. Cost: one pass over the part's text.
    """
    old = next((piece for piece in first.pieces if piece.path == divergence.path), None)
    new = next((piece for piece in second.pieces if piece.path == divergence.path), None)
    if old is None or new is None or divergence.part_index is None:
        return 0
    one = first.text[old.start + divergence.part_index : old.stop]
    other = second.text[new.start + divergence.part_index : new.stop]
    differing = (index for index, (a, b) in enumerate(zip(one[::-1], other[::-1], strict=False)) if a != b)
    num_alike = next(differing, min(len(one), len(other)))
    starts = second.offsets[:, 0]
    borders = np.searchsorted(starts, [new.stop - num_alike, new.stop], side="left")
    return int(borders[1] - borders[0])


def texts_by_path(rendered: Rendered) -> dict[str, str]:
    """What each part says in the prompt as it was rendered."""
    texts: dict[str, str] = {}
    for piece in rendered.pieces:
        if piece.path is not None:
            texts[piece.path] = texts.get(piece.path, "") + rendered.text[piece.start : piece.stop]
    return texts


def _first_difference(first: Rendered, second: Rendered, token_index: int) -> int:
    """The first differing character. Tokens that differ over equal text count from where they begin."""
    start = min(int(first.offsets[token_index, 0]), int(second.offsets[token_index, 0]))
    if first.text[:start] != second.text[:start]:
        start = 0  # different text may encode to equal tokens
    for index, (one, other) in enumerate(zip(first.text[start:], second.text[start:], strict=False), start):
        if one != other:
            return index
    length = min(len(first.text), len(second.text))
    return length if len(first.text) != len(second.text) else start


def _culprit(first: Rendered, second: Rendered, text_index: int) -> Piece | None:
    """The part at the difference that the sides do not share; else such a part behind or before it."""
    old, new = texts_by_path(first), texts_by_path(second)
    pieces = [piece for piece in (*second.pieces, *first.pieces) if piece.path]
    differing = [piece for piece in pieces if old.get(piece.path or "") != new.get(piece.path or "")]
    here = [piece for piece in differing if piece.start <= text_index <= piece.stop]
    if here:
        return min(here, key=lambda piece: piece.start)
    behind = (_next_piece(second, text_index), _next_piece(first, text_index))
    if (found := next((piece for piece in behind if piece in differing), None)) is not None:
        return found
    # A part that only one side names (`system` beside `system[0]`) may say the same: no cause if it ended before.
    before = [piece for piece in differing if piece.stop < text_index and piece.path in old and piece.path in new]
    return min(before, key=lambda piece: piece.start, default=None)


def _next_piece(rendered: Rendered, text_index: int) -> Piece | None:
    """The first part that ends behind this character."""
    return next((piece for piece in rendered.pieces if piece.path and piece.stop > text_index), None)


def _excerpt(text: str, at: int) -> Excerpt:
    start = max(at - EXCERPT_BEFORE, 0)
    return Excerpt(text[start : at + EXCERPT_AFTER], at - start)
