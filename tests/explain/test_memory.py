"""The memory of requests: bounded, apart by tenant. Method: small prompts, `check()` after each."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompts import prompt_of, side, tool
from remembered import World

from anaphora.engine.request import Tenant
from anaphora.explain.memory import (
    NO_OFFSETS,
    Asked,
    MemoryLimits,
    RequestMemory,
    hollow,
    remembered_settings,
    remembered_side,
)
from anaphora.explain.reasons import Side
from anaphora.prompt.canonical import (
    AnswerSchema,
    Message,
    Part,
    Prompt,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from anaphora.prompt.render import Rendered

LONG = "You answer questions about the harbour. " * 5
RED, BLUE = Tenant("red"), Tenant("blue")


def test_nearest_is_of_the_same_tenant_only() -> None:
    world = World()
    first, _, nothing = world.ask(prompt_of("Hi", system=LONG), tenant=RED)
    _, _, others = world.ask(prompt_of("Hi", system=LONG), tenant=BLUE)
    _, own, nearest = world.ask(prompt_of("Hi", system=LONG), tenant=RED)
    assert nothing is others is None
    assert nearest is not None
    assert (nearest.value, nearest.num_tokens) == (first, len(own.rendered.tokens))
    assert world.memory.get(RED, first.request_id) is first
    assert world.memory.get(BLUE, first.request_id) is None
    assert world.memory.latest(RED) is not first
    assert world.memory.latest(Tenant("green")) is None
    world.memory.check()


@pytest.mark.parametrize("limits", [MemoryLimits(max_requests=2), MemoryLimits(max_bytes=9000)])
def test_the_oldest_are_forgotten_first(limits: MemoryLimits) -> None:
    world = World(limits=limits)
    asked = [world.ask(prompt_of(f"{index} {LONG}"), tenant=(RED, BLUE)[index % 2])[0] for index in range(5)]
    world.memory.check()
    assert 0 < len(world.memory) <= 2
    assert world.memory.size_bytes <= limits.max_bytes
    assert world.memory.get(RED, asked[0].request_id) is None
    assert world.memory.get(RED, asked[4].request_id) is asked[4]
    world.answer(asked[0], "too late", tenant=RED)
    assert asked[0].num_answered == 0


def test_a_request_larger_than_the_memory_is_not_kept() -> None:
    world = World(limits=MemoryLimits(max_bytes=100))
    world.ask(prompt_of(LONG))
    world.memory.check()
    assert len(world.memory) == world.memory.size_bytes == 0


def test_answers_are_part_of_what_is_compared() -> None:
    world = World()
    first, own, _ = world.ask(prompt_of("Hi", system=LONG))
    world.answer(first, "9 m")
    _, _, nearest = world.ask(prompt_of("Hi", "9 m", "And now?", system=LONG))
    assert nearest is not None
    assert nearest.num_tokens == len(own.rendered.tokens) + len("9 m") == first.num_tokens + first.num_answered
    world.memory.check()


def test_digests_keep_what_is_equal_and_nothing_that_can_be_read() -> None:
    parts = (
        Text("secret words", "messages[0].content[0]"),
        Thinking("secret thought", "messages[0].content[1]"),
        ToolUse("secret_c1", "secret_tool", '{"secret": 1}', "messages[0].content[2]"),
        ToolResult("secret_c1", "secret answer", "messages[0].content[3]"),
    )
    prompt = Prompt(
        (Message("user", parts, "messages[0]"),), (Text("secret words", "system"),), (tool("secret_tool", 0),)
    )
    prompt = replace(prompt, tool_choice=ToolChoice("tool", "secret_tool"), answer=AnswerSchema('"secret"', "format"))
    kept = hollow(prompt)
    assert "secret" not in repr(kept)
    assert [part.path for part in kept.parts] == [part.path for part in prompt.parts]
    assert kept.system[0].text == kept.messages[0].parts[0].text  # type: ignore[union-attr]
    world = World(keeps_text=False)
    asked, _, _ = world.ask(prompt)
    world.answer(asked, "secret reply")
    assert "secret" not in repr(asked)


@pytest.mark.parametrize("keeps_text", [True, False])
def test_the_estimate_of_its_size_is_not_below_what_it_takes(keeps_text: bool) -> None:
    world = World(keeps_text)
    world.ask(prompt_of("warm up"))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(60):
            world.ask(
                prompt_of(*(f"{number} {turn} {LONG}" for turn in range(number % 7 + 1)), system=f"{number}{LONG}")
            )
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= 1.05 * world.memory.size_bytes <= 4 * taken


BIG = "words " * 20_000
AT = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("part", "more"),
    [
        (Thinking(BIG, AT), {}),  # templates leave it out
        (ToolUse(BIG, "look", "{}", AT), {}),
        (ToolUse("c", "look", BIG, AT), {}),
        (ToolResult(BIG, "9 m", AT), {}),
        (ToolResult("c", "9 m", AT, BIG), {}),
        (Text("Hi", AT), {"tools": (Tool("look", BIG, BIG, "tools[0]"),)}),
        (Text("Hi", AT), {"system": (Text(BIG, "system"),)}),
        (Text("Hi", AT), {"answer": AnswerSchema(BIG, "format")}),
    ],
    ids=lambda one: type(one).__name__ if not isinstance(one, dict) else "".join(one),
)
@pytest.mark.parametrize("keeps_text", [True, False])
def test_whatever_is_kept_of_a_prompt_counts_rendered_or_not(
    part: Part, more: dict[str, Any], keeps_text: bool
) -> None:
    prompt = Prompt((Message("user", (part,), "messages[0]"), Message("user", (), "messages[1]")), **more)
    own = Side(prompt, Rendered("Hi", np.arange(2, dtype=np.int32), NO_OFFSETS, ()))
    memory = RequestMemory(MemoryLimits(max_requests=1000, max_bytes=400_000))
    for number in range(50):
        settings = remembered_settings({"format": f"{number}{BIG}"}, keeps_text=keeps_text)
        kept = remembered_side(own, keeps_text=keeps_text)
        memory.arrive(
            RED,
            Asked(f"r{number}", number, "m", kept, 2, settings=settings, keeps_text=keeps_text),
            own.rendered.tokens,
        )
        memory.check()
    can_be_large = keeps_text and "answer" not in more
    assert len(memory) <= 3 if can_be_large else len(memory) == 50


def test_settings_stay_equal_where_only_digests_of_them_are_kept() -> None:
    one, same, other = ({"format": f"{BIG}{end}", "effort": "low"} for end in "aab")
    kept = [remembered_settings(settings, keeps_text=True) for settings in (one, same, other)]
    assert kept[0] == kept[1] != kept[2]
    assert kept[0]["effort"] == "low"
    assert len(str(kept)) < 1000
    assert "low" not in str(remembered_settings(one, keeps_text=False))


@given(st.lists(st.tuples(st.sampled_from([RED, BLUE]), st.text("ab", min_size=1, max_size=4)), max_size=20))
def test_memory_stays_sound(asks: list[tuple[Tenant, str]]) -> None:
    world = World(limits=MemoryLimits(max_requests=5))
    for tenant, text in asks:
        asked, own, nearest = world.ask(prompt_of(text), tenant=tenant)
        if nearest is not None:
            known = side(nearest.value.side.prompt).rendered.tokens.tolist()
            assert own.rendered.tokens[: nearest.num_tokens].tolist() == known[: nearest.num_tokens]
        world.memory.check()
        if text.endswith("a"):
            world.answer(asked, text, tenant=tenant)
            world.memory.check()
