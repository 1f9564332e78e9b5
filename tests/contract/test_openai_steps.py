"""OpenAI's automatic caching: 1,024 tokens at least, steps of 128, keys, retention, and no more than was reused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from anaphora.contract.layout import scope_of
from anaphora.contract.openai import CacheOptions, StepLedger, StepRules, check_retention
from anaphora.errors import RequestError

ME = scope_of("me", "model")


def prompt(num_tokens: int, *, differs_at: int | None = None) -> NDArray[np.int32]:
    tokens = np.arange(num_tokens, dtype=np.int32)
    if differs_at is not None:
        tokens[differs_at:] += 1_000_000
    return tokens


def cached(
    ledger: StepLedger, tokens: NDArray[np.int32], *, now_s: float = 0.0, name: str = "me", **options: Any
) -> int:
    """What counts as cached of a request that is then answered."""
    reckoning = ledger.reckon(tokens, CacheOptions(**options), scope=scope_of(name, "model"), now_s=now_s)
    ledger.publish(reckoning)
    ledger.check()
    bill = reckoning.bill()
    bill.check()
    assert bill.written == 0
    return bill.cached


@pytest.mark.parametrize(
    ("in_common", "expected"),
    [(1023, 0), (1024, 1024), (1151, 1024), (1152, 1152), (1279, 1152), (1280, 1280), (2000, 1920)],
)
def test_whole_steps_in_common_count_from_the_minimum_on(in_common: int, expected: int) -> None:
    ledger = StepLedger(StepRules())
    assert cached(ledger, prompt(3000)) == 0
    assert cached(ledger, prompt(3000, differs_at=in_common)) == expected


@pytest.mark.parametrize(("num_tokens", "expected"), [(1000, 0), (1024, 1024), (1100, 1024)])
def test_a_short_prompt_is_not_cached(num_tokens: int, expected: int) -> None:
    ledger = StepLedger(StepRules())
    cached(ledger, prompt(num_tokens))
    assert cached(ledger, prompt(num_tokens)) == expected


def test_minimum_and_step_are_the_models() -> None:
    ledger = StepLedger(StepRules(min_tokens=2048, step=256))
    cached(ledger, prompt(4000))
    assert cached(ledger, prompt(4000, differs_at=2047)) == 0
    assert cached(ledger, prompt(4000, differs_at=2400)) == 2304


def test_tenants_and_cache_keys_are_apart() -> None:
    ledger = StepLedger(StepRules())
    cached(ledger, prompt(2000), key="a")
    assert cached(ledger, prompt(2000), key="b") == 0
    assert cached(ledger, prompt(2000)) == 0
    assert cached(ledger, prompt(2000), key="a", name="you") == 0
    assert cached(ledger, prompt(2000), key="a") == 1920
    one_cache = StepLedger(StepRules(key_separates=False))
    cached(one_cache, prompt(2000), key="a")
    assert cached(one_cache, prompt(2000), key="b") == 1920


@pytest.mark.parametrize(
    ("retention", "idle_s", "expected"),
    [("in_memory", 600, 1920), ("in_memory", 601, 0), ("24h", 86400, 1920), ("24h", 86401, 0), (None, 86400, 1920)],
)
def test_retention(retention: str | None, idle_s: float, expected: int) -> None:
    ledger = StepLedger(StepRules())
    cached(ledger, prompt(2000), retention=retention)
    assert cached(ledger, prompt(2000), retention=retention, now_s=idle_s) == expected


def test_in_memory_ends_after_an_hour_however_often_it_is_read() -> None:
    ledger = StepLedger(StepRules())
    hits = [cached(ledger, prompt(2000), retention="in_memory", now_s=at_s) for at_s in range(0, 3601, 400)]
    assert hits == [0] + [1920] * 9
    assert cached(ledger, prompt(2000), retention="in_memory", now_s=3601) == 0


def test_parallel_requests_read_nothing_of_each_other() -> None:
    ledger = StepLedger(StepRules())
    both = [ledger.reckon(prompt(2000), CacheOptions(), scope=ME, now_s=0) for _ in range(2)]
    assert [each.bill().cached for each in both] == [0, 0]


@pytest.mark.parametrize(("num_reused", "expected"), [(1999, 1920), (1919, 1792), (1024, 1024), (1000, 0), (0, 0)])
def test_nothing_counts_as_cached_that_was_computed(num_reused: int, expected: int) -> None:
    ledger = StepLedger(StepRules())
    cached(ledger, prompt(2000))
    reckoning = ledger.peek(prompt(2000), CacheOptions(), scope=ME, now_s=0)
    assert reckoning.bill_for(num_reused).cached == expected
    assert reckoning.uncached().ordinary == 2000


def test_a_retention_the_model_lacks_is_refused_by_name() -> None:
    check_retention("in_memory", StepRules())
    check_retention(None, StepRules(retentions=()))
    with pytest.raises(RequestError, match=r"not supported on this model.*24h") as caught:
        check_retention("in_memory", StepRules(retentions=("24h",)))
    assert caught.value.field == "prompt_cache_retention"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60), st.integers(0, 3)), max_size=12))
def test_ledger_agrees_with_comparing_every_earlier_prompt(requests: list[tuple[int, int, int]]) -> None:
    rules = StepRules(min_tokens=12, step=4)
    ledger = StepLedger(rules)
    earlier: list[NDArray[np.int32]] = []
    for num_tokens, differs_at, kind in requests:
        tokens = prompt(num_tokens)
        tokens[differs_at:] += kind * 1000
        in_common = max((_in_common(tokens, one) for one in earlier), default=0)
        whole = in_common - in_common % 4
        assert cached(ledger, tokens) == (whole if whole >= 12 else 0)
        earlier.append(tokens)


def _in_common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    return next((n for n in range(min(len(one), len(other))) if one[n] != other[n]), min(len(one), len(other)))
