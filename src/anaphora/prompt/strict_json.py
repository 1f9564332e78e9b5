"""JSON as the standard has it, and no more of it than can be worked on: what is read here can be written again;
and files of JSON, whole or line by line.

Python's own reader takes NaN, halves of characters and any depth; each of them breaks whoever writes or encodes
the value later, far from where it came in.
"""

import json
from collections.abc import Iterator
from typing import Any, NoReturn

MAX_DEPTH = 128
"""Levels of lists and objects in each other. Templates and writers call themselves for each level."""


class NotJson(ValueError):
    """The text is not JSON, or nested too deeply. The message says what and where."""


def read_json(text: str) -> Any:
    """The value that a JSON text stands for.

    Raises: NotJson.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (NotJson, json.JSONDecodeError) as error:
        raise NotJson(str(error)) from None
    except ValueError:
        raise NotJson("a number has too many digits") from None
    except RecursionError:
        raise NotJson(_TOO_DEEP) from None
    check_depth(value)
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise NotJson("an escaped surrogate without its other half is no character") from None
    return value


def check_depth(value: Any) -> None:
    """Make sure that whoever calls itself for each level of a value can.

    Raises: NotJson. Cost: one look at each list and object in it.
    """
    level = [value] if isinstance(value, dict | list) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise NotJson(_TOO_DEEP)
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]


def values_in(text: str) -> Iterator[tuple[str, Any]]:
    """Each value of a file and where it stands: one JSON value, the entries of a list, or a value on each line.

    A line that is no JSON gives None. Lines end at line feeds alone: others may stand within a JSON string.
    """
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"line {number}", _value_of(line)
        return
    if isinstance(whole, list):
        yield from ((f"entry {number}", value) for number, value in enumerate(whole, start=1))
    else:
        yield "line 1", whole


def _value_of(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def _refuse_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not JSON")
