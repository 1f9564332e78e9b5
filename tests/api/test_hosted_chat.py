"""OpenAI's caching contract over HTTP with the official client: measured, in steps, and at breakpoints."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from hosted_world import KEYS, MODEL, Hosted, hosted, text
from starlette.testclient import TestClient

from anaphora.api.app import ApiSettings, build_app
from anaphora.api.auth import keys_of
from anaphora.api.request_log import RequestLog
from anaphora.contract.prices import parse_prices
from anaphora.contract.profiles import profile_named
from anaphora.contract.usage_records import records_of
from anaphora.costs.price_books import price_book
from anaphora.engine.engine import Engine
from anaphora.errors import SettingsError


@pytest.fixture
def local(roomy: Engine) -> Iterator[Hosted]:
    with hosted(roomy) as one:
        yield one


@pytest.fixture
def classic(roomy: Engine) -> Iterator[Hosted]:
    with hosted(roomy, "openai:classic") as one:
        yield one


@pytest.fixture
def paid(roomy: Engine) -> Iterator[Hosted]:
    """gpt-5.6's rules with a minimum that small prompts reach."""
    profile = profile_named("openai:gpt-5.6")
    with hosted(roomy, replace(profile, openai=replace(profile.openai, min_tokens=16))) as one:
        yield one


def asked(*texts: Any) -> list[dict[str, Any]]:
    """Messages by turns, the user first. A text may be a list of parts."""
    return [{"role": "assistant" if n % 2 else "user", "content": one} for n, one in enumerate(texts)]


def marked(content: str, **fields: str) -> dict[str, Any]:
    return {**text(content), "prompt_cache_breakpoint": {"mode": "explicit", **fields}}


def cached(answer: Any) -> tuple[int, int]:
    details = answer.usage.prompt_tokens_details
    return details.cached_tokens, details.cache_write_tokens


# Measured.


def test_locally_every_reused_token_counts_and_nothing_is_charged(local: Hosted) -> None:
    local.chat(asked("measured"))
    answer = local.chat(asked("measured"))
    assert cached(answer) == (answer.usage.prompt_tokens - 1, 0)
    assert answer.anaphora["contract"]["read_tokens"] == answer.usage.prompt_tokens - 1


def test_locally_every_cache_option_is_accepted(local: Hosted) -> None:
    options = {"prompt_cache_key": "k", "prompt_cache_retention": "in-memory", "prompt_cache_options": {"ttl": "9m"}}
    answer = local.chat([{"role": "user", "content": [marked("any", ttl="5m")]}], extra_body=options)
    assert answer.usage.prompt_tokens > 0


def test_both_apis_count_one_request_alike_under_every_profile(roomy: Engine) -> None:
    for name in ("local", "openai:classic", "openai:gpt-5.6", "anthropic:claude-opus-5"):
        with hosted(roomy, name) as one:
            chat = one.chat([{"role": "system", "content": "S"}, *asked(f"alike {name}")])
            message = one.message(asked(f"alike {name}"), system="S")
        usage = message.usage
        total = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
        assert chat.usage.prompt_tokens == total


# In steps.

LONG = "".join(f"{n:04} " for n in range(400))  # about 2,000 tokens of the test's tokenizer


def test_steps_count_from_the_minimum_on(classic: Hosted) -> None:
    first = classic.chat(asked(LONG + "a"))
    assert cached(first) == (0, 0)
    count, written = cached(classic.chat(asked(LONG + "b")))
    assert (count % 128, written) == (0, 0)
    assert first.usage.prompt_tokens - 256 < count < first.usage.prompt_tokens
    short = asked("short " * 20)
    classic.chat(short)
    answer = classic.chat(short)
    assert cached(answer) == (0, 0)
    assert answer.anaphora["reused_tokens"] > 0


def test_cache_keys_tenants_and_time_are_apart(classic: Hosted) -> None:
    keyed = {"prompt_cache_key": "a", "prompt_cache_retention": "in_memory"}
    classic.chat(asked(LONG), **keyed)
    assert cached(classic.chat(asked(LONG), **{**keyed, "prompt_cache_key": "b"}))[0] == 0
    assert cached(classic.chat(asked(LONG), key="blue-key", **keyed))[0] == 0
    classic.at(599)
    assert cached(classic.chat(asked(LONG), **keyed))[0] > 1024
    classic.at(599 + 601)
    assert cached(classic.chat(asked(LONG), **keyed))[0] == 0


def test_the_older_spelling_of_a_retention_is_the_same_retention(classic: Hosted) -> None:
    older: Any = {"extra_body": {"prompt_cache_retention": "in-memory"}}
    classic.chat(asked(LONG + "spelling"), **older)
    classic.at(601)
    assert cached(classic.chat(asked(LONG + "spelling"), **older))[0] == 0
    classic.at(1200)
    assert cached(classic.chat(asked(LONG + "spelling"), prompt_cache_retention="in_memory"))[0] > 1024


def test_a_retention_that_the_model_lacks_is_refused_by_name(roomy: Engine) -> None:
    with hosted(roomy, "openai:gpt-5.5") as one:
        with pytest.raises(openai.BadRequestError) as caught:
            one.chat(asked("x"), prompt_cache_retention="in_memory")
        assert caught.value.param == "prompt_cache_retention"
        assert (caught.value.code, caught.value.type) == ("invalid_parameter", "invalid_request_error")
        assert "not supported on this model" in str(caught.value)
        assert one.chat(asked("x"), prompt_cache_retention="24h").usage.prompt_tokens > 0


def test_completions_are_cached_in_steps_prompt_by_prompt(classic: Hosted) -> None:
    prompts = [LONG + "completions", "short"]
    for expected in (0, 1024):
        answer = classic.gpt().completions.create(model=MODEL, prompt=prompts, max_tokens=1)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        count = answer.usage.prompt_tokens_details.cached_tokens or 0
        assert count >= expected
        assert count % 128 == 0


# At breakpoints.


def test_implicit_breakpoints_write_and_the_next_turn_reads(paid: Hosted) -> None:
    read, written = cached(paid.chat(asked("implicit: a question")))
    assert read == 0
    assert written > 16
    more = asked("implicit: a question", "an answer", "another question")
    again, rest = cached(paid.chat(more))
    assert again == written
    assert rest > 0
    assert cached(paid.chat(more)) == (again + rest, 0)


def test_explicit_breakpoints_share_a_prefix_that_implicit_ones_would_not(paid: Hosted) -> None:
    for explicit in (False, True):
        about = f"shared handbook {explicit}"
        first = marked(about) if explicit else text(about)
        paid.chat(asked([first, text("question a")]))
        count, written = cached(paid.chat(asked([first, text("question b")])))
        assert (count > 0) is explicit
        assert written > 0


def test_explicit_mode_without_breakpoints_caches_nothing(paid: Hosted) -> None:
    options = {"extra_body": {"prompt_cache_options": {"mode": "explicit"}}}
    for _ in range(2):
        answer = paid.chat(asked("explicit mode, no breakpoints"), **options)
        assert cached(answer) == (0, 0)
    assert answer.anaphora["reused_tokens"] > 0


def test_more_than_four_breakpoints_are_accepted(paid: Hosted) -> None:
    parts = [marked(f"part number {n}") for n in range(7)]
    answer = paid.chat(asked(parts), extra_body={"prompt_cache_options": {"mode": "explicit"}})
    assert cached(answer)[1] > 0


def test_thirty_minutes_since_the_last_use(paid: Hosted) -> None:
    turns = asked("half an hour of it")
    written = cached(paid.chat(turns))[1]
    for now_s in (1800, 3600):
        paid.at(now_s)
        assert cached(paid.chat(turns)) == (written, 0)
    paid.at(3600 + 1801)
    assert cached(paid.chat(turns)) == (0, written)


@pytest.mark.parametrize(
    "change",
    [
        {"parallel_tool_calls": False},
        {"reasoning_effort": "low"},
        {"verbosity": "low"},
        {"response_format": {"type": "json_object"}},
        {"service_tier": "flex"},
        {"prompt_cache_key": "other"},
        {"model": "other"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
def test_settings_that_are_part_of_the_prefix(paid: Hosted, change: dict[str, Any]) -> None:
    turns = asked(f"settings of the prefix {change}")
    paid.chat(turns)
    assert cached(paid.chat(turns, **change))[0] == 0
    assert cached(paid.chat(turns, temperature=0.5, stop="zzz", seed=1))[0] > 0


def test_tool_choice_none_keeps_the_prefix(paid: Hosted) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    paid.chat(asked("tools stay"), tools=tools)
    assert cached(paid.chat(asked("tools stay"), tools=tools, tool_choice="none"))[0] > 0


@pytest.mark.parametrize(
    ("messages", "body", "param"),
    [
        (asked("x"), {"prompt_cache_options": {"mode": "odd"}}, "prompt_cache_options.mode"),
        (asked("x"), {"prompt_cache_options": {"ttl": "5m"}}, "prompt_cache_options.ttl"),
        (asked("x"), {"prompt_cache_options": {"ttl": "12h"}}, "prompt_cache_options.ttl"),
        (asked("x"), {"prompt_cache_options": []}, "prompt_cache_options"),
        (asked("x"), {"prompt_cache_key": 3}, "prompt_cache_key"),
        (asked([marked("x", ttl="5m")]), {}, "messages[0].content[0].prompt_cache_breakpoint.ttl"),
        (asked([marked("x", mode="odd")]), {}, "messages[0].content[0].prompt_cache_breakpoint.mode"),
    ],
)
def test_wrong_options_are_refused_by_name(paid: Hosted, messages: list[Any], body: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        paid.chat(messages, extra_body=body)
    assert caught.value.param == param


def test_streamed_usage_is_the_whole_answers(paid: Hosted) -> None:
    turns: Any = asked("streamed breakpoints")
    create = paid.gpt().chat.completions.create
    chunks = list(
        create(model=MODEL, messages=turns, max_tokens=2, stream=True, stream_options={"include_usage": True})
    )
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    written = usage.prompt_tokens_details.cache_write_tokens
    assert written
    assert cached(paid.chat(turns, max_tokens=2)) == (written, 0)


# Costs and the log.


def test_a_hosted_profile_prices_every_request(roomy: Engine) -> None:
    profile = profile_named("anthropic:claude-opus-5")
    settings = ApiSettings((MODEL,), keys_of(KEYS), profile=profile, prices=price_book(None))
    with TestClient(build_app(roomy, settings)) as http:
        one = Hosted(http)
        turns: list[Any] = [{"role": "user", "content": [text("priced " * 300, "5m")]}]
        first, second = (one.message(turns) for _ in range(2))
    usage, contract = first.usage, first.anaphora["contract"]
    cost = (usage.input_tokens * 5 + usage.cache_creation_input_tokens * 6.25 + usage.output_tokens * 25) / 1e6
    assert contract["cost_usd"] == pytest.approx(cost)
    assert contract["saved_usd"] < 0 < second.anaphora["contract"]["saved_usd"]
    assert contract["price_source"].startswith("genai-prices")


def test_prices_of_ones_own_are_taken_for_the_served_model(roomy: Engine) -> None:
    table = parse_prices('[[price]]\nmodel = "tiny"\ninput = 1\noutput = 1\nread = 0', source="mine.toml")
    with TestClient(build_app(roomy, ApiSettings((MODEL,), keys_of(KEYS), prices=table))) as http:
        one = Hosted(http)
        one.chat(asked("own price"))
        contract = one.chat(asked("own price")).anaphora["contract"]
    assert contract["cost_usd"] == 2 / 1e6
    assert (contract["priced_as"], contract["price_source"]) == (MODEL, "mine.toml")


def test_the_request_log_has_every_answer_and_no_word_of_it(roomy: Engine, tmp_path: Path) -> None:
    path = tmp_path / "logs" / "requests.jsonl"
    log = RequestLog(path)
    with TestClient(build_app(roomy, ApiSettings((MODEL,), keys_of(KEYS), request_log=log))) as http:
        one = Hosted(http)
        chat = one.chat(asked("secret words"))
        message = one.message([{"role": "user", "content": [text("secret words", "1h")]}], key="blue-key")
        list(one.gpt().chat.completions.create(model=MODEL, messages=asked("secret words"), max_tokens=1, stream=True))  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError):
            one.chat([])
    log.close()
    written = path.read_text()
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line["endpoint"] for line in lines] == ["/v1/chat/completions", "/v1/messages", "/v1/chat/completions"]
    assert [line["tenant"] for line in lines] == ["red", "blue", "red"]
    assert lines[0]["usage"] == chat.usage.model_dump(exclude_none=True)
    assert "secret" not in written
    records = [record for line in lines for record in records_of(line)]
    assert records[1].tokens.writes == {"1h": message.usage.cache_creation_input_tokens}
    assert all(record.at is not None and record.model == MODEL for record in records)


def test_a_log_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="request_log"):
        RequestLog(tmp_path)
