"""A transformers tokenizer as the prompt room wants it: a chat template and an encoder."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jinja2.exceptions import TemplateError

from anaphora.prompt.render import Encoded, Renderer
from anaphora.prompt.template import TemplateRefused


class TokenizerTemplate:
    """The chat template that came with a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None, opens_answer: bool
    ) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tools=tools, tokenize=False, add_generation_prompt=opens_answer
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            # A template is a program of the model's author; whatever it stumbles over, it refused this input.
            raise TemplateRefused(str(error)) from error
        assert isinstance(text, str)
        return text


class TokenizerEncoder:
    """The tokenizer itself. Safe to use from several threads: nothing is configured per call."""

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer

    def __call__(self, text: str, *, opens_text: bool) -> Encoded:
        encoding = self._backend.encode(text, add_special_tokens=opens_text)
        return Encoded(
            tokens=np.asarray(encoding.ids, dtype=np.int32),
            offsets=np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2),
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens, special ones included."""
        text = self._backend.decode(list(tokens), skip_special_tokens=False)
        assert isinstance(text, str)
        return text


def writes_as_text(tokenizer: Any, text: str) -> bool:
    """Whether none of these tokens is a special one, which no answer shows."""
    special = set(tokenizer.all_special_ids)
    special |= {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return not special & set(TokenizerEncoder(tokenizer)(text, opens_text=False).tokens.tolist())


def renderer_of(tokenizer: Any) -> Renderer:
    """The renderer for a model's tokenizer; plain text where it has no chat template."""
    template = TokenizerTemplate(tokenizer) if tokenizer.chat_template else None
    return Renderer(template, TokenizerEncoder(tokenizer))
