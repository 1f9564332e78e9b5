"""Anthropic's caching contract over HTTP with the official client: every vector by its usage numbers.

How many tokens a prefix has is learnt from the request that writes it; a later request must read exactly these.
"""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from hosted_world import MODEL, Hosted, check_identities, counts, hosted, talk, text

from anaphora.engine.engine import Engine
from anaphora.engine.settings import EngineSettings
from anaphora.testing.random_models import random_model


@pytest.fixture
def host(roomy: Engine) -> Iterator[Hosted]:
    with hosted(roomy) as one:
        yield one


def written(usage: Any) -> int:
    """Tokens of a prefix that was written from nothing."""
    assert usage.cache_read_input_tokens == 0
    return int(usage.cache_creation_input_tokens)


# Lookback.


def test_l1_first_request_writes_everything_up_to_its_mark(host: Hosted) -> None:
    usage = host.usage(talk(10, [10], about="L1"))
    assert usage.cache_read_input_tokens == 0
    assert usage.cache_creation_input_tokens > 0
    assert usage.input_tokens < 20  # what the template puts behind the last block


def test_l2_reads_the_earlier_entry_and_writes_the_rest(host: Hosted) -> None:
    ten = written(host.usage(talk(10, [10], about="L2")))
    read, more, rest = counts(host.usage(talk(15, [15], about="L2")))
    assert (read, more > 0, rest < 20) == (ten, True, True)


def test_l3_and_l4_an_entry_too_far_back_needs_a_second_mark(host: Hosted) -> None:
    fifteen = written(host.usage(talk(15, [15], about="L3")))
    assert written(host.usage(talk(35, [35], about="L3"))) > fifteen
    host.usage(talk(15, [15], about="L4"))
    assert counts(host.usage(talk(35, [15, 35], about="L4")))[0] == fifteen


def test_l5_the_twentieth_position_is_still_seen(host: Hosted) -> None:
    fifteen = written(host.usage(talk(15, [15], about="L5")))
    assert counts(host.usage(talk(34, [34], about="L5")))[0] == fifteen


def test_l6_and_l7_what_varies_belongs_behind_the_mark(host: Hosted) -> None:
    six = written(host.usage(talk(6, [6], about="L6", b6="time 1")))
    assert written(host.usage(talk(6, [6], about="L6", b6="time 2"))) == six
    five = written(host.usage(talk(6, [5], about="L7", b6="time 1")))
    read, more, rest = counts(host.usage(talk(6, [5], about="L7", b6="time 2")))
    assert (read, more, rest > 0) == (five, 0, True)


def test_l8_thirty_calls_and_their_results_are_two_positions(host: Hosted) -> None:
    ten = written(host.usage(talk(9, [9], about="L8")))
    calls = [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {"n": n}} for n in range(30)]
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": f"t{n}", "content": str(n)} for n in range(30)
    ]
    results[-1]["cache_control"] = {"type": "ephemeral"}
    turns = [*talk(9, about="L8"), {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    assert counts(host.usage(turns))[0] == ten


def test_l9_a_systems_end_is_read_where_it_was_written(host: Hosted) -> None:
    for marks, expects_hit in ((None, False), ("5m", True)):
        system = [text(f"system {marks}", marks)]
        first = host.usage(talk(1, [1], about=f"first {marks}"), system=system)
        second = host.usage(talk(1, [1], about=f"second {marks}"), system=system)
        assert (second.cache_read_input_tokens > 0) is expects_hit
        assert second.cache_read_input_tokens < written(first)


# Bills.


BILLS = [
    (None, {2: "1h", 4: "5m"}, ("", "0-2", "2-4")),
    ({2: "1h"}, {2: "1h", 4: "5m"}, ("0-2", "", "2-4")),
    ({3: "5m"}, {2: "1h", 4: "5m"}, ("0-3", "", "3-4")),
    ({1: "1h"}, {1: "1h", 3: "1h", 4: "5m"}, ("0-1", "1-3", "3-4")),
    ({2: "1h"}, {2: "1h"}, ("0-2", "", "")),
    ({4: "5m"}, {4: "5m"}, ("0-4", "", "")),
]


@pytest.mark.parametrize(("earlier", "marks", "expected"), BILLS)
def test_billing_table(
    host: Hosted, earlier: dict[int, str] | None, marks: dict[int, str], expected: tuple[str, ...]
) -> None:
    about = f"bill {BILLS.index((earlier, marks, expected))}"  # type: ignore[arg-type]
    ends = {0: 0}
    for n in range(1, 5):  # under another key: how long each prefix is
        ends[n] = written(host.usage(talk(5, [n], about=about), key="blue-key"))
        host.at(host.clock[0] + 4000)
    if earlier:
        host.usage(talk(5, earlier, about=about))
    usage = host.usage(talk(5, marks, about=about))
    sizes = [sum(ends[int(b)] - ends[int(a)] for a, b in [one.split("-")]) if one else 0 for one in expected]
    split = usage.cache_creation
    assert [usage.cache_read_input_tokens, split.ephemeral_1h_input_tokens, split.ephemeral_5m_input_tokens] == sizes


# Lifetimes.


def test_lifetimes_run_from_the_start_and_reads_refresh_them(host: Hosted) -> None:
    turns = talk(3, [3], about="life")
    whole = written(host.usage(turns))
    for now_s in (300, 600, 900):
        host.at(now_s)
        assert host.usage(turns).cache_read_input_tokens == whole
    host.at(1201)
    assert written(host.usage(turns)) == whole


def test_an_hour_is_an_hour_and_a_five_minute_reader_keeps_it_one(host: Hosted) -> None:
    host.usage(talk(3, {3: "1h"}, about="hour"))
    host.at(3600)
    assert host.usage(talk(3, [3], about="hour")).cache_read_input_tokens > 0
    host.at(7200)
    assert host.usage(talk(3, [3], about="hour")).cache_read_input_tokens > 0


def test_another_key_reads_nothing(host: Hosted) -> None:
    turns = talk(3, [3], about="keys")
    whole = written(host.usage(turns, key="red-key"))
    assert written(host.usage(turns, key="blue-key")) == whole


def test_prewarming_writes_and_the_real_request_reads(host: Hosted) -> None:
    system = [text("prewarm: a long handbook", "1h")]
    warm = host.message([{"role": "user", "content": "warm up"}], system=system, max_tokens=0)
    check_identities(warm)
    assert (warm.content, warm.stop_reason, warm.usage.output_tokens) == ([], "max_tokens", 0)
    real = host.usage([{"role": "user", "content": "a question"}], system=system)
    assert real.cache_read_input_tokens == written(warm.usage)
    assert warm.usage.cache_creation.ephemeral_1h_input_tokens == written(warm.usage)


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}},
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "tool", "name": "f"}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    ],
)
def test_what_prewarming_cannot_go_with(host: Hosted, fields: dict[str, Any]) -> None:
    with pytest.raises(anthropic.BadRequestError):
        host.message([{"role": "user", "content": "warm"}], max_tokens=0, **fields)


def test_automatic_caching_follows_the_conversation(host: Hosted) -> None:
    mark = {"type": "ephemeral"}
    one = written(host.usage(talk(1, about="auto"), cache_control=mark))
    assert host.usage(talk(3, about="auto"), cache_control=mark).cache_read_input_tokens == one


def test_without_marks_everything_is_input_though_the_engine_reuses(host: Hosted) -> None:
    turns = talk(3, about="unmarked")
    host.usage(turns)
    answer = host.message(turns)
    assert counts(answer.usage) == (0, 0, answer.anaphora["prompt_tokens"])
    assert answer.anaphora["reused_tokens"] == answer.anaphora["prompt_tokens"] - 1


def test_ten_turns_with_tools_read_all_that_was_written_before(host: Hosted) -> None:
    """A loop as agents run it: automatic caching, calls and results in every turn, marks that move along."""
    tools = [{"name": "f", "description": "ten turns", "input_schema": {"type": "object"}}]
    turns: list[Any] = [{"role": "user", "content": "begin"}]
    known = 0
    for n in range(10):
        answer = host.message(turns, tools=tools, cache_control={"type": "ephemeral"}, max_tokens=4)
        check_identities(answer)
        assert answer.usage.cache_read_input_tokens == known
        assert answer.usage.cache_creation_input_tokens > 0
        known += answer.usage.cache_creation_input_tokens
        use = {"type": "tool_use", "id": f"t{n}", "name": "f", "input": {"n": n}}
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"result {n}"}
        turns += [{"role": "assistant", "content": [*answer.content, use]}, {"role": "user", "content": [result]}]
        host.at(host.clock[0] + 200)


# What invalidates what.

TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {}, "b": {}}}}
MARKED = {"type": "ephemeral"}


def marked_request(about: str) -> dict[str, Any]:
    """A mark at the end of tools, of system, and of messages."""
    return {
        "tools": [{**TOOL, "description": about, "cache_control": MARKED}],
        "system": [text("S", "5m")],
        "messages": [
            {"role": "user", "content": "M"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1, "y": 2}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": "R"}, text("go", "5m")],
            },
        ],
    }


def levels(host: Hosted, about: str) -> dict[str, int]:
    """Tokens to the end of each level."""
    request = marked_request(about)
    whole = written(host.usage(**request))
    changed = {**request, "output_config": {"effort": "max"}}
    system = host.usage(**changed).cache_read_input_tokens
    tools = host.usage(**{**request, "system": [text("S2", "5m")]}).cache_read_input_tokens
    assert 0 < tools < system < whole
    return {"nothing": 0, "tools": tools, "system": system, "messages": whole}


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("model", {"model": "other"}, "nothing"),
    ("tool description", {"tools": [{**TOOL, "cache_control": MARKED}]}, "nothing"),
    ("system text", {"system": [text("S3", "5m")]}, "tools"),
    ("speed", {"extra_body": {"speed": "fast"}}, "tools"),
    ("tool_choice", {"tool_choice": {"type": "none"}}, "system"),
    ("parallel tools", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "system"),
    ("thinking", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "system"),
    ("effort", {"output_config": {"effort": "low"}}, "system"),
    ("task budget", {"extra_body": {"output_config": {"task_budget": {"total": 9}}}}, "system"),
    ("answer format", {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}, "tools"),
    ("default effort", {"output_config": {"effort": "high"}}, "messages"),
    ("default thinking", {"thinking": {"type": "disabled"}}, "messages"),
    ("default tool_choice", {"tool_choice": {"type": "auto"}}, "messages"),
    ("max_tokens", {"max_tokens": 2}, "messages"),
    ("temperature", {"extra_body": {"temperature": 0.5}}, "messages"),
    ("stop_sequences", {"stop_sequences": ["zzz"]}, "messages"),
    ("metadata", {"metadata": {"user_id": "u"}}, "messages"),
    ("beta header", {"extra_headers": {"anthropic-beta": "prompt-caching-2024-07-31"}}, "messages"),
]


@pytest.mark.parametrize(("name", "change", "kept"), CHANGES, ids=[name for name, _, _ in CHANGES])
def test_what_a_change_loses(host: Hosted, name: str, change: dict[str, Any], kept: str) -> None:
    ends = levels(host, name)
    assert host.usage(**{**marked_request(name), **change}).cache_read_input_tokens == ends[kept]


@pytest.mark.parametrize("change", ["added", "removed", "reordered", "renamed", "other schema", "other key order"])
def test_a_change_of_tools_loses_everything(host: Hosted, change: str) -> None:
    request = marked_request(f"tools {change}")
    last = request["tools"][0]
    first, third = {**TOOL, "name": "g"}, {**TOOL, "name": "h"}
    shuffled = {"type": "object", "properties": {"b": {}, "a": {}}}
    edits = {
        "added": [first, third, last],
        "removed": [last],
        "reordered": [last, first],
        "renamed": [third, last],
        "other schema": [{**first, "input_schema": {"type": "object"}}, last],
        "other key order": [{**first, "input_schema": shuffled}, last],
    }
    whole = written(host.usage(**{**request, "tools": [first, last]}))
    assert written(host.usage(**{**request, "tools": edits[change]})) > 0
    assert host.usage(**{**request, "tools": [first, last]}).cache_read_input_tokens == whole


@pytest.mark.parametrize("change", ["early message", "key order", "removed", "reordered"])
def test_changed_history_keeps_tools_and_system(host: Hosted, change: str) -> None:
    ends = levels(host, f"history {change}")
    request = marked_request(f"history {change}")
    first, call, last = request["messages"]
    if change == "early message":
        turns = [{"role": "user", "content": "M2"}, call, last]
    elif change == "key order":
        block = {**call["content"][0], "input": {"y": 2, "x": 1}}
        turns = [first, {"role": "assistant", "content": [block]}, last]
    elif change == "reordered":
        turns = [first, call, {**last, "content": [text("go"), {**last["content"][0], "cache_control": MARKED}]}]
    else:
        turns = [{"role": "user", "content": [text("go", "5m")]}]
    assert host.usage(**{**request, "messages": turns}).cache_read_input_tokens == ends["system"]


def test_citations_on_or_off_lose_system_and_messages(host: Hosted) -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
    request = marked_request("citations")
    request["messages"] = [{"role": "user", "content": [{**document, "cache_control": MARKED}]}]
    host.usage(**request)
    tools = host.usage(**{**request, "system": [text("S2", "5m")]}).cache_read_input_tokens
    request["messages"] = [{"role": "user", "content": [{**document, "citations": {"enabled": True}}]}]
    assert host.usage(**request).cache_read_input_tokens == tools > 0


def test_string_content_is_one_text_block_and_marks_are_no_part_of_the_prefix(host: Hosted) -> None:
    whole = written(host.usage(talk(3, [3], about="moving")))
    turns = talk(3, about="moving")
    turns[0]["content"] = "moving 1"
    turns = [*turns, {"role": "assistant", "content": "ok"}, {"role": "user", "content": [text("next", "5m")]}]
    assert host.usage(turns).cache_read_input_tokens == whole


def budget(num_tokens: int) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", "budget_tokens": num_tokens}}


def task_budget(**fields: int) -> dict[str, Any]:
    return {"output_config": {"task_budget": {"total": 9, **fields}}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (budget(1024), budget(2048)),
        (budget(1024), {"thinking": {"type": "adaptive"}}),
        (task_budget(), task_budget(remaining=5)),
        ({"output_config": {"effort": "low"}}, {}),
    ],
)
def test_another_value_of_a_setting_keeps_tools_and_system(
    host: Hosted, before: dict[str, Any], after: dict[str, Any]
) -> None:
    about = f"values {before} {after}"
    ends = levels(host, about)
    request = marked_request(about)
    host.usage(**request, extra_body=before)
    assert host.usage(**request, extra_body=before).cache_read_input_tokens == ends["messages"]
    other = host.usage(**request, extra_body=after)
    assert other.cache_read_input_tokens == (ends["system"] if after else ends["messages"])


@pytest.mark.parametrize("keeps", [True, False])
def test_new_words_of_the_user_drop_thinking_on_models_that_do(roomy: Engine, keeps: bool) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}, "cache_control": MARKED}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "R"}
    system = [text(f"thinking {keeps}", "5m")]
    turns: list[Any] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": [thought, call]}]
    turns.append({"role": "user", "content": [result]})
    more = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "and now?"}]
    with hosted(roomy, keeps_thinking=keeps) as host:
        whole = written(host.usage(turns, system=system))
        alone = host.usage([{"role": "user", "content": "other"}], system=system).cache_read_input_tokens
        assert 0 < alone < whole
        assert host.usage(turns, system=system).cache_read_input_tokens == whole
        assert host.usage([*turns, *more], system=system).cache_read_input_tokens == (whole if keeps else alone)


# Below the minimum; refusals.


def test_below_the_minimum_nothing_is_counted_and_nothing_fails(roomy: Engine) -> None:
    with hosted(roomy, "anthropic:claude-opus-5") as host:
        turns = talk(3, [3], about="short")
        host.usage(turns)
        answer = host.message(turns)
        assert counts(answer.usage) == (0, 0, answer.anaphora["prompt_tokens"])
        long = [{"role": "user", "content": [text("x" * 1200, "5m")]}]
        assert host.usage(long).cache_creation_input_tokens > 512
        assert host.usage(long).cache_read_input_tokens > 512


def refused(host: Hosted, messages: list[Any], **fields: Any) -> str:
    with pytest.raises(anthropic.BadRequestError) as caught:
        host.message(messages, **fields)
    error = caught.value.body["error"]  # type: ignore[index]
    assert error["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError):
        host.claude().messages.count_tokens(model=MODEL, messages=messages, **fields)
    return str(error["message"])


def test_a_fifth_mark(host: Hosted) -> None:
    message = refused(host, talk(6, [1, 2, 3, 4, 5], about="five"))
    assert "maximum of 4 blocks with cache_control" in message
    assert "Found 5" in message


def test_marks_in_tools_system_and_tool_results_count(host: Hosted) -> None:
    inner = [{"type": "text", "text": "R", "cache_control": MARKED}, text("more", "5m")]
    turns: list[Any] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": inner}, text("x", "5m")]},
    ]
    tools = [{**TOOL, "cache_control": MARKED}]
    assert host.usage(turns, tools=tools).cache_creation_input_tokens > 0
    assert "Found 5" in refused(host, turns, tools=tools, system=[text("S", "5m")])


def test_four_marks_and_an_automatic_one(host: Hosted) -> None:
    turns = talk(5, [1, 2, 3, 4], about="four")
    assert "maximum of 4 blocks with cache_control" in refused(host, turns, cache_control=MARKED)


def test_an_automatic_mark_that_contradicts_its_target(host: Hosted) -> None:
    message = refused(host, talk(3, {3: "1h"}, about="contradiction"), cache_control=MARKED)
    assert "top-level cache_control has ttl '5m'" in message
    assert "already has ttl '1h'" in message


def test_a_mark_on_empty_text(host: Hosted) -> None:
    message = refused(host, [{"role": "user", "content": [text("a"), text("", "5m")]}])
    assert message.startswith("messages.0.content.1.text: cache_control cannot be set for empty text blocks")


def with_result(*inner: dict[str, Any], **fields: Any) -> list[Any]:
    """A call, and a result made of these blocks."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": list(inner), **fields}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    return [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]


@pytest.mark.parametrize(
    ("inner", "fields", "path"),
    [
        ([text("", "5m")], {}, "content.0.text: cache_control cannot be set for empty text blocks"),
        ([text("a", "5m"), text("b", "1h")], {}, "content.1.cache_control.ttl: "),
        ([text("a", "5m")], {"cache_control": {"type": "ephemeral", "ttl": "1h"}}, "cache_control.ttl: "),
        ([text("a", "1h"), text("b", "5m"), text("c", "1h")], {}, "content.2.cache_control.ttl: "),
    ],
)
def test_marks_inside_a_result_are_held_to_the_same_rules(
    host: Hosted, inner: list[Any], fields: dict[str, Any], path: str
) -> None:
    assert refused(host, with_result(*inner, **fields)).startswith(f"messages.2.content.0.{path}")


def test_an_hour_inside_a_result_may_not_stand_behind_five_minutes_elsewhere(host: Hosted) -> None:
    turns = with_result(text("a", "1h"), cache_control={"type": "ephemeral", "ttl": "5m"})
    assert host.usage(turns).cache_creation_input_tokens > 0
    message = refused(host, turns, system=[text("S", "5m")])
    assert message.startswith("messages.2.content.0.content.0.cache_control.ttl: ")


def test_prewarming_needs_words_of_the_user(host: Hosted) -> None:
    for content in (" \n", [text(" ")]):
        with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content: must contain non-whitespace"):
            host.message([{"role": "user", "content": content}], max_tokens=0)


def test_an_hour_behind_five_minutes(host: Hosted) -> None:
    message = refused(host, [{"role": "user", "content": [text("a", "5m"), text("b", "1h")]}])
    assert message.startswith("messages.0.content.1.cache_control.ttl:")
    assert "`tools`, `system`, `messages`" in message
    assert "system.0.cache_control.ttl" in refused(
        host, talk(1, about="x"), tools=[{**TOOL, "cache_control": MARKED}], system=[text("S", "1h")]
    )


@pytest.mark.parametrize("mark", [{"type": "ephemeral", "ttl": "2h"}, {"type": "forever"}])
def test_unknown_kinds_and_lifetimes(host: Hosted, mark: dict[str, str]) -> None:
    turns: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": mark}]}]
    assert refused(host, turns).startswith("messages.0.content.0.cache_control")
    assert refused(host, talk(1, about="x"), cache_control=mark).startswith("cache_control")


def test_thinking_and_cleared_messages_cannot_be_marked(host: Hosted) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s", "cache_control": MARKED}
    turns: list[Any] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": [thought, text("a")]}]
    turns = [*turns, {"role": "user", "content": "x"}]
    assert refused(host, turns).startswith("messages.1.content.0.cache_control:")
    cleared = {"role": "system", "content": [text("note", "5m")], "clear_at": "next_user_message"}
    assert refused(host, [{"role": "user", "content": "q"}, cleared]).startswith("messages.1.clear_at:")


# Streams, headers, the engine's own numbers.


def test_streamed_usage_is_the_whole_answers(host: Hosted) -> None:
    turns = talk(4, {2: "1h", 4: "5m"}, about="stream")[:3]
    turns.append({"role": "user", "content": [text("stream end", "5m")]})
    with host.claude().messages.stream(model=MODEL, max_tokens=2, messages=turns) as stream:  # type: ignore[arg-type]
        events = list(stream)
        final = stream.get_final_message()
    start = next(event for event in events if event.type == "message_start").message.usage
    delta = next(event for event in events if event.type == "message_delta").usage
    assert start.cache_creation is not None
    assert start.cache_creation.ephemeral_1h_input_tokens > 0
    assert start.cache_creation.ephemeral_5m_input_tokens > 0
    for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
        assert getattr(start, name) == getattr(delta, name) == getattr(final.usage, name)
    again = host.usage(turns, max_tokens=2)
    assert again.cache_read_input_tokens == start.cache_creation_input_tokens


def test_headers_and_extension_keep_contract_and_engine_apart(host: Hosted) -> None:
    turns = talk(3, [1], about="apart")
    host.usage(turns)
    raw = host.claude().messages.with_raw_response.create(model=MODEL, max_tokens=1, messages=turns)  # type: ignore[arg-type]
    answer: Any = raw.parse()
    assert raw.headers["x-anaphora-profile"] == "local"
    assert raw.headers["x-anaphora-contract-read-tokens"] == str(answer.usage.cache_read_input_tokens)
    assert int(raw.headers["x-anaphora-reused-tokens"]) > answer.usage.cache_read_input_tokens > 0
    assert answer.anaphora["contract"] == {
        "profile": "local",
        "input_tokens": answer.usage.input_tokens,
        "read_tokens": answer.usage.cache_read_input_tokens,
        "written_tokens": 0,
    }


def test_an_engine_that_keeps_nothing_reads_and_writes_nothing() -> None:
    settings = EngineSettings(cache=False, num_threads=1, kv_pool_bytes=8 * 2**20)
    with Engine(random_model("llama"), settings) as engine, hosted(engine) as host:
        turns = talk(3, [3], about="off")
        for _ in range(2):
            answer = host.message(turns)
            assert counts(answer.usage) == (0, 0, answer.anaphora["prompt_tokens"])
            assert answer.anaphora["contract"]["profile"] == "local"
