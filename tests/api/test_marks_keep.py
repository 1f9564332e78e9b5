"""A mark buys retention: what it covers stays cached for its lifetime, while ordinary prompts push each other out.

Method: a pool of a few prompts, and enough other prompts to turn it over several times.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hosted_world import Hosted, hosted, talk, text

from anaphora.engine.engine import Engine
from anaphora.engine.settings import EngineSettings
from anaphora.testing.random_models import random_model

NUM_SLOTS = 2048


@pytest.fixture
def tight() -> Iterator[Engine]:
    loaded = random_model("llama", max_context=1024)
    size_bytes = NUM_SLOTS * loaded.spec.kv_bytes_per_token(loaded.dtype)
    settings = EngineSettings(kv_pool_bytes=size_bytes, num_threads=1, retention_bytes=size_bytes // 4)
    with Engine(loaded, settings) as engine:
        yield engine


@pytest.fixture
def host(tight: Engine) -> Iterator[Hosted]:
    with hosted(tight) as one:
        yield one


def push_out(host: Hosted) -> None:
    """Ask enough unmarked prompts to fill the pool twice."""
    used = 0
    while used < 2 * NUM_SLOTS:
        answer = host.message([{"role": "user", "content": f"{used} is a number of its own. " * 20}])
        used += answer.anaphora["prompt_tokens"]


def long_talk(mark: str | None, *, about: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [text(f"{about} has a long story. " * 15, mark), text("And then?")]}]


def test_marked_prefix_outlives_a_flood_and_an_unmarked_one_does_not(host: Hosted) -> None:
    marked, plain = long_talk("5m", about="Ann"), long_talk(None, about="Bob")
    first = host.message(marked).anaphora
    assert first["retention"] == "kept"
    assert 0 < first["kept_tokens"] < first["prompt_tokens"]
    other = host.message(plain).anaphora
    assert (other["retention"], other["kept_tokens"]) == ("none", 0)
    push_out(host)
    assert host.message(marked).anaphora["reused_tokens"] >= first["kept_tokens"]
    assert host.message(plain).anaphora["reused_tokens"] < first["kept_tokens"] // 2


def test_promise_that_the_budget_can_not_hold_is_told(host: Hosted) -> None:
    told = [host.message(long_talk("1h", about=f"{n} of many")).anaphora["retention"] for n in range(6)]
    assert told[0] == "kept"
    assert told[-1] == "refused"


def test_each_mark_keeps_what_it_covers(host: Hosted) -> None:
    answer = host.message(talk(6, {2: "1h", 5: "5m"}, about="two marks")).anaphora
    assert answer["retention"] == "kept"
    assert 0 < answer["kept_tokens"] < answer["prompt_tokens"]


def test_day_long_retention_of_the_other_api_keeps_the_whole_prompt(host: Hosted) -> None:
    messages = [{"role": "user", "content": "Eve has a long story. " * 15}]
    first = host.chat(messages, prompt_cache_retention="24h").anaphora
    assert first["retention"] == "kept"
    assert first["kept_tokens"] == first["prompt_tokens"]
    push_out(host)
    assert host.chat(messages).anaphora["reused_tokens"] == first["prompt_tokens"] - 1
    assert host.chat(messages, prompt_cache_retention="in_memory").anaphora["retention"] == "none"
