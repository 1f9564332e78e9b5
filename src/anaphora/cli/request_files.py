"""Read recorded requests from files: one JSON value, a list, or a value on each line, however long the file is."""

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anaphora.api.recorded import Recorded, RecordedReader
from anaphora.errors import AnaphoraError, RequestError
from anaphora.prompt.strict_json import values_in


class UnreadableRequests(AnaphoraError):
    """A file can't be read, or has no request in it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands."""

    path: Path
    where: str  # "line 3", "entry 2"

    @property
    def line(self) -> int:
        """The line that it begins on, as far as that is known."""
        return int(self.where.split()[1]) if self.where.startswith("line") else 1


class RequestFiles:
    """Files read as one log, a request at a time. `problems` has a sentence for each that was left out."""

    def __init__(self, reader: RecordedReader | None = None) -> None:
        self._reader = reader or RecordedReader()
        self.problems: list[str] = []

    def read(self, path: Path) -> Iterator[tuple[Place, Recorded]]:
        """The requests of a file, in order.

        Raises: UnreadableRequests where there are none. Cost: a line at a time in memory, where each line is a value.
        """
        num_found, first_problem = 0, ""
        try:
            for where, value in _values(path):
                try:
                    for recorded in self._reader.read(value):
                        num_found += 1
                        yield Place(path, where), recorded
                except RequestError as error:
                    field = f"{error.field}: " if error.field and not str(error).startswith(error.field) else ""
                    self.problems.append(f"{path.name}, {where}: {field}{error}")
                    first_problem = first_problem or self.problems[-1]
        except (OSError, UnicodeError) as error:
            raise UnreadableRequests(f"{path} can't be read: {error}.") from None
        if not num_found:
            raise UnreadableRequests(f"{path} has no request in it. {first_problem or 'It is empty.'}")


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """The values of a file. Where the first line is a value and not all there is, each line is one.

    Bytes that are no text are written out, so that the lines without them can be read.
    """
    with path.open(encoding=_encoding(path), errors="backslashreplace", newline="\n") as file:
        first = file.readline()
        second = file.readline()
        if second.strip() and _is_value(first):
            yield "line 1", json.loads(first)
            yield "line 2", _value_of(second)
            for number, line in enumerate(file, start=3):
                if line.strip():
                    yield f"line {number}", _value_of(line)
            return
        yield from values_in(first + second + file.read())


def _encoding(path: Path) -> str:
    """UTF-8, unless the first bytes are the mark of UTF-16: some shells write that."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _is_value(line: str) -> bool:
    return _value_of(line) is not None


def _value_of(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
