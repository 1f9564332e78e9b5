"""Render a canonical prompt to text, then to tokens, and keep the map between tokens, text and parts.

Prompt --fit--> turns --template--> text --encoder--> tokens
                  └── locate ──> pieces: [start, stop) of the text -> path of the part

  text     <|im_start|>system\\nYou are kind.<|im_end|>\\n<|im_start|>user\\nHi<|im_end|>\\n...
  pieces   [   template       )[system[0]   )[  template                  )[messages[0].content[0]) ...
  tokens   [ 0 1 2            )[3 4 5 6     )[ 7 8 9 10 11                )[12                    ) ...
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from anaphora.prompt.answer_grammar import callable_tools
from anaphora.prompt.canonical import Prompt, ToolChoice
from anaphora.prompt.fit import Recall, Turn, fit, messages_of, no_recall, tool_entry, tool_json
from anaphora.prompt.locate import Piece, Sought, cover, marker, search, walk
from anaphora.prompt.template import (
    PLAIN_STOPS,
    PLAIN_TRAITS,
    ChatTemplate,
    TemplateTraits,
    plain_template,
    probe,
)
from anaphora.prompt.tool_calls import write_call, write_opening

_CUT = "\ue002"
"""Stands at the end of an answer that is to be continued; what the template adds after it is cut off."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Tokens of a text and where each stands in it."""

    tokens: NDArray[np.int32]  # [num_tokens]
    offsets: NDArray[np.int64]  # [num_tokens, 2]: start and stop, in characters


class Encoder(Protocol):
    """Turn text into tokens. `opens_text`: with the tokens a model wants in front of raw text."""

    def __call__(self, text: str, *, opens_text: bool) -> Encoded: ...


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens [start, stop) belong to `path`; None: to the template. A token belongs to where it starts."""

    start: int
    stop: int
    path: str | None


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as the model sees it."""

    text: str
    tokens: NDArray[np.int32]  # [num_tokens]
    offsets: NDArray[np.int64]  # [num_tokens, 2]
    pieces: tuple[Piece, ...]  # cover the text, in order
    unlocated: tuple[str, ...] = ()  # paths of parts that were not found in the text
    opening: str = ""  # the beginning of the answer that was put in front of the model (a forced call)
    grammar: str | None = None  # what the answer has to be (`answer_grammar.py`)
    stops: tuple[str, ...] = field(default=())  # where the answer ends besides the model's own end tokens

    def token_spans(self) -> tuple[TokenSpan, ...]:
        """Whose each run of tokens is, in order, from the first token to the last.

        Cost: one binary search per piece.
        """
        borders = np.searchsorted(self.offsets[:, 0], [piece.start for piece in self.pieces], side="left").tolist()
        borders = [0, *borders[1:], len(self.tokens)]
        return tuple(
            TokenSpan(start, stop, piece.path)
            for piece, start, stop in zip(self.pieces, borders[:-1], borders[1:], strict=True)
            if stop > start
        )


class Renderer:
    """Render prompts for one model. Safe to call from several threads if template and encoder are."""

    def __init__(self, template: ChatTemplate | None, encoder: Encoder) -> None:
        self._template: ChatTemplate = template or plain_template
        self._stops = () if template else PLAIN_STOPS
        self._encoder = encoder
        self.traits: TemplateTraits = probe(template) if template else PLAIN_TRAITS

    def render(self, prompt: Prompt, recall: Recall = no_recall) -> Rendered:
        """The prompt as tokens, ready to be answered or continued.

        Raises: TemplateRefused where the template can't render this conversation.
        Cost: two passes of the template, one of the tokenizer.
        """
        turns = fit(prompt, self.traits, recall)
        tools = [tool_entry(tool) for tool in prompt.tools] if self.traits.knows_tools and prompt.tools else None
        contents = [turn.content for turn in turns]
        body = self._apply(prompt, turns, contents, tools)
        parts, marked_contents = _mark(turns)
        marked = self._apply(prompt, turns, marked_contents, tools)
        pieces, unlocated = _locate(prompt, self.traits, turns, (body, marked, parts))
        opening = _opening(prompt, self.traits)
        text = body + opening
        if opening:
            pieces.append(Piece(len(body), len(text), "tool_choice"))
        encoded = self._encoder(text, opens_text=False)
        return Rendered(
            text=text,
            tokens=encoded.tokens,
            offsets=encoded.offsets,
            pieces=cover(len(text), pieces),
            unlocated=unlocated,
            opening=opening,
            stops=self._stops,
        )

    def encode_text(self, text: str) -> Encoded:
        """Tokens of raw text, as `/v1/completions` takes it."""
        return self._encoder(text, opens_text=True)

    def _apply(
        self,
        prompt: Prompt,
        turns: Sequence[Turn],
        contents: Sequence[str],
        tools: Sequence[dict[str, object]] | None,
    ) -> str:
        if not prompt.continues_answer:
            return self._template(messages_of(turns, self.traits, contents), tools=tools, opens_answer=True)
        contents = [*contents[:-1], contents[-1] + _CUT]
        text = self._template(messages_of(turns, self.traits, contents), tools=tools, opens_answer=False)
        return text[: text.rindex(_CUT)]


def _opening(prompt: Prompt, traits: TemplateTraits) -> str:
    """The beginning of the call that `tool_choice` demands."""
    choice: ToolChoice = prompt.tool_choice
    if choice.mode not in ("any", "tool") or not prompt.tools or prompt.continues_answer:
        return ""
    tools = callable_tools(prompt)
    return write_opening(tools[0].name if len(tools) == 1 else None, traits.call_style)


def _mark(turns: Sequence[Turn]) -> tuple[list[tuple[str, str]], list[str]]:
    """The named parts of the turns in order, and the turns' contents with markers in their place."""
    parts: list[tuple[str, str]] = []
    contents: list[str] = []
    for turn in turns:
        content = ""
        for segment in turn.segments:
            if segment.path is None or not segment.text:
                content += segment.text
            else:
                content += marker(len(parts))
                parts.append((segment.path, segment.text))
        contents.append(content)
    return parts, contents


def _locate(
    prompt: Prompt,
    traits: TemplateTraits,
    turns: Sequence[Turn],
    rendering: tuple[str, str, list[tuple[str, str]]],
) -> tuple[list[Piece], tuple[str, ...]]:
    """Pieces for every part that can be found, and the paths of those that can't."""
    text, marked, parts = rendering
    walked = walk(text, marked, parts) if parts else ()
    gaps = _sought_in_gaps(prompt, traits, turns)
    if walked is None:
        ordered = [Sought(path, (part, part.strip())) for path, part in parts]
        pieces = search(text, ordered)
    else:
        pieces = list(walked)
        for gap, sought in gaps.items():
            start = walked[gap - 1].stop if gap else 0
            stop = walked[gap].start if gap < len(walked) else len(text)
            pieces += search(text, sought, start=start, stop=stop)
    found = {piece.path for piece in pieces}
    wanted = [path for path, _ in parts] + [part.path for sought in gaps.values() for part in sought]
    return pieces, tuple(path for path in wanted if path not in found)


def _sought_in_gaps(prompt: Prompt, traits: TemplateTraits, turns: Sequence[Turn]) -> dict[int, list[Sought]]:
    """Parts that the template itself writes, by the number of marked parts in front of them."""
    gaps: dict[int, list[Sought]] = {}
    if traits.knows_tools and prompt.tools:
        gaps[0] = [Sought(tool.path, (tool_json(tool),)) for tool in prompt.tools]
    num_parts = 0
    for turn in turns:
        if turn.reasoning is not None:
            gaps.setdefault(num_parts, []).append(Sought(turn.reasoning.path, (turn.reasoning.text,)))
        num_parts += sum(1 for segment in turn.segments if segment.path is not None and segment.text)
        for call in turn.calls:
            whole = write_call(call.name, call.arguments, traits.call_style)
            gaps.setdefault(num_parts, []).append(Sought(call.path, (whole, call.arguments)))
    return gaps
