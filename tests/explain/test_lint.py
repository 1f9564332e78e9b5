"""What lint finds in one prompt and in logs. Method: small prompts, a token is a character."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompts import prompt_of, side, tool

from anaphora.core.index import common_length
from anaphora.explain.lint import Sent, lint_log, lint_prompt
from anaphora.explain.reasons import Side
from anaphora.prompt.canonical import CacheMark, Message, Prompt, Text

LONG = "You answer questions about the harbour. " * 5


def timed(minute: int, *messages: str) -> Side:
    return side(prompt_of(*messages, system=f"It is 2026-12-01T10:{minute:02}:00Z. {LONG}"))


@pytest.mark.parametrize(
    ("text", "severity", "name"),
    [
        ("Now: 2026-12-01T10:00:00Z. Be kind.", "error", "a time (2026-12-01T10:00:00Z)"),
        ("id 0b9c8d7e-1111-4222-8333-444455556666", "error", "a UUID (0b9c8d7e-1111-4222-8333-444455556666)"),
        ("cch=7f9c2a1be4d03a55;", "error", "a random id (7f9c2a1be4d03a55)"),
        ("Today is 1 December 2026.", "warning", "a date (1 December 2026)"),
    ],
)
def test_volatile_system_text_is_found_with_what_stands_behind_it(text: str, severity: str, name: str) -> None:
    asked = side(prompt_of("Hi", system=text))
    (found,) = lint_prompt(asked)
    value = name[name.index("(") + 1 : -1]
    assert (found.rule, found.severity, found.path) == ("volatile-front", severity, "system")
    assert found.num_tokens == len(asked.rendered.text) - asked.rendered.text.index(value)
    assert name in found.says


def test_volatile_tool_and_opening_system_message_are_in_front_too() -> None:
    opening = Message("system", (Text("At 10:00", "messages[0].content"),), "messages[0]")
    asked = Message("user", (Text("It is 11:00", "messages[1].content"),), "messages[1]")
    prompt = Prompt((opening, asked), tools=(tool("look", 0, description="Since 2026-12-01T10:00Z"),))
    assert [one.path for one in lint_prompt(side(prompt))] == ["tools[0]", "messages[0].content"]


@pytest.mark.parametrize("system", ["Be kind.", "Answer in 3 sentences, at most 250 words.", ""])
def test_steady_text_and_what_a_user_says_are_not_reported(system: str) -> None:
    assert lint_prompt(side(prompt_of("It is 2026-12-01T10:00:00Z", system=system))) == ()


def test_breakpoint_on_a_part_that_changes() -> None:
    part = Text("It is 10:00.", "messages[0].content", CacheMark())
    found = lint_prompt(side(Prompt((Message("user", (part,), "messages[0]"),))))
    assert [(one.rule, one.path) for one in found] == [("volatile-marked", "messages[0].content")]


def test_prefix_below_the_minimum_at_a_breakpoint() -> None:
    marked = side(prompt_of("Hi", system="Be kind.", mark=CacheMark()))
    end = marked.rendered.text.index("Be kind.") + len("Be kind.")
    assert lint_prompt(marked, min_tokens=end) == ()
    (found,) = lint_prompt(marked, min_tokens=end + 1)
    assert (found.rule, found.severity, found.path) == ("prefix-short", "warning", "system")
    assert lint_prompt(side(prompt_of("Hi")), min_tokens=10**6) == (), "no breakpoint, no finding"


def test_log_names_the_cause_and_what_it_costs() -> None:
    log = [timed(minute, "How deep is it?") for minute in (10, 21, 32)]
    report = lint_log(log)
    (found,) = report.findings
    assert (found.rule, found.severity, found.path, found.num_requests) == ("miss", "error", "system", 2)
    assert found.says == "A time differs."
    assert found.request_index == 1
    rest = f":00Z. {LONG}"  # of the part with the time
    assert found.num_tokens == report.num_lost == 2 * (len(rest) + len("How deep is it?"))
    assert report.num_tokens == 3 * len(log[0].rendered.tokens)
    assert report.num_reused == 2 * log[0].rendered.text.index("10:00Z")  # "T10:" is shared, the minutes differ


def test_log_that_appends_has_no_findings() -> None:
    log = [side(prompt_of("a", system=LONG)), side(prompt_of("a", "b", "c", system=LONG))]
    report = lint_log(log)
    assert report.findings == ()
    assert report.num_reused == len(log[0].rendered.tokens)
    assert report.num_lost == 0


def test_log_forgives_a_look_that_stays_the_same() -> None:
    dated = [side(prompt_of(word, system="Facts as of 2026-12-01.")) for word in ("a", "b")]
    assert lint_log(dated).findings == ()
    assert [one.rule for one in lint_log(dated[:1]).findings] == ["volatile-front"]


def test_log_finds_tools_that_are_not_sorted() -> None:
    names = ("look", "find", "swim")
    orders = [(0, 1, 2), (1, 0, 2), (2, 1, 0)]
    log = [
        side(prompt_of("Hi", tools=tuple(tool(names[place], index) for index, place in enumerate(order))))
        for order in orders
    ]
    (found,) = lint_log(log).findings
    assert (found.says, found.num_requests) == ("The same tools stand in another order.", 2)
    assert found.advice == "Sort tools by name before sending them."


def test_log_finds_equal_prompts_in_different_scopes() -> None:
    first, second = side(prompt_of("Hi"), tenant="a"), side(prompt_of("Hi"), tenant="b")
    (found,) = lint_log([first, second]).findings
    assert (found.path, found.num_tokens) == ("tenant", len(first.rendered.tokens))
    assert lint_log([first, second]).num_reused == 0


def test_of_equally_close_requests_the_same_scope_wins() -> None:
    asked = side(prompt_of("Hi"), tenant="a")
    other = replace(asked, scope={"tenant": "b"})
    report = lint_log([asked, other, asked])
    assert report.num_reused == len(asked.rendered.tokens)
    assert report.num_lost == len(asked.rendered.tokens), "the second alone goes to another cache"


def test_window_bounds_how_far_back_is_looked() -> None:
    log = [side(prompt_of(word, system="")) for word in ("same", "x", "same")]
    whole = len(log[0].rendered.tokens)
    assert lint_log(log).num_reused == common_length(log[0].rendered.tokens, log[1].rendered.tokens) + whole
    assert lint_log(log, window=1).num_reused < lint_log(log).num_reused


@given(st.lists(st.lists(st.sampled_from(["a", "b", "10:00", "11:30"]), min_size=1, max_size=4), max_size=6))
def test_reused_and_lost_never_exceed_what_was_sent(log: list[list[str]]) -> None:
    report = lint_log([side(prompt_of(*messages)) for messages in log])
    assert 0 <= report.num_reused + report.num_lost <= report.num_tokens
    assert report.num_requests == len(log)
    assert sum(one.num_tokens for one in report.findings if one.rule == "miss") == report.num_lost


def marked(question: str, ttl: str | None = None) -> Side:
    return side(prompt_of(question, system=LONG, mark=CacheMark(ttl)))


def test_achieved_reuse_stands_beside_what_can_be() -> None:
    asked = side(prompt_of("Hi", system=LONG))
    report = lint_log([Sent(asked, num_read=0), Sent(asked, num_read=50), Sent(asked)])
    assert (report.num_read, report.num_tokens_told) == (50, 2 * len(asked.rendered.tokens))
    assert lint_log([asked]).num_read is None


def test_nothing_marked_where_marks_are_needed() -> None:
    log = [Sent(side(prompt_of(question, system=LONG)), needs_marks=True) for question in ("a", "b")]
    (found,) = lint_log(log, min_tokens=100).findings
    assert (found.rule, found.path) == ("unmarked", "messages[0].content")
    assert found.num_tokens > len(LONG)
    assert lint_log(log).findings == (), "without a host's rules nothing has to be marked"
    assert (
        lint_log([Sent(marked("a"), needs_marks=True), Sent(marked("b"), needs_marks=True)], min_tokens=9).findings
        == ()
    )


@pytest.mark.parametrize(("ttl", "gap_s", "is_late"), [(None, 299, False), (None, 301, True), ("1h", 301, False)])
def test_coming_too_late_for_what_was_marked(ttl: str | None, gap_s: float, is_late: bool) -> None:
    report = lint_log([Sent(marked("a", ttl), at_s=0.0), Sent(marked("a", ttl), at_s=gap_s)])
    assert [one.rule for one in report.findings] == (["idle"] if is_late else [])


def test_sending_many_before_the_first_begins_to_answer() -> None:
    asked = side(prompt_of("Hi", system=LONG))
    report = lint_log([Sent(asked, at_s=0.0, began_s=2.0), Sent(asked, at_s=1.0, began_s=2.0), Sent(asked, at_s=3.0)])
    (found,) = report.findings
    assert (found.rule, found.num_requests, found.num_tokens) == ("fan-out", 1, len(asked.rendered.tokens))
    assert report.advice == ("Warm the prefix with one request before sending many.",)


def test_ordering_is_suggested_where_it_pays() -> None:
    assert lint_log([timed(1, "a"), timed(2, "a")]).advice == (
        "Put what changes behind what stays: move what differs in system to the end.",
    )
    tools = (tool("look", 0), tool("find", 1)), (tool("find", 0), tool("look", 1))
    assert lint_log([side(prompt_of("Hi", tools=one)) for one in tools]).advice == (
        "Write tools and JSON in one fixed order.",
    )


def test_a_mark_is_suggested_where_it_would_be_read() -> None:
    log = [Sent(side(prompt_of(question, system=LONG)), needs_marks=True) for question in ("How?", "Where?", "Who?")]
    end = log[0].side.rendered.text.index(LONG) + len(LONG)
    assert lint_log(log).advice == (
        f"Mark system: the {end:,} tokens up to there are what 2 of 2 requests that repeat anything repeat.",
    )
    assert lint_log(log, min_tokens=10**6).advice == ()
    assert lint_log([replace(one, side=marked("a")) for one in log]).advice == ()
    assert lint_log([replace(one, needs_marks=False) for one in log]).advice == ()


def test_the_same_change_in_several_messages_is_one_finding() -> None:
    turns = [f"Turn {number} of the tide, and what was said." for number in range(7)]
    log = [
        side(prompt_of(*turns[:3])),
        side(prompt_of(f"{turns[0]}!", *turns[1:5])),
        side(prompt_of(f"{turns[0]}!", turns[1], f"{turns[2]}!", *turns[3:])),
    ]
    (found,) = lint_log(log).findings
    assert (found.path, found.num_requests, found.cause) == ("messages[0].content", 2, "history_edited")
