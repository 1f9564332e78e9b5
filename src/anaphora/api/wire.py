"""Read JSON bodies strictly and say by path what is wrong with them. Shared by both wire protocols."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from anaphora.errors import RequestError
from anaphora.prompt.strict_json import NotJson, read_json

Wire = TypeVar("Wire", bound="WireModel")


class WireModel(BaseModel):
    """A request body: types are taken at their word, fields nobody here knows are left alone.

    A field of several types is `Any` and read by hand: the path of an error would name the type instead of the field.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


def parse_body(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object.

    Raises: RequestError for anything else, and for text that no tokenizer could take (lone surrogates).
    """
    try:
        body = read_json(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RequestError(f"The body is not valid UTF-8: {error.reason} at byte {error.start}.") from None
    except NotJson as error:
        raise RequestError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise RequestError("The body must be a JSON object.")
    return body


def validated(model: type[Wire], body: Mapping[str, Any]) -> Wire:
    """The body as this request model.

    Raises: RequestError naming the first field that is wrong.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    path = path_of(first["loc"])
    problem = "Input should be an object" if first["type"] in _OBJECT_WANTED else first["msg"]
    raise RequestError(f"{path}: {problem}.", field=path)


_OBJECT_WANTED = ("dict_type", "model_type")
"""Errors that are told in JSON's words, not in Python's."""


def path_of(location: tuple[int | str, ...]) -> str:
    """A location such as ("messages", 3, "role") as `messages[3].role`."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def refuse(path: str, problem: str) -> NoReturn:
    """Refuse the request because of what stands at `path`."""
    raise RequestError(f"{path}: {problem}", field=path)


def want_object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse(path, "must be an object.")
    return value


def want_list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        refuse(path, "must be a list.")
    return value


def want_text(value: object, path: str) -> str:
    if not isinstance(value, str):
        refuse(path, "must be a string.")
    return value


def optional_text(value: Mapping[str, Any], name: str, path: str) -> str:
    """A string that may be left out of the object at `path`; then it is empty."""
    text = value.get(name)
    return "" if text is None else want_text(text, f"{path}.{name}")


def yes_or_no(value: Mapping[str, Any], name: str, path: str) -> bool:
    """A yes or no that may be left out of the object at `path`; then it is no."""
    flag = value.get(name)
    if flag is not None and not isinstance(flag, bool):
        refuse(f"{path}.{name}", "must be true or false.")
    return flag is True


def settled_text(value: object) -> str | None:
    """JSON that is the same for the same value, in whichever order its keys came. None: not given."""
    return None if value is None else json.dumps(value, sort_keys=True)


def json_text(value: object) -> str:
    """JSON with keys in the order they came, spaced as models write it."""
    return json.dumps(value, ensure_ascii=False)
