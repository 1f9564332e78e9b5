"""System prompts that the operator shares among tenants: files -> the tokens that a request opens with."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anaphora.api.model_text import renderer_of
from anaphora.core.index import Tokens, common_length
from anaphora.engine.engine import Engine
from anaphora.errors import SettingsError
from anaphora.prompt.canonical import Message, Prompt, Text
from anaphora.prompt.render import Renderer
from anaphora.prompt.template import TemplateRefused


def share_prompts(engine: Engine, paths: Sequence[Path]) -> tuple[str, ...]:
    """Declare the system prompts in these files shared. Returns a line for each to tell the operator.

    Raises: SettingsError for a file that can't be read, or with which no request would open.
    """
    renderer = renderer_of(engine.tokenizer)
    lines = []
    for path in paths:
        try:
            text = path.expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"shared_prompts: {path} can't be read: {error}") from error
        tokens = opening_of(renderer, text)
        if not tokens.size:
            raise SettingsError(f"shared_prompts: no request opens with the system prompt in {path}.")
        engine.share(tokens)
        lines.append(f"Shared by all tenants: the system prompt in {path}, {tokens.size:,} tokens.")
    return tuple(lines)


def opening_of(renderer: Renderer, text: str) -> Tokens:
    """The tokens with which every conversation opens that has this system prompt, whatever the user says."""
    try:
        one, other = (
            renderer.render(
                Prompt(
                    messages=(Message("user", (Text(question, "messages[0].content"),), "messages[0]"),),
                    system=(Text(text, "system"),),
                ),
                lambda message: None,
            ).tokens
            for question in ("0 one", "Zwei")
        )
    except TemplateRefused:
        return np.empty(0, dtype=np.int32)
    return one[: common_length(one, other)].astype(np.int32)
