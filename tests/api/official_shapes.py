"""Hold JSON against the types of the official packages: keys known, required ones there, values of their type.

The packages themselves are lenient: they take unknown keys and wrong types in silence.
"""

import types
import typing
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pydantic import BaseModel

OURS = {"anaphora", "max_model_len"}
"""The keys that are no host's: what the engine did, and a model's context, which other engines tell by this name."""


def complaints(value: Any, annotation: Any, path: str = "") -> list[str]:
    """What is wrong with a value as one of this type. Empty: nothing."""
    return list(_complaints(value, annotation, path))


def _complaints(value: Any, annotation: Any, path: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, typing.TypeAliasType if hasattr(typing, "TypeAliasType") else ()):
        yield from _complaints(value, annotation.__value__, path)
    elif annotation is Any or annotation is object or isinstance(annotation, typing.TypeVar):
        return
    elif origin is typing.Annotated:
        yield from _complaints(value, arguments[0], path)
    elif origin in (typing.Union, types.UnionType):
        yield from min((complaints(value, one, path) for one in arguments), key=len)
    elif origin is typing.Literal:
        if value not in arguments:
            yield f"{path}: {value!r} is none of {arguments}"
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _of_model(value, annotation, path)
    elif origin in (list, typing.List):  # noqa: UP006
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
            return
        for index, one in enumerate(value):
            yield from _complaints(one, arguments[0], f"{path}[{index}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is no object"
            return
        for key, one in value.items():
            yield from _complaints(one, arguments[1], f"{path}.{key}")
    else:
        yield from _of_plain(value, annotation, path)


def _of_model(value: Any, model: type[BaseModel], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: {value!r} is no {model.__name__}"
        return
    names = {field.alias or name: field for name, field in model.model_fields.items()}
    for key in value.keys() - names.keys() - OURS:
        yield f"{path}.{key}: {model.__name__} has no such field"
    for key, field in names.items():
        if key in value:
            yield from _complaints(value[key], field.annotation, f"{path}.{key}")
        elif field.is_required():
            yield f"{path}.{key}: {model.__name__} needs it"


def _of_plain(value: Any, annotation: Any, path: str) -> Iterator[str]:
    if annotation is None or annotation is type(None):
        fits = value is None
    elif annotation is datetime:
        fits = isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    elif annotation is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    elif annotation is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
    elif annotation in (str, bool):
        fits = isinstance(value, annotation)
    else:
        raise AssertionError(f"{path}: no rule for {annotation}")
    if not fits:
        yield f"{path}: {value!r} is no {getattr(annotation, '__name__', annotation)}"
