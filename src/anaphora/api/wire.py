"""Read JSON bodies strictly and say by path what is wrong with them. Shared by both wire protocols."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from anaphora.errors import RequestError

Wire = TypeVar("Wire", bound="WireModel")


class WireModel(BaseModel):
    """A request body: types are taken at their word, fields nobody here knows are left alone."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


def parse_body(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object.

    Raises: RequestError for anything else, and for text that no tokenizer could take (lone surrogates).
    """
    try:
        text = raw.decode("utf-8-sig")  # strictly: json.loads(bytes) would let encoded surrogates through
        body = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise RequestError(f"The body is not valid UTF-8: {error.reason} at byte {error.start}.") from None
    except UnicodeEncodeError:
        raise RequestError("The body has an escaped surrogate without its other half, which is no character.") from None
    except RecursionError:
        raise RequestError("The body is nested too deeply.") from None
    except ValueError as error:
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
    raise RequestError(f"{path}: {first['msg']}.", field=path)


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


def json_text(value: object) -> str:
    """JSON with keys in the order they came, spaced as models write it."""
    return json.dumps(value, ensure_ascii=False)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
