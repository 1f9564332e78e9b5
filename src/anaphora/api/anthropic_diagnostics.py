"""Messages' `diagnostics`: what a request changed against the one that its client names. Pure.

Compared is what was sent, whatever is cached: null says that nothing in front was changed, not that it was read.
Source: the published schema of `diagnostics` and `cache_miss_reason`. Of several changes the first is told.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anaphora.api.wire import settled_text, want_object, want_text
from anaphora.explain.compared import Compared

_SETTINGS = ("tool_choice", "thinking", "context_management", "output_config", "output_format")
"""Fields that are part of the prefix besides model, tools, system and messages."""


@dataclass(frozen=True, slots=True)
class AskedDiagnosis:
    """Whether a request asks, and for the comparison with which message. None: its conversation begins."""

    previous_id: str | None


def read_diagnostics(body: Mapping[str, Any]) -> AskedDiagnosis | None:
    """What a request asks. None: nothing.

    Raises: RequestError naming the field.
    """
    value = body.get("diagnostics")
    if value is None:
        return None
    previous = want_object(value, "diagnostics").get("previous_message_id")
    return AskedDiagnosis(None if previous is None else want_text(previous, "diagnostics.previous_message_id"))


def message_settings(body: Mapping[str, Any], betas: str) -> dict[str, str]:
    """The settings that are compared, by name. `betas`: the header of that name."""
    found = {name: settled for name in _SETTINGS if (settled := settled_text(body.get(name))) is not None}
    if body.get("speed") not in (None, "standard"):
        found["speed"] = str(body["speed"])
    if names := sorted({name.strip() for name in betas.split(",") if name.strip()}):
        found["betas"] = ",".join(names)
    return found


def diagnosis(asked: AskedDiagnosis | None, compare: Callable[[str], Compared | None] | None) -> dict[str, Any]:
    """The fields that are added to a message. `compare` is None where no requests are remembered."""
    if asked is None:
        return {}
    if asked.previous_id is None:
        return {"diagnostics": None}
    if compare is None:
        return _reason("unavailable")
    found = compare(asked.previous_id)
    if found is None:
        return _reason("previous_message_not_found")
    if found.has_model or "speed" in found.settings:
        return _reason("model_changed", found.num_before)
    num_missed = max(0, found.num_before - found.num_alike)
    levels = {"tools": found.has_tools, "system": found.has_system, "messages": found.has_messages}
    changed = next((level for level, is_changed in levels.items() if is_changed), None)
    if changed is not None:
        return _reason(f"{changed}_changed", num_missed)
    return _reason("unavailable") if found.settings else {"diagnostics": None}


def _reason(kind: str, num_missed: int | None = None) -> dict[str, Any]:
    missed = {} if num_missed is None else {"cache_missed_input_tokens": num_missed}
    return {"diagnostics": {"cache_miss_reason": {"type": kind, **missed}}}
