"""The memory of requests: bounded, apart by tenant. Method: small prompts, `check()` after each."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompts import prompt_of, side, tool
from remembered import World

from anaphora.engine.request import Tenant
from anaphora.explain.memory import MemoryLimits, hollow
from anaphora.prompt.canonical import Message, Prompt, Text, Thinking, ToolResult, ToolUse

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
        ToolUse("c1", "secret_tool", '{"secret": 1}', "messages[0].content[2]"),
        ToolResult("c1", "secret answer", "messages[0].content[3]"),
    )
    prompt = Prompt(
        (Message("user", parts, "messages[0]"),), (Text("secret words", "system"),), (tool("secret_tool", 0),)
    )
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
