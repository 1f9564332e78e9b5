"""What is read can be written again: no constants that JSON lacks, no halves of characters, no depth without end."""

import json

import pytest

from anaphora.prompt.strict_json import MAX_DEPTH, NotJson, read_json, values_in


@pytest.mark.parametrize(
    "text", ["1", '"\\u00e9 \\ud83d\\ude00"', '{"a": [1, 2.5, true, null], "b": {}}', '"\\\\ud800"']
)
def test_json_is_read_as_it_stands(text: str) -> None:
    assert read_json(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("{'a': 1}", "line 1 column 2"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ('["\\ud800"]', "surrogate"),
        ('{"\\udfff": 1}', "surrogate"),
        ("9" * 5000, "too many digits"),
        ("[" * 100_000, "nested more than"),
        ('{"a":' * 100_000, "nested more than"),
    ],
)
def test_anything_else_is_refused_with_its_reason(text: str, words: str) -> None:
    with pytest.raises(NotJson, match=words):
        read_json(text)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_depth_has_one_limit_whatever_is_nested(opening: str, closing: str) -> None:
    levels = MAX_DEPTH // len(closing)
    assert json.dumps(read_json(opening * levels + "1" + closing * levels))
    with pytest.raises(NotJson, match=f"more than {MAX_DEPTH} levels"):
        read_json("[" + opening * levels + "1" + closing * levels + "]")


def test_values_of_a_file_are_one_value_a_list_or_lines() -> None:
    assert list(values_in('{"a": 1}')) == [("line 1", {"a": 1})]
    assert list(values_in("[1, null]")) == [("entry 1", 1), ("entry 2", None)]
    assert list(values_in('1\n\n{"a"\n"\u2028"\n')) == [("line 1", 1), ("line 3", None), ("line 4", "\u2028")]
    assert list(values_in("[" * 100_000)) == [("line 1", None)]
    assert not list(values_in(" \n"))
