"""Builders of prompts and a tokenizer of words, so that a token's text can be read off."""

import re
from typing import Any

import numpy as np

from anaphora.explain.reasons import Side
from anaphora.prompt.canonical import CacheMark, Message, Prompt, Text, Tool
from anaphora.prompt.render import Encoded, Renderer

CHATML_OPEN, CHATML_CLOSE = "<|im_start|>", "<|im_end|>\n"


def chatml(messages: Any, *, tools: Any, opens_answer: bool) -> str:
    """ChatML, which knows no tools."""
    said = "".join(f"{CHATML_OPEN}{one['role']}\n{one['content']}{CHATML_CLOSE}" for one in messages)
    return said + (f"{CHATML_OPEN}assistant\n" if opens_answer else "")


def words(text: str, *, opens_text: bool) -> Encoded:
    """One token per word, run of white space, or sign. Equal words are equal tokens."""
    spans = [match.span() for match in re.finditer(r"\w+|\s+|[^\w\s]", text)]
    tokens = [int.from_bytes(text[start:stop].encode()[:3], "big") * 64 + (stop - start) % 64 for start, stop in spans]
    return Encoded(np.array(tokens, dtype=np.int32), np.array(spans, dtype=np.int64).reshape(-1, 2))


def characters(text: str, *, opens_text: bool) -> Encoded:
    places = np.arange(len(text), dtype=np.int64)
    return Encoded(np.array([ord(one) for one in text], dtype=np.int32), np.stack([places, places + 1], axis=1))


RENDERER = Renderer(chatml, characters)


def prompt_of(
    *messages: str | Message, system: str = "Be kind.", tools: tuple[Tool, ...] = (), mark: CacheMark | None = None
) -> Prompt:
    """User and assistant by turns. `mark` is on the system text."""
    said = []
    for index, one in enumerate(messages):
        path = f"messages[{index}]"
        role: Any = "assistant" if index % 2 else "user"
        said.append(Message(role, (Text(one, f"{path}.content"),), path) if isinstance(one, str) else one)
    return Prompt(tuple(said), (Text(system, "system", mark),) if system else (), tools)


def tool(name: str, index: int, *, description: str = "Does it.", schema: str = '{"type": "object"}') -> Tool:
    return Tool(name, description, schema, f"tools[{index}]")


def side(prompt: Prompt, **scope: str) -> Side:
    return Side(prompt, RENDERER.render(prompt), scope)
