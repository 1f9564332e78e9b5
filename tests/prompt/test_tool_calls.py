"""Calls are read back out of generated text in every style, whole and in pieces, and nothing else is lost."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.prompt.tool_calls import CallParser, ParsedCall, ParsedText, parse_answer, write_call, write_opening

OSLO = ParsedCall("f", '{"city": "Oslo"}')
NAMES = ("f", "g")


def merged(parsed: list[ParsedText | ParsedCall]) -> list[ParsedText | ParsedCall]:
    out: list[ParsedText | ParsedCall] = []
    for piece in parsed:
        if out and isinstance(piece, ParsedText) and isinstance(out[-1], ParsedText):
            out[-1] = ParsedText(out[-1].text + piece.text)
        else:
            out.append(piece)
    return out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>', [OSLO]),
        ('<tool_call>[{"name": "f", "arguments": {"city": "Oslo"}}]</tool_call>', [OSLO]),
        ('Sure.\n<tool_call>{"name": "f", "arguments": {"city": "Oslo"}}</tool_call>', [ParsedText("Sure."), OSLO]),
        ('<tool_call>{"name": "f", "arguments": {"city": "Oslo"}}', [OSLO]),
        ('[TOOL_CALLS][{"name": "f", "arguments": {"city": "Oslo"}}]', [OSLO]),
        (
            '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g"}]',
            [ParsedCall("f", "{}"), ParsedCall("g", "{}")],
        ),
        ('<|python_tag|>{"name": "f", "parameters": {"city": "Oslo"}}', [OSLO]),
        ('{"name": "f", "parameters": {"city": "Oslo"}}', [OSLO]),
        (' \n{"type": "function", "name": "f", "arguments": {"city": "Oslo"}}', [OSLO]),
        ('[{"name": "f", "arguments": {"city": "Oslo"}}]', [OSLO]),
        ('<tool_call>{"name": "f", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>', [OSLO]),
        ('<tool_call>{"name": "f", "arguments": {"city": "Oslo"}}\n<', [OSLO]),
        ('<tool_call>{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_cal', [OSLO]),
        ('<tool_call>{"name": "f", "arguments": {"city": "Oslo"}}\n<x', [OSLO, ParsedText("\n<x")]),
        ("<tool_call>\n</tool_call>x", [ParsedText("<tool_call>\n</tool_call>x")]),
        ('{"name": "nobody", "arguments": {}}', [ParsedText('{"name": "nobody", "arguments": {}}')]),
        ('{"city": "Oslo"} is JSON.', [ParsedText('{"city": "Oslo"} is JSON.')]),
        ("I <3 tools [TOOL", [ParsedText("I <3 tools [TOOL")]),
        ('Say {"name": "f", "arguments": {}}', [ParsedText('Say {"name": "f", "arguments": {}}')]),
        ("[1, 2]", [ParsedText("[1, 2]")]),
        ("  ", [ParsedText("  ")]),
        ("", []),
    ],
)
def test_answer_is_split_into_text_and_calls(text: str, expected: list[ParsedText | ParsedCall]) -> None:
    assert merged(list(parse_answer(text, NAMES))) == expected
    parser = CallParser(NAMES)
    pieces = [piece for character in text for piece in parser.feed(character)]
    assert merged([*pieces, *parser.finish()]) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": NaN}',
        '{"a": "\\ud800"}',
        '{"a": ' + "[" * 200 + "]" * 200 + "}",
        '{"a": ' + "[" * 20_000 + "]" * 20_000 + "}",
        '{"a": ' + "[" * 20_000,
        '{"a": ' + '{"b": ' * 20_000,
        '{"a": ' + "9" * 5000 + "}",
    ],
    ids=["constant", "half a character", "deep", "very deep", "endless", "endless objects", "long number"],
)
@pytest.mark.parametrize("opener", ["<tool_call>", ""])
def test_call_whose_arguments_no_client_could_read_is_text(opener: str, arguments: str) -> None:
    text = f'{opener}{{"name": "f", "arguments": {arguments}}}'
    assert merged(list(parse_answer(text, NAMES))) == [ParsedText(text)]
    parser = CallParser(NAMES)
    halves = [*parser.feed(text[: len(text) // 2]), *parser.feed(text[len(text) // 2 :]), *parser.finish()]
    assert merged(halves) == [ParsedText(text)]


def test_two_calls_in_a_row_come_out_as_two() -> None:
    one = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert parse_answer(f"{one}\n{one}\n", NAMES) == (OSLO, OSLO)


def test_arguments_keep_their_own_bytes() -> None:
    arguments = '{"b":  1.50,"a": "\\u00e9 </tool_call> }"}'
    (call,) = parse_answer(f'<tool_call>{{"name":"f","arguments":{arguments}}}</tool_call>', NAMES)
    assert call == ParsedCall("f", arguments)


def test_plain_text_is_not_held_back() -> None:
    parser = CallParser(NAMES)
    assert parser.feed("Hello ") == (ParsedText("Hello"),)
    assert parser.feed("x <tool") == (ParsedText(" x"),)
    assert parser.feed("box>") == (ParsedText(" <toolbox>"),)


def test_answer_that_opens_with_other_json_is_not_held_back() -> None:
    parser = CallParser(NAMES)
    assert parser.feed('{"answer": ') == (ParsedText('{"answer":'),)


def test_given_opening_is_read_in_front_of_the_answer() -> None:
    parser = CallParser(NAMES, opening=write_opening("f"))
    assert parser.feed(' {"city": "Oslo"}}') == ()
    assert (*parser.feed("\n</tool_call>"), *parser.finish()) == (OSLO,)


@pytest.mark.parametrize("style", ["hermes", "mistral", "llama"])
def test_written_call_is_read_back_and_starts_with_its_opening(style: str) -> None:
    written = write_call("f", '{"city": "Oslo"}', style)  # type: ignore[arg-type]
    assert parse_answer(written, NAMES) == (OSLO,)
    assert written.startswith(write_opening("f", style))  # type: ignore[arg-type]
    assert written.startswith(write_opening(None, style))  # type: ignore[arg-type]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=20), json_values, max_size=3), st.text(max_size=30), st.integers(1, 40))
def test_pieces_of_any_size_give_what_the_whole_gives(arguments: dict[str, object], before: str, size: int) -> None:
    text = f"{before}{write_call('f', json.dumps(arguments))}"
    parser = CallParser(NAMES)
    pieces: list[ParsedText | ParsedCall] = []
    for start in range(0, len(text), size):
        pieces += parser.feed(text[start : start + size])
    assert merged([*pieces, *parser.finish()]) == merged(list(parse_answer(text, NAMES)))


@given(st.text(alphabet='<tool_cal>/[TOOL_CALLS]{}"name:f, \n', max_size=80))
def test_text_survives_unless_it_is_a_call(text: str) -> None:
    parsed = parse_answer(text, NAMES)
    if not any(isinstance(piece, ParsedCall) for piece in parsed):
        assert "".join(piece.text for piece in parsed if isinstance(piece, ParsedText)) == text
