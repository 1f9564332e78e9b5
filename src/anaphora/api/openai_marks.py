"""What a Chat Completions request says about caching: options, breakpoints, settings in its prefix. Pure."""

import json
from dataclasses import dataclass
from typing import Any

from anaphora.api.layouts import layout_of
from anaphora.api.wire import refuse, want_object, want_text
from anaphora.contract.layout import Layout, Levels
from anaphora.contract.openai import (
    LIFETIMES,
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
class KeyedPrompt:
    """A prompt with its cache options, ready for a ledger."""

    options: CacheOptions
    levels: Levels
    layout: Layout | None  # where breakpoints count


def keyed_prompt(body: dict[str, Any], prompt: Prompt, rendered: Rendered, rules: OpenAIRules) -> KeyedPrompt:
    """The cache options of a request that has been read and rendered.

    Where every reused token counts they mean nothing, and are left alone.
    Raises: RequestError for options the rules don't know, by path.
    """
    if isinstance(rules, MeasuredRules):
        return KeyedPrompt(CacheOptions(), Levels(), None)
    check_retention(_optional(body, "prompt_cache_retention"), rules)
    options, levels = _options(body), Levels(tools=prefix_settings(_settings(body)))
    if not isinstance(rules, BreakpointRules):
        return KeyedPrompt(options, levels, None)
    if options.ttl != "30m":
        refuse("prompt_cache_options.ttl", 'must be "30m" on Chat Completions.')
    ttls = _breakpoints(body, options, rules)

    def ttl_of(part: Tool | Part) -> str | None:
        return ttls.get(part.path)

    return KeyedPrompt(options, levels, layout_of(prompt, rendered, levels, ttl_of))


def _options(body: dict[str, Any]) -> CacheOptions:
    value = body.get("prompt_cache_options")
    given = {} if value is None else want_object(value, "prompt_cache_options")
    mode, ttl = given.get("mode") or "implicit", given.get("ttl") or "30m"
    if mode not in ("implicit", "explicit"):
        refuse("prompt_cache_options.mode", 'must be "implicit" or "explicit".')
    if ttl not in LIFETIMES:
        refuse("prompt_cache_options.ttl", f"must be one of {', '.join(LIFETIMES)}.")
    return CacheOptions(
        mode="explicit" if mode == "explicit" else "implicit",
        ttl=ttl,
        key=_optional(body, "prompt_cache_key"),
        retention=_optional(body, "prompt_cache_retention"),
    )


def _breakpoints(body: dict[str, Any], options: CacheOptions, rules: BreakpointRules) -> dict[str, str]:
    """Lifetimes of the explicit breakpoints, by the path of the part that they stand at the end of.

    A tool's result is one part, however many it was sent in.
    """
    ttls: dict[str, str] = {}
    for index, message in enumerate(body["messages"]):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            path = f"messages[{index}].content[{number}]"
            mark = part.get("prompt_cache_breakpoint")
            if mark is None:
                continue
            here = f"{path}.prompt_cache_breakpoint"
            if want_object(mark, here).get("mode", "explicit") != "explicit":
                refuse(f"{here}.mode", 'must be "explicit".')
            ttl = mark.get("ttl") or options.ttl
            if ttl not in LIFETIMES or (ttl == "12h" and not rules.chat_takes_12h):
                refuse(f"{here}.ttl", f"{str(ttl)[:20]!r} is not supported here.")
            ttls[f"messages[{index}].content" if message.get("role") == "tool" else path] = ttl
    return ttls


def _settings(body: dict[str, Any]) -> OpenAISettings:
    told = {
        name: None if body.get(name) is None else json.dumps(body[name], sort_keys=True)
        for name in ("response_format", "reasoning_effort", "verbosity", "service_tier")
    }
    return OpenAISettings(
        parallel_tools=body.get("parallel_tool_calls") is not False,
        text_format=told["response_format"],
        effort=told["reasoning_effort"],
        verbosity=told["verbosity"],
        service_tier=told["service_tier"],
    )


def _optional(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    return None if value is None else want_text(value, name)
