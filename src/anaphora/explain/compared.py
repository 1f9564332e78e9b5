"""Compare a request with an earlier one that the client names, as the hosts' diagnostics do: by structure alone. Pure.

Model, tools, system, messages, settings: which of them the request changed, whatever is cached. Marks and the places of
parts don't count; a message that was only appended is no change.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from anaphora.explain.memory import Asked, hollow, words_of
from anaphora.prompt.canonical import Message, Part, Tool


@dataclass(frozen=True, slots=True)
class Compared:
    """What changed against the earlier request. `settings` are the names of those that differ."""

    has_model: bool
    has_tools: bool
    has_system: bool
    has_messages: bool
    settings: frozenset[str]
    num_before: int  # tokens of the earlier request
    num_alike: int  # of them, those that this one opens with


def compare(earlier: Asked, later: Asked, *, num_alike: int) -> Compared:
    """What of a request differs from an earlier one, of which `num_alike` tokens open both.

    Cost: one pass over the parts; a digest of each where only one side keeps its text.
    """
    old, new = earlier.side.prompt, later.side.prompt
    if earlier.keeps_text != later.keeps_text:
        old, new = (hollow(one.side.prompt) if one.keeps_text else one.side.prompt for one in (earlier, later))
    names = {*earlier.settings, *later.settings}
    return Compared(
        has_model=earlier.model != later.model,
        has_tools=_without_places(old.tools) != _without_places(new.tools),
        has_system=_without_places(old.system) != _without_places(new.system),
        has_messages=_parts_from(old.messages, new.messages),
        settings=frozenset(name for name in names if earlier.settings.get(name) != later.settings.get(name)),
        num_before=earlier.num_tokens,
        num_alike=num_alike,
    )


def _without_places(parts: Sequence[Tool | Part]) -> list[Tool | Part]:
    return [words_of(part) for part in parts]


def _parts_from(old: Sequence[Message], new: Sequence[Message]) -> bool:
    """Whether an earlier message was changed, taken out or put between: not only appended, or cut off at the end."""
    return any(
        one.role != other.role or _without_places(one.parts) != _without_places(other.parts)
        for one, other in zip(old, new, strict=False)
    )
