"""What a Chat Completions or Responses request says on caching: options, breakpoints, settings in its prefix. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anaphora.api.layouts import layout_of
from anaphora.api.responses import Item, marked_parts
from anaphora.api.wire import refuse, settled_text, want_object, want_text
from anaphora.contract.layout import Layout, Levels
from anaphora.contract.openai import (
    LIFETIMES,
    LONG_RETENTION,
    BreakpointRules,
    CacheOptions,
    MeasuredRules,
    OpenAIRules,
    OpenAISettings,
    check_retention,
    prefix_settings,
)
from anaphora.prompt.canonical import Part, Prompt, Tool
from anaphora.prompt.render import Rendered


@dataclass(frozen=True, slots=True)
class CacheWords:
    """Where a request of one endpoint says what."""

    body: Mapping[str, Any]
    settings: OpenAISettings
    marks: Iterable[tuple[Mapping[str, Any], str, str]]  # parts that may be marked: the part, its path, its block's
    option_ttls: tuple[str, ...]  # lifetimes that may be asked for in prompt_cache_options
    part_ttls: tuple[str, ...] = tuple(LIFETIMES)


@dataclass(frozen=True, slots=True)
class KeyedPrompt:
    """A prompt with its cache options, ready for a ledger."""

    options: CacheOptions
    levels: Levels
    layout: Layout | None  # where breakpoints count


def chat_words(body: Mapping[str, Any], rules: OpenAIRules) -> CacheWords:
    """The words of a Chat Completions request that has been read."""
    settings = OpenAISettings(
        parallel_tools=body.get("parallel_tool_calls") is not False,
        text_format=settled_text(body.get("response_format")),
        effort=settled_text(body.get("reasoning_effort")),
        verbosity=settled_text(body.get("verbosity")),
        service_tier=settled_text(body.get("service_tier")),
    )
    takes_long = not isinstance(rules, BreakpointRules) or rules.chat_takes_12h
    return CacheWords(body, settings, _chat_parts(body), ("30m",), ("30m", "12h") if takes_long else ("30m",))


def responses_words(body: Mapping[str, Any], items: Sequence[Item]) -> CacheWords:
    """The words of a Responses request that has been read."""
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    settings = OpenAISettings(
        parallel_tools=body.get("parallel_tool_calls") is not False,
        text_format=settled_text(text.get("format")),
        effort=settled_text(reasoning.get("effort")),
        verbosity=settled_text(text.get("verbosity")),
        service_tier=settled_text(body.get("service_tier")),
    )
    return CacheWords(body, settings, marked_parts(items), tuple(LIFETIMES))


def keyed_prompt(words: CacheWords, prompt: Prompt, rendered: Rendered, rules: OpenAIRules) -> KeyedPrompt:
    """The cache options of a request that has been read and rendered.

    Where every reused token counts they mean nothing for the usage, and are left alone; a long retention is a wish that
    the engine may still grant.
    Raises: RequestError for options the rules don't know, by path.
    """
    if isinstance(rules, MeasuredRules):
        wished = words.body.get("prompt_cache_retention")
        return KeyedPrompt(CacheOptions(retention=wished if wished == LONG_RETENTION else None), Levels(), None)
    check_retention(_retention(words.body), rules)
    options, levels = _options(words), Levels(tools=prefix_settings(words.settings))
    if not isinstance(rules, BreakpointRules):
        return KeyedPrompt(options, levels, None)
    ttls = _breakpoints(words, options)

    def ttl_of(part: Tool | Part) -> str | None:
        return ttls.get(part.path)

    return KeyedPrompt(options, levels, layout_of(prompt, rendered, levels, ttl_of))


def _options(words: CacheWords) -> CacheOptions:
    value = words.body.get("prompt_cache_options")
    given = {} if value is None else want_object(value, "prompt_cache_options")
    mode, ttl = given.get("mode") or "implicit", given.get("ttl") or "30m"
    if mode not in ("implicit", "explicit"):
        refuse("prompt_cache_options.mode", 'must be "implicit" or "explicit".')
    if ttl not in words.option_ttls:
        refuse("prompt_cache_options.ttl", f"must be one of {', '.join(words.option_ttls)} here.")
    return CacheOptions(
        mode="explicit" if mode == "explicit" else "implicit",
        ttl=ttl,
        key=_optional(words.body, "prompt_cache_key"),
        retention=_retention(words.body),
    )


def _breakpoints(words: CacheWords, options: CacheOptions) -> dict[str, str]:
    """Lifetimes of the explicit breakpoints, by the path of the block that they stand at the end of.

    A tool's output is one block, however many parts it was sent in.
    """
    ttls: dict[str, str] = {}
    for part, path, block_path in words.marks:
        mark = part.get("prompt_cache_breakpoint")
        if mark is None:
            continue
        here = f"{path}.prompt_cache_breakpoint"
        if want_object(mark, here).get("mode", "explicit") != "explicit":
            refuse(f"{here}.mode", 'must be "explicit".')
        ttl = mark.get("ttl") or options.ttl
        if ttl not in words.part_ttls:
            refuse(f"{here}.ttl", f"must be one of {', '.join(words.part_ttls)} here.")
        ttls[block_path] = ttl
    return ttls


def _chat_parts(body: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    for index, message in enumerate(body["messages"]):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            path = f"messages[{index}].content[{number}]"
            yield part, path, f"messages[{index}].content" if message.get("role") == "tool" else path


def _retention(body: Mapping[str, Any]) -> str | None:
    """The retention asked for, in today's spelling: packages of before April 2026 wrote it with a dash."""
    given = _optional(body, "prompt_cache_retention")
    return "in_memory" if given == "in-memory" else given


def _optional(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    return None if value is None else want_text(value, name)
