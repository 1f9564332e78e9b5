"""Recorded requests as logs have them: a small sample of each format, and a text for what no model takes."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.api.recorded import Recorded, RecordedReader, _NearEncoder
from anaphora.errors import RequestError
from anaphora.explain.reasons import explain
from anaphora.explain.words import encode_words

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "agent-requests"
ASKED = [{"role": "user", "content": "How deep is it?"}]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def read(*values: Any) -> list[Recorded]:
    reader = RecordedReader()
    return [one for value in values for one in reader.read(value)]


def text_of(value: Any) -> str:
    (one,) = read(value)
    return one.side.rendered.text


def test_bodies_and_what_wraps_them_read_alike() -> None:
    body = {"model": "m", "messages": ASKED}
    wrapped = [
        body,
        {"body": body},
        {"request": body},
        {"request": {"method": "POST", "body": body}, "response": {"status": 200}},
        {"proxy_server_request": {"url": "x", "body": body}, "messages": []},
        {"model": "m", "messages": ASKED, "model_parameters": {"temperature": 1}, "response": {}},
    ]
    assert {text_of(value) for value in wrapped} == {text_of(body)}


def test_a_gateways_log_has_times_usage_and_tenant() -> None:
    (one,) = read(
        {
            "model": "gpt-5",
            "messages": ASKED,
            "model_parameters": {"tools": [{"type": "function", "function": {"name": "sound"}}]},
            "startTime": 1764583200.5,
            "completionStartTime": "2025-12-01T10:00:02+00:00",
            "metadata": {"user_api_key_hash": "abc"},
            "response": {"usage": {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21}},
        }
    )
    assert one.side.scope == {"model": "gpt-5", "tenant": "abc"}
    assert one.side.prompt.tools[0].name == "sound"
    assert (one.at_s, one.began_s) == (1764583200.5, 1764583202.0)
    assert one.usage is not None
    assert (one.usage.input, one.usage.read) == (20, 0)


def test_our_own_log_tells_when_a_request_came_and_began() -> None:
    anaphora = {"total_ms": 2000.0, "time_to_first_token_ms": 500.0}
    (one,) = read(
        {"time": "2026-12-01T10:00:10+00:00", "anaphora": anaphora, "body": {"model": "m", "messages": ASKED}}
    )
    assert one.at_s is not None
    assert one.began_s == one.at_s + 0.5


@pytest.mark.parametrize("value", [1764583200123, 1764583200123000, 1764583200123000000, 1764583200.123])
def test_times_are_read_in_any_unit(value: float) -> None:
    (one,) = read({"body": {"messages": ASKED}, "timestamp": value})
    assert one.at_s == pytest.approx(1764583200.123, abs=1e-3)


ODD = [None, True, "soon", "0001-01-01", "9999-12-31T23:59:59", math.nan, math.inf, 10**400, -(10**400), [], {}]


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:20])
def test_what_is_no_time_is_left_out(value: object) -> None:
    own = {"total_ms": value, "time_to_first_token_ms": value}
    (one,) = read({"body": {"messages": ASKED}, "timestamp": value, "anaphora": own})
    assert one.began_s is None
    assert one.at_s is None or str(value) == "9999-12-31T23:59:59"
    (one,) = read({"body": {"messages": ASKED}, "time": 7, "anaphora": {**own, "total_ms": 2000}})
    assert (one.at_s, one.began_s) == (5.0, 7.0)


@pytest.mark.parametrize("content", [5, 1.5, True, {"a": 1}, None, []], ids=repr)
def test_a_transcripts_message_without_content_is_passed_over(content: object) -> None:
    asked = {"sessionId": "s", "message": {"role": "user", "content": "How deep is it?"}}
    odd = {"sessionId": "s", "message": {"role": "user", "content": content}}
    answer = {"sessionId": "s", "message": {"role": "assistant", "content": [{"type": "text", "text": "Nine."}]}}
    (one,) = read(asked, odd, answer)
    assert len(one.side.prompt.messages) == 1


def test_an_agents_transcript_is_a_request_for_each_answer() -> None:
    def line(role: str, content: Any, **message: Any) -> dict[str, Any]:
        return {"type": role, "sessionId": "s", "message": {"role": role, "content": content, **message}}

    text = {"type": "text", "text": "I look."}
    use = {"type": "tool_use", "id": "t", "name": "sound", "input": {}}
    usage = {"input_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 0, "output_tokens": 1}
    lines = [
        line("user", "How deep is it?"),
        line("assistant", [text], id="m1", model="claude", usage=usage),
        line("assistant", [use], id="m1", model="claude", usage=usage),
        line("user", [{"type": "tool_result", "tool_use_id": "t", "content": "9 m"}]),
        line("assistant", [{"type": "text", "text": "Nine."}], id="m2", model="claude", usage=usage),
        {"type": "summary", "sessionId": "s", "message": {"role": "assistant", "content": None, "id": "m3"}},
    ]
    first, second, _ = read(*lines)
    assert [len(one.side.prompt.messages) for one in (first, second)] == [1, 3]
    assert first.usage is not None
    assert first.usage.read == 7
    assert [part.path for part in second.side.prompt.messages[1].parts] == [f"messages[1].content[{i}]" for i in (0, 1)]
    assert explain(first.side, second.side).reason == "none"


@pytest.mark.parametrize("place", ["content", "tool_result"])
def test_pictures_and_documents_have_a_text_that_changes_with_them(place: str) -> None:
    def body(data: str) -> dict[str, Any]:
        image = {**IMAGE, "source": {**IMAGE["source"], "data": data}, "cache_control": {"type": "ephemeral"}}
        part = image if place == "content" else {"type": "tool_result", "tool_use_id": "t", "content": [image]}
        return {"messages": [{"role": "user", "content": [part]}], "system": "Be kind."}

    first, second = read(body("AAAA"), body("AAAB"))
    assert "[image image" in first.side.rendered.text
    assert first.side.rendered.text != second.side.rendered.text
    if place == "content":
        assert explain(first.side, second.side).reason == "image_changed"
        assert first.side.prompt.messages[0].parts[0].mark is not None


def test_what_only_a_host_could_run_is_read_too() -> None:
    search = {
        "type": "web_search_20250305",
        "name": "web_search",
        "max_uses": 3,
        "cache_control": {"type": "ephemeral"},
    }
    (one,) = read(
        {"messages": ASKED, "system": "x", "tools": [search], "mcp_servers": [{}], "output_config": {"format": {}}}
    )
    assert (one.side.prompt.tools[0].name, one.side.prompt.tools[0].mark is not None) == ("web_search", True)
    (chat,) = read({"messages": ASKED, "tools": [{"type": "custom", "custom": {"name": "x"}}]})
    assert chat.side.prompt.tools[0].name == "custom"
    items = [{"type": "item_reference", "id": "x"}, {"type": "web_search_call", "id": "w"}, *ASKED]
    (responses,) = read({"input": items, "background": True, "text": {"format": {"type": "json_object"}}})
    assert [message.role for message in responses.side.prompt.messages] == ["assistant", "user"]
    picture = {"type": "input_image", "image_url": "data:x"}
    assert "[image input_image" in text_of(
        {"input": [{"role": "user", "content": [picture, {"type": "input_text", "text": "a"}]}]}
    )


def test_the_line_that_our_server_drops_is_kept() -> None:
    line = "x-anthropic-billing-header: cch=4f9d2;\nBe kind."
    for system in (line, [{"type": "text", "text": line}]):
        assert "-anthropic-billing-header: cch=4f9d2;" in text_of({"system": system, "messages": ASKED})


@pytest.mark.parametrize(
    "value", [[], 3, {}, {"messages": "x"}, {"body": {"messages": [{"role": "cook"}]}}, {"input": 3}]
)
def test_what_is_no_request_is_refused(value: Any) -> None:
    with pytest.raises(RequestError):
        read(value)


@given(st.lists(st.text(alphabet="ab \n.,é", max_size=30), max_size=8))
def test_texts_near_each_other_are_cut_as_they_are_alone(texts: list[str]) -> None:
    near = _NearEncoder()
    grown = [*texts, *(text + "ab b" for text in texts)]
    for text in grown:
        one, other = near(text, opens_text=False), encode_words(text)
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.offsets.tolist() == other.offsets.tolist()


@pytest.mark.skipif(not DATA.is_dir(), reason="the data folder is not there")
def test_bodies_of_real_agents_are_read() -> None:
    for path in sorted(DATA.glob("*.json")):
        for value in json.loads(path.read_text(encoding="utf-8")):
            (one,) = read(value)
            assert len(one.side.rendered.tokens) > 100
            assert not one.side.rendered.unlocated


@pytest.mark.parametrize("name", ["cache_control", "input_schema", "tool_use", "tool_result", "anthropic_version"])
def test_a_body_is_of_the_messages_api_where_a_name_or_value_is_not_where_a_text_says_so(name: str) -> None:
    said = {"model": "m", "messages": [{"role": "user", "content": f'What is "{name}" for?'}]}
    (chat,) = read(said)
    (messages,) = read({**said, "metadata": {name: None}})
    assert (chat.api, messages.api) == ("chat", "messages")
