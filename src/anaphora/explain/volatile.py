"""Find what changes from call to call by its look: times, dates, UUIDs, random ids, numbers.

    "Session 7f9c2a1be4d0, 2026-12-01T10:00:00Z, step 4"
             [nonce     )  [time              )       [number)

A look is a guess. It names a change that was seen between two prompts well; in one prompt alone it is advice.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

VolatileKind = Literal["time", "date", "uuid", "nonce", "number"]

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[APap]\.?[Mm]\b\.?)?(?:\s?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2})(?!\w))?"
_DAY = (
    r"\d{4}-\d{2}-\d{2}|\d{4}/\d{1,2}/\d{1,2}|\d{1,2}[/.]\d{1,2}[/.]\d{4}"
    rf"|{_MONTH}\s\d{{1,2}}(?:st|nd|rd|th)?,?\s\d{{4}}|\d{{1,2}}(?:st|nd|rd|th)?\s{_MONTH},?\s\d{{4}}"
)

_ID_NAMES = r"(?i:cch|nonce|salt|(?:request|req|session|trace|run|call|turn)[_-]?id)"

_LOOKS: tuple[tuple[VolatileKind, str], ...] = (
    ("uuid", r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),
    ("time", rf"(?<![\w.])(?:{_DAY})(?:T|,?\s(?:at\s)?){_CLOCK}"),
    ("date", rf"(?<![\w.])(?:{_DAY})(?!\w)"),
    ("time", r"(?<![\w.])1\d{9}(?:\d{3})?(?:\.\d+)?(?!\w)"),  # seconds or milliseconds since 1970
    ("time", r"(?<![\w.:])[0-2]?\d:[0-5]\d(?::[0-5]\d)?(?![\w:])"),
    ("nonce", rf"(?<![\w-])(?:{_ID_NAMES})[\"']?\s?[=:]\s?[\"']?(?P<value>[\w-]{{4,}})"),
    ("nonce", r"(?<![\w-])[A-Za-z]{0,12}[_-]?(?=[A-Za-z0-9]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{12,}(?!\w)"),
    ("number", r"(?<![\w.])\d+(?:\.\d+)?(?!\w)"),
)
_BARE_NONCE = len(_LOOKS) - 2
"""The look that is told from a name by its digits alone."""

_BEGINS = rf"(?<!\w)(?=\w*\d|[A-Za-z]+-\w*\d|{_ID_NAMES}|{_MONTH}\s)"
"""Every look begins a word and has a digit near: most words of a text are passed over by this alone."""

_PATTERN = re.compile(
    f"{_BEGINS}(?:" + "|".join(f"(?P<{kind}{index}>{look})" for index, (kind, look) in enumerate(_LOOKS)) + ")"
)
_DIGITS = re.compile(r"\d+")
_MAX_LENGTH = 128
"""Characters in front of a place where a value that holds it may begin, and behind it where that may end."""
_MAX_BEFORE = 40
"""Letters that a value may have in front of its first digit."""

_MIN_DIGITS = 3
"""A nonce of twelve letters has four digits or so; names such as `temperature2m` have one or two."""


@dataclass(frozen=True, slots=True)
class Volatile:
    """`text[start:stop]` looks like something that is new in every call, or every day."""

    kind: VolatileKind
    start: int
    stop: int


def find_volatile(text: str, start: int = 0, stop: int | None = None) -> Iterator[Volatile]:
    """Everything in `text[start:stop]` with such a look, in order, without overlaps.

    Cost: one pass for digits, which every look has, and a regular expression near each; as far as the caller asks.
    """
    stop = len(text) if stop is None else min(stop, len(text))
    place = start
    while (digit := _DIGITS.search(text, place, stop)) is not None:
        begin, end = max(place, digit.start() - _MAX_BEFORE), min(stop, digit.start() + _MAX_LENGTH)
        match = _PATTERN.search(text, begin, end)
        if match is None or match.end() <= digit.start():
            place = digit.end()
            continue
        place = match.end()
        assert match.lastgroup is not None, "every alternative is named"
        look = int(match.lastgroup[-1])
        kind = _LOOKS[look][0]
        if look != _BARE_NONCE or sum(letter.isdigit() for letter in match[0]) >= _MIN_DIGITS:
            first, last = match.span("value") if match["value"] is not None else match.span()
            yield Volatile(kind, first, last)


def volatile_at(text: str, place: int) -> Volatile | None:
    """The value that holds this place or ends there, or None."""
    for found in find_volatile(text, max(place - _MAX_LENGTH, 0), place + _MAX_LENGTH):
        if found.stop >= place:
            return found if found.start <= place else None
    return None
