"""Find each part again in the rendered text.

The template is asked a second time with a marker in place of every part's text. What it writes between
the markers is its own; walking those fillers along the real text puts every part in its place exactly. Where
that fails (a template that looks into the text and decides), parts are searched in order and say so, and a
part that can't be found is named as not located: never a silent guess.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MARK_OPEN, MARK_CLOSE = "\ue000", "\ue001"
_MARKER = re.compile(f"{MARK_OPEN}(\\d+){MARK_CLOSE}")


@dataclass(frozen=True, slots=True)
class Piece:
    """`text[start:stop]` comes from `path`; None: it is the template's own."""

    start: int
    stop: int
    path: str | None
    how: Literal["exact", "search"] = "exact"


@dataclass(frozen=True, slots=True)
class Sought:
    """A part to be found. `forms` are the ways it may have been written, likeliest first."""

    path: str
    forms: tuple[str, ...]


def marker(index: int) -> str:
    """What stands in for the part number `index` in the second rendering."""
    return f"{MARK_OPEN}{index}{MARK_CLOSE}"


def walk(text: str, marked: str, parts: Sequence[tuple[str, str]]) -> tuple[Piece, ...] | None:
    """Place every (path, text) of `parts` exactly, or None where the two renderings don't agree.

    A template may strip a part's white space at either end.
    """
    bits = _MARKER.split(marked)
    fillers, order = bits[::2], [int(index) for index in bits[1::2]]
    if order != list(range(len(parts))) or not text.startswith(fillers[0]):
        return None
    pieces: list[Piece] = []
    position = len(fillers[0])
    for (path, part), filler in zip(parts, fillers[1:], strict=True):
        is_last = len(pieces) == len(parts) - 1
        for form in (part, part.rstrip(), part.lstrip(), part.strip()):
            end = position + len(form)
            fits = text[end:] == filler if is_last else text.startswith(filler, end)
            if fits and text.startswith(form, position):
                break
        else:
            return None
        pieces.append(Piece(position, end, path))
        position = end + len(filler)
    return tuple(pieces)


def search(text: str, sought: Sequence[Sought], *, start: int = 0, stop: int | None = None) -> list[Piece]:
    """Find parts one after another within `text[start:stop]`. Those not found are left out."""
    pieces: list[Piece] = []
    for part in sought:
        for form in part.forms:
            at = text.find(form, start, stop) if form else -1
            if at >= 0:
                start = at + len(form)
                pieces.append(Piece(at, start, part.path, "search"))
                break
    return pieces


def cover(length: int, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The pieces, with the template's own text between them, from 0 to `length` without a gap."""
    covered: list[Piece] = []
    position = 0
    for piece in sorted(pieces, key=lambda piece: (piece.start, piece.stop)):
        assert piece.start >= position, "pieces overlap"
        if piece.start > position:
            covered.append(Piece(position, piece.start, None))
        covered.append(piece)
        position = piece.stop
    if position < length:
        covered.append(Piece(position, length, None))
    return tuple(covered)
