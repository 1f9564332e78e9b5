"""Responses' `prompt_cache_diagnostics`: whether a response that a client names could be reused, and if not why. Pure.

Source: the published schema of the field; which of several changes is told follows the prefix.
"""

from collections.abc import Callable, Mapping
from typing import Any

from anaphora.api.wire import settled_text, want_object, want_text
from anaphora.explain.compared import Compared

_BEFORE_TOOLS = {"prompt_cache_key": "prompt_cache_key_changed", "service_tier": "service_tier_changed"}
_BEHIND_TOOLS = {
    "format": "text_format_changed",
    "effort": "reasoning_effort_changed",
    "verbosity": "verbosity_changed",
}


def read_comparison(body: Mapping[str, Any]) -> str | None:
    """The response that a request asks to be compared with. None: it does not ask.

    Raises: RequestError naming the field.
    """
    options = body.get("prompt_cache_options")
    if options is None:
        return None
    value = want_object(options, "prompt_cache_options").get("comparison_response_id")
    return None if value is None else want_text(value, "prompt_cache_options.comparison_response_id")


def response_settings(body: Mapping[str, Any]) -> dict[str, str]:
    """The settings that are compared, by name. A default that is spelled out is no change."""
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    told = {
        "prompt_cache_key": body.get("prompt_cache_key"),
        "service_tier": None if body.get("service_tier") == "auto" else body.get("service_tier"),
        "format": None if text.get("format") == {"type": "text"} else text.get("format"),
        "effort": reasoning.get("effort"),
        "verbosity": text.get("verbosity"),
    }
    return {name: settled for name, value in told.items() if (settled := settled_text(value)) is not None}


def comparison(
    response_id: str | None,
    compare: Callable[[str], Compared | None] | None,
    *,
    num_tokens: int,
    num_reused: int,
) -> dict[str, Any]:
    """The fields that are added to a response of so many tokens of input. `compare` None: nothing is remembered."""
    if response_id is None:
        return {}
    if compare is None:
        return {"prompt_cache_diagnostics": {"type": "unavailable"}}
    found = compare(response_id)
    if found is None:
        return {"prompt_cache_diagnostics": {"type": "comparison_response_not_found"}}
    reason, keeps_prefix = _change(found)
    if reason is None:
        return {"prompt_cache_diagnostics": {"type": "cache_hit" if num_reused else "unavailable"}}
    num_alike = found.num_alike if keeps_prefix else 0
    return {
        "prompt_cache_diagnostics": {
            "type": "cache_miss",
            "reason": reason,
            "cache_missed_tokens": num_tokens - num_alike,
            "comparison_reusable_tokens": num_alike,
        }
    }


def _change(found: Compared) -> tuple[str | None, bool]:
    """The first change in the order of the prefix, and whether what stands in front of it is still the same."""
    if found.has_model:
        return "model_changed", False
    for name, reason in _BEFORE_TOOLS.items():
        if name in found.settings:
            return reason, False
    if found.has_tools:
        return "tools_changed", True
    for name, reason in _BEHIND_TOOLS.items():
        if name in found.settings:
            return reason, False
    return ("input_changed" if found.has_system or found.has_messages else None), True
