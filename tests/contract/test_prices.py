"""Costs by hand: rates, tiers by request size, dates, batches, what caching saved; and price files that are refused."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphora.contract.prices import Cost, FirstOf, Price, PriceTable, Rates, Tier, Tokens, cost_of, parse_prices
from anaphora.errors import SettingsError

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
OPUS = Rates(Decimal(5), Decimal(25), Decimal("0.5"), {"": Decimal("6.25"), "1h": Decimal(10)})


def test_a_request_is_charged_by_kind_of_token() -> None:
    tokens = Tokens(1_000, 10_000, {"5m": 2_000, "1h": 4_000}, 500)
    cost = cost_of(tokens, Price("opus", OPUS, "here"))
    assert (cost.ordinary, cost.read) == (Decimal("0.005"), Decimal("0.005"))
    assert cost.written == Decimal("0.0125") + Decimal("0.04")
    assert cost.output == Decimal("0.0125")
    assert cost.uncached == Decimal("0.085") + Decimal("0.0125")
    assert cost.saved == cost.uncached - cost.total


def test_writes_that_nobody_reads_cost_more_than_no_cache() -> None:
    cost = cost_of(Tokens(0, 0, {"1h": 1000}), Price("opus", OPUS, "here"))
    assert cost.saved == Decimal("-0.005")


@pytest.mark.parametrize(("ttl", "reads_to_pay"), [("5m", 1), ("1h", 2)])
def test_five_minutes_pay_after_one_read_and_an_hour_after_two(ttl: str, reads_to_pay: int) -> None:
    price = Price("opus", OPUS, "here")
    for reads in range(4):
        spent = cost_of(Tokens(writes={ttl: 1000}), price)
        for _ in range(reads):
            spent += cost_of(Tokens(read=1000), price)
        assert (spent.saved > 0) == (reads >= reads_to_pay)


def test_a_tier_covers_the_whole_request_and_starts_above_its_threshold() -> None:
    small, large = Rates(Decimal(1), Decimal(2)), Rates(Decimal(3), Decimal(6))
    price = Price("haiku", small, "here", (Tier(100_000, large),))
    assert cost_of(Tokens(100_000), price).total == Decimal("0.1")
    assert cost_of(Tokens(100_001), price).total == Decimal("0.300003")
    assert cost_of(Tokens(50_000, 50_001, output=1_000_000), price).output == Decimal(6)
    assert cost_of(Tokens(100_001), price, is_one_request=False).total == Decimal("0.100001")


def test_the_highest_tier_that_fits_holds_whatever_their_order() -> None:
    rates = {n: Rates(Decimal(n), Decimal(n)) for n in (1, 2, 3)}
    price = Price("m", rates[1], "here", (Tier(200, rates[3]), Tier(100, rates[2])))
    assert [price.rates_for(n).input for n in (100, 101, 201)] == [1, 2, 3]


def test_missing_rates_are_the_input_rate_and_missing_lifetimes_the_default() -> None:
    plain = Rates(Decimal(2), Decimal(8))
    assert cost_of(Tokens(0, 500_000, {"30m": 500_000}), Price("m", plain, "here")).total == 2
    assert OPUS.write("5m") == OPUS.write("") == Decimal("6.25")


def test_a_factor_scales_everything() -> None:
    tokens, price = Tokens(10, 20, {"1h": 30}, 40), Price("opus", OPUS, "here")
    whole, half = cost_of(tokens, price), cost_of(tokens, price, factor=Decimal("0.5"))
    assert half + half == whole


FILE = """
[[price]]
model = "ours"
input = 1
output = 4.5
read = 0.25
write = { "5m" = 1.25, "1h" = 2 }
batch = 0.5
tiers = [{ above = 1000, input = 2, output = 9 }]

[[price]]
model = "ours"
valid_from = 2026-11-30
input = 0.1
output = 0.4
write = 0.2
source = "a letter"
"""


def test_a_file_of_prices_is_dated_tiered_and_stamped() -> None:
    table = parse_prices(FILE, source="mine.toml")
    before, after = table.price("ours", datetime(2026, 11, 29, 23, tzinfo=UTC)), table.price("ours", NOON)
    assert before is not None
    assert after is not None
    assert before.rates == Rates(Decimal(1), Decimal("4.5"), Decimal("0.25"), {"5m": Decimal("1.25"), "1h": Decimal(2)})
    assert before.rates_for(1001).input == 2
    assert before.rates_for(1001).read == Decimal("0.25")
    assert (before.source, after.source) == ("mine.toml", "a letter")
    assert (after.valid_from, after.rates.writes) == (date(2026, 11, 30), {"": Decimal("0.2")})
    batch = table.price("ours", datetime(2026, 1, 1, tzinfo=UTC), is_batch=True)
    assert batch is not None
    assert (batch.rates.input, batch.rates_for(1001).output) == (Decimal("0.5"), Decimal("4.5"))
    assert table.price("theirs", NOON) is None


def test_days_are_utc_days() -> None:
    from datetime import timedelta, timezone

    table = PriceTable([Price("m", OPUS, "x", valid_from=date(2026, 11, 30))])
    late = datetime(2026, 11, 29, 23, tzinfo=timezone(timedelta(hours=-5)))
    assert table.price("m", late) is not None


def test_the_first_book_that_knows_a_model_wins() -> None:
    mine, theirs = PriceTable([Price("a", OPUS, "mine")]), PriceTable([Price(m, OPUS, "theirs") for m in "ab"])
    both = FirstOf(mine, theirs)
    found = [both.price(model, NOON) for model in "abc"]
    assert [one and one.source for one in found] == ["mine", "theirs", None]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"no \[\[price\]\]"),
        ("x = ", "not valid TOML"),
        ("[[price]]\ninput = 1\noutput = 1", "price 1: model"),
        ("[[price]]\nmodel = 'm'\noutput = 1", "price 1: input"),
        ("[[price]]\nmodel = 'm'\ninput = -1\noutput = 1", "price 1: input"),
        ("[[price]]\nmodel = 'm'\ninput = true\noutput = 1", "price 1: input"),
        ("[[price]]\nmodel = 'm'\ninput = nan\noutput = 1", "price 1: input"),
        ("[[price]]\nmodel = 'm'\ninput = 1\noutput = 1\nvalid_from = 'today'", "valid_from"),
        ("[[price]]\nmodel = 'm'\ninput = 1\noutput = 1\ntiers = [{ input = 2 }]", "above"),
        ("[[price]]\nmodel = 'm'\ninput = 1\noutput = 1\ncached = 2", "cached is no field"),
    ],
)
def test_a_wrong_price_file_is_refused_by_entry(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse_prices(text, source="mine.toml")


counts = st.integers(0, 10**9)


@settings(deadline=None)
@given(counts, counts, counts, counts, counts)
def test_without_rates_of_its_own_caching_changes_no_cost(o: int, r: int, short: int, long: int, out: int) -> None:
    cost = cost_of(Tokens(o, r, {"5m": short, "1h": long}, out), Price("m", Rates(Decimal(3), Decimal(9)), "x"))
    assert cost.total == cost.uncached
    assert cost.saved == 0
    assert cost + Cost() == cost
