"""Rendering: what templates are given, what is put where, and that later turns extend earlier ones.

Method: short forms of real templates and a tokenizer of one token per character, so that spans can be read off.
"""

import pytest
from chat_templates import CHATML, STRICT, THINKING, TOOLS, renderer
from hypothesis import given
from hypothesis import strategies as st

from anaphora.prompt.canonical import Message, Prompt, Text, Thinking, Tool, ToolChoice, ToolResult, ToolUse
from anaphora.prompt.render import Rendered

WEATHER = Tool(
    "get_weather", "Weather now.", '{"type": "object", "properties": {"city": {"type": "string"}}}', "tools[0]"
)


def said(role: str, text: str, index: int = 0) -> Message:
    return Message(role, (Text(text, f"messages[{index}].content"),), f"messages[{index}]")  # type: ignore[arg-type]


def prompt_of(*turns: tuple[str, str], system: tuple[Text, ...] = (), **rest: object) -> Prompt:
    messages = tuple(said(role, text, index) for index, (role, text) in enumerate(turns))
    return Prompt(messages=messages, system=system, **rest)  # type: ignore[arg-type]


def call_round(arguments: str = '{"city": "Oslo"}') -> tuple[Message, ...]:
    return (
        said("user", "Weather?", 0),
        Message(
            "assistant", (ToolUse("call_1", "get_weather", arguments, "messages[1].tool_calls[0]"),), "messages[1]"
        ),
        Message("tool", (ToolResult("call_1", "7 degrees", "messages[2].content"),), "messages[2]"),
    )


def text_of(rendered: Rendered, path: str) -> list[str]:
    return [rendered.text[piece.start : piece.stop] for piece in rendered.pieces if piece.path == path]


def test_traits_are_what_each_template_does() -> None:
    chatml, tools, strict = (renderer(source).traits for source in (CHATML, TOOLS, STRICT))
    assert (chatml.takes_system, chatml.takes_late_system, chatml.knows_tools) == (True, True, False)
    assert (tools.takes_late_system, tools.knows_tools, tools.call_style) == (True, True, "hermes")
    assert (strict.takes_system, strict.takes_late_system, strict.takes_repeated_roles) == (False, False, False)


def test_chat_is_rendered_by_the_template() -> None:
    rendered = renderer(CHATML).render(prompt_of(("user", "Hi"), system=(Text("Be kind.", "system"),)))
    expected = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert rendered.text == expected
    assert "".join(chr(token) for token in rendered.tokens) == expected


def test_pieces_name_the_part_of_every_stretch_of_text() -> None:
    # The word "user" also stands in the template's own text: the part must be found in its own place.
    rendered = renderer(CHATML).render(prompt_of(("user", "user"), ("assistant", "system"), ("user", "user")))
    named = [(piece.path, rendered.text[piece.start : piece.stop]) for piece in rendered.pieces if piece.path]
    assert named == [
        ("messages[0].content", "user"),
        ("messages[1].content", "system"),
        ("messages[2].content", "user"),
    ]
    assert rendered.unlocated == ()
    assert rendered.text[: rendered.pieces[1].start].endswith("<|im_start|>user\n")


def test_token_spans_cover_all_tokens_in_order() -> None:
    rendered = renderer(CHATML).render(prompt_of(("user", "Hello"), ("assistant", "Yes"), ("user", "Well")))
    spans = rendered.token_spans()
    assert [span.start for span in spans[1:]] == [span.stop for span in spans[:-1]]
    assert (spans[0].start, spans[-1].stop) == (0, len(rendered.tokens))
    (answer,) = [span for span in spans if span.path == "messages[1].content"]
    assert rendered.text[answer.start : answer.stop] == "Yes"


def test_part_that_the_template_strips_is_located_without_its_white_space() -> None:
    rendered = renderer(STRICT).render(prompt_of(("user", "  Hi \n")))
    assert text_of(rendered, "messages[0].content") == ["Hi"]


def test_part_that_the_template_drops_is_named_as_not_located() -> None:
    drops_answers = "{% for m in messages if m.role == 'user' %}{{ m.content }};{% endfor %}"
    rendered = renderer(drops_answers).render(prompt_of(("user", "a"), ("assistant", "zzz"), ("user", "b")))
    assert rendered.unlocated == ("messages[1].content",)
    assert text_of(rendered, "messages[2].content") == ["b"]


def test_late_system_message_stays_where_it_stands() -> None:
    prompt = prompt_of(("user", "a"), ("assistant", "b"), ("system", "9 tokens left"), ("user", "c"))
    text = renderer(CHATML).render(prompt).text
    assert text.index("b<|im_end|>") < text.index("<|im_start|>system\n9 tokens left") < text.index("c<|im_end|>")


def test_late_system_message_that_is_refused_becomes_a_tagged_user_turn() -> None:
    prompt = prompt_of(("user", "a"), ("assistant", "b"), ("system", "late"), ("user", "c"))
    text = renderer(STRICT).render(prompt).text
    assert "<turn>user\n<system>\nlate\n</system>\n\nc<end>" in text


def test_template_without_system_role_gets_it_in_front_of_the_first_user_turn() -> None:
    text = renderer(STRICT).render(prompt_of(("user", "Hi"), system=(Text("Be kind.", "system"),))).text
    assert text == "<bos><turn>user\nBe kind.\n\nHi<end>\n<turn>model\n"


def test_answer_that_was_begun_is_continued() -> None:
    text = renderer(CHATML).render(prompt_of(("user", "Count."), ("assistant", "1, 2, "))).text
    assert text.endswith("<|im_start|>assistant\n1, 2, ")


@pytest.mark.parametrize("source", [CHATML, TOOLS, STRICT, None])
def test_next_turn_extends_prompt_and_reply_byte_for_byte(source: str | None) -> None:
    room = renderer(source)
    first = room.render(prompt_of(("user", "Hi"), system=(Text("Be kind.", "system"),)))
    answer = " Hello" if source is None else "Hello"
    second = room.render(
        prompt_of(("user", "Hi"), ("assistant", answer), ("user", "More"), system=(Text("Be kind.", "system"),))
    )
    assert second.text.startswith(first.text.removesuffix("model\n" if source == STRICT else ""))
    if source != STRICT:
        assert second.text.startswith(first.text + answer)


def test_reasoning_that_comes_back_is_rendered_as_it_was_generated() -> None:
    thought = (Thinking("It is a greeting.", "messages[1].content[0]"), Text("Hello.", "messages[1].content[1]"))
    answered = (said("user", "Hi"), Message("assistant", thought, "messages[1]"))
    asked = renderer(THINKING).render(Prompt(messages=answered[:1])).text
    later = renderer(THINKING).render(Prompt(messages=(*answered, said("user", "Bye", 2))))
    assert later.text.startswith(asked + "<think>\nIt is a greeting.\n</think>\n\nHello.<|im_end|>\n")
    assert text_of(later, "messages[1].content[0]") == ["It is a greeting."]


def test_reasoning_that_a_template_does_not_know_changes_nothing() -> None:
    thinking = Message("assistant", (Thinking("hm", "m.0"), Text("Hello.", "m.1")), "messages[1]")
    plain = Message("assistant", (Text("Hello.", "m.1"),), "messages[1]")
    with_it, without = (
        renderer(CHATML).render(Prompt(messages=(said("user", "Hi"), answer, said("user", "Bye", 2)))).text
        for answer in (thinking, plain)
    )
    assert with_it == without


def test_tools_unknown_to_the_template_open_the_system_text() -> None:
    rendered = renderer(CHATML).render(
        prompt_of(("user", "Hi"), system=(Text("Be kind.", "system"),), tools=(WEATHER,))
    )
    head = rendered.text[: rendered.text.index("<|im_end|>")]
    assert head.index("<tools>") < head.index('"get_weather"') < head.index("Be kind.")
    assert text_of(rendered, "tools[0]") == [
        '{"type": "function", "function": {"name": "get_weather", "description": "Weather now.", '
        '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}'
    ]


def test_system_message_and_system_field_render_alike_with_tools() -> None:
    by_field = prompt_of(("user", "Hi"), system=(Text("Be kind.", "system"),), tools=(WEATHER,))
    by_message = prompt_of(("system", "Be kind."), ("user", "Hi"), tools=(WEATHER,))
    room = renderer(CHATML)
    assert room.render(by_field).text == room.render(by_message).text


def test_tools_known_to_the_template_are_located() -> None:
    rendered = renderer(TOOLS).render(Prompt(call_round(), tools=(WEATHER,)))
    assert rendered.unlocated == ()
    assert text_of(rendered, "tools[0]")[0].startswith('{"type": "function"')
    assert text_of(rendered, "messages[1].tool_calls[0]") == [
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    ]
    assert text_of(rendered, "messages[2].content") == ["7 degrees"]


def test_calls_and_results_have_a_generic_rendering() -> None:
    arguments = '{"b": 1,"a":  [2]}'
    text = renderer(CHATML).render(Prompt(call_round(arguments), tools=(WEATHER,))).text
    assert f'<|im_start|>assistant\n<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}' in text
    assert "<|im_start|>user\n<tool_response>\n7 degrees\n</tool_response><|im_end|>" in text


def test_results_in_a_user_message_render_as_tool_messages_do() -> None:
    results = (
        ToolResult("call_1", "7 degrees", "messages[2].content[0]"),
        Text("And now?", "messages[2].content[1]"),
    )
    in_user = Prompt((*call_round()[:2], Message("user", results, "messages[2]")), tools=(WEATHER,))
    apart = Prompt((*call_round(), said("user", "And now?", 3)), tools=(WEATHER,))
    for source in (CHATML, TOOLS):
        assert renderer(source).render(in_user).text == renderer(source).render(apart).text


def test_remembered_text_of_a_calling_answer_is_rendered_as_generated() -> None:
    generated = 'Sure.\n<tool_call>\n{"arguments":{"city":"Oslo"},  "name":"get_weather"}</tool_call>'
    prompt = Prompt(call_round(), tools=(WEATHER,))
    for source in (CHATML, TOOLS):
        room = renderer(source)
        asked = room.render(Prompt(call_round()[:1], tools=(WEATHER,))).text
        assert room.render(prompt, lambda message: generated).text.startswith(asked + generated + "<|im_end|>")


@pytest.mark.parametrize(
    ("choice", "opening"),
    [
        (ToolChoice("tool", "get_weather"), '<tool_call>\n{"name": "get_weather", "arguments":'),
        (ToolChoice("any"), '<tool_call>\n{"name": "get_weather", "arguments":'),
        (ToolChoice("auto"), ""),
        (ToolChoice("none"), ""),
    ],
)
def test_demanded_call_is_opened_for_the_model(choice: ToolChoice, opening: str) -> None:
    room = renderer(CHATML)
    rendered = room.render(prompt_of(("user", "Hi"), tools=(WEATHER,), tool_choice=choice))
    plain = room.render(prompt_of(("user", "Hi"), tools=(WEATHER,)))
    assert rendered.text == plain.text + opening
    assert rendered.opening == opening


def test_model_without_template_gets_speakers_and_stops_before_the_next() -> None:
    rendered = renderer(None).render(prompt_of(("user", "Hi"), system=(Text("Be kind.", "system"),)))
    assert rendered.text == "System: Be kind.\n\nUser: Hi\n\nAssistant:"
    assert "\n\nUser:" in rendered.stops


@given(st.lists(st.text(max_size=20), min_size=1, max_size=6), st.sampled_from([CHATML, TOOLS, None]))
def test_every_part_is_located_or_named_whatever_its_text(texts: list[str], source: str | None) -> None:
    roles = ["user", "assistant"] * 3
    turns = [*zip(roles, texts, strict=False)]
    rendered = renderer(source).render(prompt_of(*turns))
    assert rendered.pieces[0].start == 0
    assert rendered.pieces[-1].stop == len(rendered.text)
    assert all(left.stop == right.start for left, right in zip(rendered.pieces, rendered.pieces[1:], strict=False))
    for index, (_, text) in enumerate(turns):
        path = f"messages[{index}].content"
        assert text_of(rendered, path) == ([text] if text and path not in rendered.unlocated else [])
