"""The one reason of a miss. Method: a memory of requests, an engine that is told what it reused."""

from dataclasses import replace

import numpy as np
import pytest
from prompts import prompt_of, tool
from remembered import World, no_fate

from anaphora.core.fates import Fate
from anaphora.engine.request import StopReason, Tenant
from anaphora.explain.memory import Asked, MemoryLimits, RequestMemory, prompt_of_text, remembered_side
from anaphora.explain.reasons import Side
from anaphora.explain.why import MISS_SAYS, Outcome, duration, why
from anaphora.prompt.canonical import Message, Prompt, Text, ToolChoice, ToolUse
from anaphora.prompt.render import Rendered

LONG = "You answer questions about the harbour. " * 5
LONGER = ("How deep is it?", "9 m", "And now?")


def timed(minute: int, question: str = "How deep is it?") -> Prompt:
    return prompt_of(question, system=f"It is 2026-12-01T10:{minute:02}:00Z. {LONG}")


@pytest.mark.parametrize("keeps_text", [True, False])
def test_a_prompt_that_nobody_sent_is_first_seen(keeps_text: bool) -> None:
    world = World(keeps_text)
    assert world.why(prompt_of("How deep is it?")).reason == "first_seen"
    found = world.why(prompt_of("Another matter altogether.", system=LONG))
    assert (found.reason, found.num_lost, found.nearest_id) == ("first_seen", 0, None)


@pytest.mark.parametrize("keeps_text", [True, False])
def test_a_conversation_that_goes_on_and_another_question_lose_nothing(keeps_text: bool) -> None:
    world = World(keeps_text)
    first, _, _ = world.ask(prompt_of(LONGER[0], system=LONG))
    world.answer(first, "9 m")
    assert world.why(prompt_of(*LONGER, system=LONG)).reason == "none"
    other = world.why(prompt_of("Where is the pier?", system=LONG))
    assert (other.reason, other.cause, other.where) == ("none", "text_changed", "messages[0].content")
    assert world.why(prompt_of(*LONGER, system=LONG)).reason == "none"


def test_a_time_is_named_with_its_place_and_cost() -> None:
    world = World()
    first, _, _ = world.ask(timed(10))
    found = world.why(timed(27))
    assert (found.reason, found.cause, found.where) == ("diverged", "time", "system")
    assert found.byte_index == len("It is 2026-12-01T10:")
    assert found.token_index == found.num_reused
    assert found.num_lost == len(f":00Z. {LONG}") + len("How deep is it?")
    assert (found.nearest_id, found.nearest_ago_s) == (first.request_id, 1.0)
    assert found.says == "system: A time differs."
    assert found.advice.startswith("Move it behind")


def test_without_text_place_and_structure_are_told_all_the_same() -> None:
    world = World(keeps_text=False)
    world.ask(timed(10))
    found = world.why(timed(27))
    assert (found.reason, found.cause, found.where) == ("diverged", "text_changed", "system")
    assert found.byte_index == len("It is 2026-12-01T10:")
    assert found.num_lost == len("How deep is it?")
    tools = (tool("look", 0), tool("find", 1))
    world.ask(prompt_of("Hi", system=LONG, tools=tools))
    found = world.why(prompt_of("Hi", system=LONG, tools=(tool("find", 0), tool("look", 1))))
    assert (found.cause, found.where) == ("tools_reordered", "tools[0]")
    edited = (tool("look", 0), tool("find", 1, description="Finds."))
    assert world.why(prompt_of("Hi", system=LONG, tools=edited)).cause == "tool_edited"
    late = Prompt((Message("assistant", (Text("Hi", "messages[0].content"),), "messages[0]"),), (Text(LONG, "system"),))
    world.ask(prompt_of("Hi", system=LONG))
    assert world.why(late).cause == "template"


def gone(world: World, *, ago_s: float = 0.2, kind: str = "evicted", **rest: bool) -> Fate:
    return Fate(kind, ago_s, **rest)  # type: ignore[arg-type]


def test_what_was_evicted_expired_or_cleared_is_told_from_each_other() -> None:
    world = World()
    _, own, _ = world.ask(prompt_of(*LONGER, system=LONG))
    asked = {}

    def fate(age_s: float) -> Fate | None:
        asked["age"] = age_s
        return gone(world)

    found = world.why(prompt_of(*LONGER, system=LONG), num_reused=40, fate=fate)
    assert (found.reason, found.num_lost, found.gone_ago_s) == ("evicted", len(own.rendered.tokens) - 1 - 40, 0.2)
    assert asked["age"] == pytest.approx(1.1)
    assert (found.where, found.token_index) == ("system", 40)
    assert found.says == "It was evicted to make room. That was 0.2 s ago."
    others = world.why(prompt_of(*LONGER, system=LONG), num_reused=40, fate=lambda _: gone(world, for_others=True))
    assert others.says == "It was evicted to make room for other tenants. That was 0.2 s ago."
    cleared = world.why(prompt_of(*LONGER, system=LONG), num_reused=0, fate=lambda _: gone(world, kind="cleared"))
    assert (cleared.reason, cleared.gone_ago_s) == ("cleared", 0.2)
    latest = world.memory.latest(Tenant(""))
    assert latest is not None
    latest.kept_until_s = world.now
    late = world.why(prompt_of(*LONGER, system=LONG), num_reused=40, fate=lambda _: gone(world))
    assert (late.reason, late.gone_ago_s) == ("expired", pytest.approx(1.1))


def test_what_is_still_on_its_way_overlaps_and_what_failed_was_not_written() -> None:
    world = World()
    first, _, _ = world.ask(prompt_of("Hi", system=LONG), begins=False)
    assert world.why(prompt_of("Hi", system=LONG), num_reused=0, stop_reason="nothing_cached").reason == "overlapped"
    world = World()
    first, _, _ = world.ask(prompt_of("Hi", system=LONG), begins=False)
    first.has_failed = True
    found = world.why(prompt_of("Hi", system=LONG), num_reused=0, stop_reason="nothing_cached")
    assert found.reason == "not_written"


def test_what_can_not_be_shown_is_unknown() -> None:
    world = World()
    world.ask(prompt_of("Hi", system=LONG))
    found = world.why(prompt_of("Hi", system=LONG), num_reused=3)
    assert (found.reason, found.advice) == ("unknown", "")


def test_an_earlier_process_saw_it() -> None:
    world = World()
    found = world.why(prompt_of("Hi", system=LONG), num_reused=0, stop_reason="nothing_cached", num_before_restart=64)
    assert (found.reason, found.num_lost) == ("not_durable", 64)
    kept = world.why(prompt_of("Hello", system=LONG), num_reused=100, num_before_restart=64)
    assert kept.reason != "not_durable"


@pytest.mark.parametrize("stop_reason", ["cache_off", "not_cacheable", "prompt_logprobs"])
def test_what_the_engine_refuses_is_said(stop_reason: StopReason) -> None:
    world = World()
    world.ask(prompt_of("Hi", system=LONG))
    found = world.why(prompt_of("Hi", system=LONG), num_reused=0, stop_reason=stop_reason)
    assert found.reason == stop_reason
    assert found.num_lost == found.num_tokens - 1


def test_reuse_beyond_what_is_remembered_is_no_riddle() -> None:
    world = World(limits=MemoryLimits(max_requests=1))
    world.ask(prompt_of("Hi", system=LONG))
    world.ask(prompt_of("Other"))
    found = world.why(prompt_of("Hi", system=LONG), num_reused=150)
    assert (found.reason, found.cause, found.where) == ("diverged", None, "system")
    world.ask(prompt_of("Other"))
    assert world.why(prompt_of("Hi", system=LONG), num_reused=150, stop_reason="ended").reason == "none"


def test_an_answer_that_comes_back_otherwise_is_named() -> None:
    call = ToolUse("c", "look", '{"b": 1, "a": 2}', "messages[1].content[0]")
    wrote = '<tool_call>\n{"name": "look", "arguments": {"a": 2, "b": 1}}\n</tool_call>'
    world = World()
    first, _, _ = world.ask(prompt_of("Hi", system=LONG))
    world.answer(first, wrote)
    found = world.why(prompt_of("Hi", Message("assistant", (call,), "messages[1]"), "So?", system=LONG))
    assert (found.reason, found.cause, found.where) == ("diverged", "key_order", "messages[1].content[0]")
    assert found.num_lost > 0
    first, _, _ = world.ask(prompt_of("Bye", system=LONG))
    world.answer(first, "<think>Let me see.</think>\n\nGood bye.")
    found = world.why(prompt_of("Bye", "Good bye.", "So?", system=LONG))
    assert (found.cause, found.where) == ("reasoning_dropped", "messages[1].content")
    first, _, _ = world.ask(prompt_of("Well", system=LONG))
    world.answer(first, "Nine metres.")
    assert world.why(prompt_of("Well", "Nine feet.", "So?", system=LONG)).cause == "answer_changed"


def test_the_same_answer_in_other_tokens_is_named() -> None:
    wrote = f"Nine metres. {LONG}"
    world = World()
    first, _, _ = world.ask(prompt_of("Well", system=LONG))
    world.memory.answer(Tenant(""), first, np.array([ord("N"), ord("i"), 99_999, 7], dtype=np.int32), wrote)
    found = world.why(prompt_of("Well", wrote, "So?", system=LONG))
    assert (found.cause, found.where, found.byte_index) == ("retokenised", "messages[1].content", len("Ni"))
    assert found.num_lost == len(wrote) - len("Ni")


def test_token_ids_without_text_are_told_by_their_place() -> None:
    def ids(*tokens: int) -> Side:
        encoded = np.array(tokens, dtype=np.int32)
        rendered = Rendered("", encoded, np.zeros((len(tokens), 2), dtype=np.int64), ())
        return Side(prompt_of_text("", "prompt"), rendered)

    memory, reasons = RequestMemory(), []
    for number, side in enumerate((ids(*range(30)), ids(*range(20), 7, 8), ids(*range(3), 7, 8))):
        num_tokens = len(side.rendered.tokens)
        asked = Asked(f"r{number}", 0.0, "m", remembered_side(side, keeps_text=True), num_tokens)
        nearest = memory.arrive(Tenant(""), asked, side.rendered.tokens)
        num_reused = 0 if nearest is None else nearest.num_tokens
        found = why(side, nearest, Outcome(0.0, 0.0, num_tokens, num_reused, "diverged", no_fate))
        reasons.append((found.reason, found.token_index))
    assert reasons == [("first_seen", None), ("none", 20), ("none", 3)]


def test_a_call_that_was_opened_for_the_model_is_compared_with_its_opening() -> None:
    tools = (tool("look", 0),)
    asked = replace(prompt_of("Hi", system=LONG, tools=tools), tool_choice=ToolChoice("any"))
    world = World()
    first, own, _ = world.ask(asked)
    assert own.rendered.opening.startswith("<tool_call>")
    world.answer(first, '{"a": 1}}\n</tool_call>')
    call = ToolUse("c", "look", '{"a":1}', "messages[1].content[0]")
    found = world.why(prompt_of("Hi", Message("assistant", (call,), "messages[1]"), "So?", system=LONG, tools=tools))
    assert (found.cause, found.where) == ("json_spacing", "messages[1].content[0]")


def test_an_answer_of_which_only_tokens_are_kept_is_named_too() -> None:
    world = World(keeps_text=False)
    first, _, _ = world.ask(prompt_of("Well", system=LONG))
    world.answer(first, "Nine metres.")
    found = world.why(prompt_of("Well", "Nine feet.", "So?", system=LONG))
    assert (found.cause, found.where) == ("answer_changed", "messages[1].content")


def test_spans_of_time_are_read_at_a_glance() -> None:
    assert [duration(one) for one in (0.25, 12.3, 300, 7300)] == ["0.2 s", "12 s", "5 minutes", "2 hours"]
    assert all(text.endswith(".") for text in MISS_SAYS.values())
