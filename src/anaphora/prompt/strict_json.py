"""JSON as the standard has it, and no more of it than can be worked on: what is read here can be written again.

Python's own reader takes NaN, halves of characters and any depth; each of them breaks whoever writes or encodes
the value later, far from where it came in.
"""

import json
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
    _check_depth(value)
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise NotJson("an escaped surrogate without its other half is no character") from None
    return value


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def _check_depth(value: Any) -> None:
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


def _refuse_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not JSON")
