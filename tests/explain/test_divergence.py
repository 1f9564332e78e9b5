"""The place where two prompts part. Method: change one part of a random prompt and ask for it back."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from prompts import CHATML_CLOSE, RENDERER, chatml, prompt_of, tool, words

from anaphora.core.index import common_length
from anaphora.explain.divergence import diverge
from anaphora.prompt.canonical import Message, Prompt, Text
from anaphora.prompt.render import Renderer

WORD_RENDERER = Renderer(chatml, words)

# No angle bracket: a text that goes on as the template does has no place of its own.
texts = st.text(alphabet='ab \n\u00e9{}"', min_size=1, max_size=12)


@st.composite
def mutations(draw: st.DrawFn) -> tuple[Prompt, Prompt, str, int]:
    """A prompt, the same with one part's text changed, that part's path, and the first changed character."""
    messages = draw(st.lists(texts, min_size=1, max_size=5))
    system = draw(texts)
    place = draw(st.integers(-1, len(messages) - 1))
    old = system if place < 0 else messages[place]
    new = draw(texts)
    assume(old != new)
    changed = [new if index == place else text for index, text in enumerate(messages)]
    first, second = prompt_of(*messages, system=system), prompt_of(*changed, system=new if place < 0 else system)
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return first, second, "system" if place < 0 else f"messages[{place}].content", at


@given(mutations())
def test_changed_part_is_found_to_the_character(case: tuple[Prompt, Prompt, str, int]) -> None:
    before, after, path, at = case
    is_last = path == before.messages[-1].parts[0].path
    for prompt, other in ((before, after), (after, before)):
        first, second = RENDERER.render(prompt), RENDERER.render(other)
        found = diverge(first, second)
        if found is None:
            assert is_last, "only what ends a prompt can go on"
            continue
        assert (found.path, found.part_index) == (path, at)
        assert first.text[: found.text_index] == second.text[: found.text_index]
        assert first.text[found.text_index] != second.text[found.text_index]
        assert found.token_index == found.text_index, "a token is a character here"


@given(mutations())
def test_token_is_the_first_that_differs_and_holds_the_character(case: tuple[Prompt, Prompt, str, int]) -> None:
    before, after, path, _ = case
    first, second = WORD_RENDERER.render(before), WORD_RENDERER.render(after)
    found = diverge(first, second)
    assume(found is not None)
    assert found is not None
    assert list(first.tokens[: found.token_index]) == list(second.tokens[: found.token_index])
    assert first.tokens[found.token_index] != second.tokens[found.token_index]
    assert found.token_index == common_length(first.tokens, second.tokens)
    assert int(second.offsets[found.token_index, 0]) <= found.text_index
    assert found.path == path


@given(st.lists(texts, min_size=1, max_size=4), texts)
def test_prompt_that_goes_on_does_not_diverge(messages: list[str], system: str) -> None:
    asked = messages[: len(messages) - 1 + len(messages) % 2]
    first = RENDERER.render(prompt_of(*asked, system=system))
    later = RENDERER.render(prompt_of(*asked, "answer", "more", system=system))
    assert diverge(first, first) is None
    assert diverge(first, later) is None
    assert diverge(later, first) is None
    assert common_length(first.tokens, later.tokens) == len(first.tokens)


def test_change_that_shows_behind_its_part_is_still_that_parts() -> None:
    first = RENDERER.render(prompt_of("x", system="a"))
    second = RENDERER.render(prompt_of("x", system=f"a{CHATML_CLOSE}b"))
    found = diverge(first, second)
    assert found is not None
    assert found.path == "system"
    assert found.text_index > first.text.index("a<") + 1


def test_string_and_list_of_one_text_are_the_same_system() -> None:
    first = prompt_of("x", system="Be kind.")
    second = replace(prompt_of("y"), system=(Text("Be kind.", "system[0]"),))
    found = diverge(RENDERER.render(first), RENDERER.render(second))
    assert found is not None
    assert found.path == "messages[0].content"


def test_role_that_differs_is_the_templates_text_in_front_of_the_message() -> None:
    by_user, by_system = (
        Prompt(
            (Message("user", (Text("a", "messages[0].content"),), "messages[0]"), Message(role, last, "messages[1]"))
        )
        for role, last in (
            ("user", (Text("b", "messages[1].content"),)),
            ("system", (Text("b", "messages[1].content"),)),
        )
    )
    found = diverge(RENDERER.render(by_user), RENDERER.render(by_system))
    assert found is not None
    assert (found.path, found.part_index) == ("messages[1].content", None)


def test_added_tool_is_found_in_the_tools() -> None:
    tools = (tool("look", 0), tool("find", 1))
    found = diverge(RENDERER.render(prompt_of("x", tools=tools[:1])), RENDERER.render(prompt_of("x", tools=tools)))
    assert found is not None
    assert found.path == "tools[1]"


def test_excerpts_show_both_sides_around_the_place() -> None:
    first, second = (
        RENDERER.render(prompt_of("Hi", system=f"{'x' * 99} on {day} we eat")) for day in ("Monday", "Sunday")
    )
    found = diverge(first, second)
    assert found is not None
    assert found.first.text[found.first.at :].startswith("Monday we eat")
    assert found.second.text[found.second.at :].startswith("Sunday we eat")
    assert found.first.text[: found.first.at] == found.second.text[: found.second.at]
    assert len(found.first.text) < 80
