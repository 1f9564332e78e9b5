"""Read requests from files: bodies of the OpenAI or Anthropic API, one in a file or one on each line.

A line is a body, or an object with the body as `body` or `request`. Prompts are rendered without a model: the plain
rendering, a token is a word or a sign. Places and reasons are a model's own; numbers of tokens are near them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anaphora.api.anthropic import read_count
from anaphora.api.openai import read_chat
from anaphora.api.responses import read_input_tokens
from anaphora.errors import AnaphoraError, RequestError
from anaphora.explain.reasons import Side
from anaphora.prompt.canonical import Prompt
from anaphora.prompt.render import Encoded, Renderer
from anaphora.prompt.strict_json import values_in

_WORDS = re.compile(r" ?\w+|\s+|[^\w\s]")
_ANTHROPIC_ONLY = re.compile(r'"(cache_control|input_schema|tool_use|tool_result|anthropic_version)"')


class UnreadableRequests(AnaphoraError):
    """A file can't be read, or has no request in it."""


@dataclass(frozen=True, slots=True)
class RequestFile:
    """The requests of one file in order, and a sentence for each that was left out."""

    sides: tuple[Side, ...]
    problems: tuple[str, ...]


class Reader:
    """Reads files. Prompts read by one reader can be compared: the same word is the same token."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._renderer = Renderer(None, self._encode)

    def read(self, path: Path) -> RequestFile:
        """The requests of a file.

        Raises: UnreadableRequests where there are none. Cost: the whole file, rendered, in memory.
        """
        sides: list[Side] = []
        problems: list[str] = []
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableRequests(f"{path} can't be read: {error}.") from None
        for where, value in values_in(text):
            try:
                sides.append(self._side(value))
            except RequestError as error:
                field = f"{error.field}: " if error.field else ""
                problems.append(f"{path.name}, {where}: {field}{error}")
        if not sides:
            raise UnreadableRequests(f"{path} has no request in it. {problems[0] if problems else 'It is empty.'}")
        return RequestFile(tuple(sides), tuple(problems))

    def _side(self, value: Any) -> Side:
        if not isinstance(value, dict):
            raise RequestError("this is no JSON object.")
        inner = value.get("body", value.get("request"))
        body = inner if isinstance(inner, dict) else value
        prompt = _prompt({"model": "", **body})
        scope = {name: str(one[name]) for one, name in ((body, "model"), (value, "tenant")) if one.get(name)}
        return Side(prompt, self._renderer.render(prompt), scope)

    def _encode(self, text: str, *, opens_text: bool) -> Encoded:
        matches = list(_WORDS.finditer(text))
        tokens = [self._ids.setdefault(match[0], len(self._ids)) for match in matches]
        offsets = np.array([match.span() for match in matches], dtype=np.int64).reshape(-1, 2)
        return Encoded(np.array(tokens, dtype=np.int32), offsets)


def _prompt(body: Mapping[str, Any]) -> Prompt:
    """The prompt of a body, by the API whose body it is."""
    if "input" in body:
        return read_input_tokens(dict(body))[1]
    if "messages" not in body:
        raise RequestError("a body without messages or input.")
    if body.get("system") is not None or _ANTHROPIC_ONLY.search(json.dumps(body)):
        return read_count(dict(body)).prompt
    return read_chat(dict(body)).prompt
