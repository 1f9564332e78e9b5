"""What a request changed against one that the client names. Method: each level by itself, as the hosts report it."""

from dataclasses import replace

import pytest
from prompts import prompt_of, side, tool

from anaphora.explain.compared import Compared, compare
from anaphora.explain.memory import Asked, remembered_side
from anaphora.prompt.canonical import CacheMark, Message, Prompt, Text

HISTORY = ("one", "two", "three")


def asked(prompt: Prompt, *, model: str = "m", keeps_text: bool = True, **settings: str) -> Asked:
    own = remembered_side(side(prompt), keeps_text=keeps_text)
    return Asked("r", 0.0, model, own, 10, settings=settings, keeps_text=keeps_text)


def compared(first: Prompt, second: Prompt) -> Compared:
    return compare(asked(first), asked(second), num_alike=7)


def test_what_is_appended_marked_or_written_in_other_places_is_no_change() -> None:
    first = prompt_of(*HISTORY)
    for second in (
        prompt_of(*HISTORY, "four", "five"),
        prompt_of(*HISTORY[:1]),
        prompt_of(*HISTORY, mark=CacheMark("1h")),
        replace(first, messages=(Message("user", (Text("one", "messages[0].content[0]"),), "x"), *first.messages[1:])),
    ):
        found = compared(first, second)
        assert (found.has_model, found.has_tools, found.has_system, found.has_messages) == (False,) * 4
        assert not found.settings
        assert (found.num_before, found.num_alike) == (10, 7)


@pytest.mark.parametrize("keeps_text", [(True, True), (False, False), (True, False)])
def test_each_level_is_told_from_the_others(keeps_text: tuple[bool, bool]) -> None:
    first = prompt_of(*HISTORY, tools=(tool("a", 0), tool("b", 1)))
    changes = {
        "has_tools": replace(first, tools=(tool("b", 0), tool("a", 1))),
        "has_system": replace(first, system=(Text("Be stern.", "system"),)),
        "has_messages": prompt_of("other", *HISTORY[1:], tools=first.tools),
    }
    for name, second in changes.items():
        found = compare(asked(first, keeps_text=keeps_text[0]), asked(second, keeps_text=keeps_text[1]), num_alike=0)
        flags = {level: getattr(found, level) for level in changes}
        assert flags == {level: level == name for level in changes}
    roles = replace(first, messages=(replace(first.messages[0], role="system"), *first.messages[1:]))
    assert compared(first, roles).has_messages


def test_settings_are_named() -> None:
    prompt = prompt_of("Hi")
    found = compare(asked(prompt, effort="low", format="x"), asked(prompt, effort="high", speed="y"), num_alike=0)
    assert found.settings == {"effort", "format", "speed"}
    assert compare(asked(prompt), asked(prompt, model="other"), num_alike=0).has_model
