"""Prices of hosted models come from the data package: our costs are its costs, dated and tiered as it says."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from genai_prices import Usage, calc_price
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphora.contract.prices import Price, Tokens, cost_of
from anaphora.contract.profiles import profiles
from anaphora.costs.hosted_prices import HostedPrices

AT = datetime(2026, 11, 15, 12, tzinfo=UTC)
BOOK = HostedPrices()


def price(model: str, at: datetime = AT, *, is_batch: bool = False) -> Price:
    found = BOOK.price(model, at, is_batch=is_batch)
    assert found is not None
    return found


counts = st.integers(0, 400_000)


def tokens_of(*numbers: int) -> Tokens:
    ordinary, read, short, long, output = numbers
    return Tokens(ordinary, read, {"5m": short, "1h": long}, output)


@settings(deadline=None, max_examples=30)
@given(st.builds(tokens_of, counts, counts, counts, counts, counts))
@pytest.mark.parametrize("model", ["claude-opus-5", "claude-haiku-5-5", "claude-sonnet-5-5"])
def test_costs_are_the_packages_own(model: str, tokens: Tokens) -> None:
    short, long = tokens.writes["5m"], tokens.writes["1h"]
    theirs = calc_price(
        Usage(
            input_tokens=tokens.input,
            cache_read_tokens=tokens.read,
            cache_write_tokens=short + long,
            cache_write_5m_tokens=short,
            cache_write_1h_tokens=long,
            output_tokens=tokens.output,
        ),
        model,
        genai_request_timestamp=AT,
    )
    assert cost_of(tokens, price(model)).total == theirs.total_price


def test_rates_are_stamped_with_their_source_and_their_first_day() -> None:
    sonnet = price("claude-sonnet-5-5")
    assert sonnet.source.startswith("genai-prices ")
    assert price("gpt-5.6-terra").valid_from is not None
    assert price("gpt-5.6-terra", datetime(2026, 1, 1, tzinfo=UTC)).valid_from is None


def test_prices_change_with_the_day() -> None:
    early, late = (price("gpt-5.6-luna", datetime(2026, 7, day, tzinfo=UTC)) for day in (29, 30))
    assert late.valid_from == date(2026, 7, 30)
    assert early.rates.input > late.rates.input


def test_sizes_of_requests_are_tiers() -> None:
    haiku = price("claude-haiku-5-5")
    assert [haiku.rates_for(n).input for n in (100_000, 100_001)] == [Decimal("0.1"), Decimal("0.5")]


def test_read_rates_are_the_models_own() -> None:
    shares = [price(m).rates for m in ("claude-opus-5", "claude-opus-5-5", "claude-fable-5-1")]
    assert [rates.read / rates.input for rates in shares if rates.read] == [
        Decimal("0.1"),
        Decimal("0.05"),
        Decimal("0.025"),
    ]


def test_batches_cost_half_by_the_packages_word_or_by_the_rule() -> None:
    for model in ("claude-opus-5", "gpt-6-sol", "claude-haiku-5-5", "gpt-5.4"):
        whole, half = price(model), price(model, is_batch=True)
        assert half.rates.input * 2 == whole.rates.input
        assert half.rates.output * 2 == whole.rates.output
        assert [tier.rates.input * 2 for tier in half.tiers] == [tier.rates.input for tier in whole.tiers]


def test_long_writes_of_openai_are_twice_the_short_ones_and_say_so() -> None:
    sol = price("gpt-6-sol")
    assert (sol.rates.write("30m"), sol.rates.write("12h")) == (Decimal("2.5"), Decimal(5))
    assert "12h writes at 2 x 30m" in sol.source
    assert "12h" not in price("gpt-5.4").rates.writes


def test_an_unknown_model_has_no_price() -> None:
    assert BOOK.price("nobody-9", AT) is None


def test_every_profile_that_names_a_price_has_one() -> None:
    named = {one.name: one.priced_as for one in profiles().values() if one.priced_as}
    assert len(named) > 30
    assert [name for name, model in named.items() if BOOK.price(model, AT) is None] == []
