"""What a Messages request says about caching: its marks, its automatic mark, the settings in its prefix. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from anaphora.api.layouts import layout_of
from anaphora.api.wire import refuse, settled_text
from anaphora.contract.anthropic import (
    AnthropicRules,
    AnthropicSettings,
    Breakpoint,
    Ttl,
    breakpoints_of,
    check_order,
    levels_of,
)
from anaphora.contract.layout import Layout
from anaphora.prompt.canonical import Part, Prompt, Tool
from anaphora.prompt.render import Rendered


@dataclass(frozen=True, slots=True)
class MarkedPrompt:
    """A prompt with its breakpoints, ready for the ledger."""

    layout: Layout
    breakpoints: tuple[Breakpoint, ...]


def marked_prompt(body: dict[str, Any], prompt: Prompt, rendered: Rendered, rules: AnthropicRules) -> MarkedPrompt:
    """The marks of a request that has been read and rendered.

    A mark inside a tool's result counts among the four and stands at that result's end.
    Raises: RequestError for marks that are not allowed, by path.
    """
    inside = dict(_marks_inside(body))
    _refuse_what_cant_be_marked(body)

    def ttl_of(part: Tool | Part) -> str | None:
        if part.mark is not None:
            return part.mark.ttl or "5m"
        return inside[part.path][-1][1] if part.path in inside else None

    layout = layout_of(prompt, rendered, levels_of(_settings(body), rules), ttl_of)
    marked = {block.path for block in layout.blocks if block.ttl is not None}
    marks = list(_all_marks(prompt, inside))
    num_more = len(marks) - len(marked)
    automatic = body.get("cache_control")
    ttl: Ttl | None = None if automatic is None else "1h" if automatic.get("ttl") == "1h" else "5m"
    breakpoints = breakpoints_of(layout.blocks, ttl, rules, num_more=num_more)
    check_order(marks)
    return MarkedPrompt(layout, breakpoints)


def _all_marks(prompt: Prompt, inside: Mapping[str, list[tuple[str, str]]]) -> Iterator[tuple[str, str]]:
    """Every mark of the client's, in prefix order: the path of what is marked, and the lifetime."""
    for part in prompt.parts:
        yield from inside.get(part.path, ())
        if part.mark is not None:
            yield part.path, part.mark.ttl or "5m"


def _settings(body: dict[str, Any]) -> AnthropicSettings:
    choice, output = body.get("tool_choice") or {}, body.get("output_config") or {}
    named = {name: choice.get(name) for name in ("type", "name") if choice.get(name) is not None}
    return AnthropicSettings(
        tool_choice=None if named in ({}, {"type": "auto"}) else json.dumps(named),
        disables_parallel_tools=choice.get("disable_parallel_tool_use") is True,
        thinking=settled_text(body.get("thinking")),
        effort=None if output.get("effort") is None else str(output["effort"]),
        task_budget=settled_text(output.get("task_budget")),
        output_format=settled_text(output.get("format") or body.get("output_format")),
        speed=None if body.get("speed") is None else str(body["speed"]),
        has_citations=any(_cites(block) for _, block in _blocks(body)),
    )


def _cites(block: dict[str, Any]) -> bool:
    citations = block.get("citations")
    return isinstance(citations, dict) and citations.get("enabled") is True


def _blocks(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Content blocks of the messages, each with its path. The body has been validated."""
    for index, message in enumerate(body["messages"]):
        content = message.get("content")
        for number, block in enumerate(content if isinstance(content, list) else ()):
            yield f"messages[{index}].content[{number}]", block


def _marks_inside(body: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Marks inside tools' results, by the result's path: the path of what is marked, and the lifetime."""
    for path, block in _blocks(body):
        content = block.get("content")
        if block.get("type") == "tool_result" and isinstance(content, list):
            marks = [
                (f"{path}.content[{number}]", one["cache_control"].get("ttl") or "5m")
                for number, one in enumerate(content)
                if one.get("cache_control") is not None
            ]
            if marks:
                yield path, marks


def _refuse_what_cant_be_marked(body: dict[str, Any]) -> None:
    for path, block in _blocks(body):
        if block.get("type") in ("thinking", "redacted_thinking") and block.get("cache_control") is not None:
            refuse(f"{path}.cache_control", "thinking blocks can't be marked; mark the block behind them.")
    for index, message in enumerate(body["messages"]):
        content = message.get("content")
        is_marked = isinstance(content, list) and any(block.get("cache_control") is not None for block in content)
        if message.get("clear_at") is not None and is_marked:
            refuse(f"messages[{index}].clear_at", "a message that is cleared can't carry cache_control.")
