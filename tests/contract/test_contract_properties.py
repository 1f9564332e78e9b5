"""Identities that hold on every bill, and the Anthropic ledger beside a reference model of a few lines.

The model keeps (contents of a prefix) -> (lifetime, expiry) and looks back over a list; the ledger keeps digests.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_world import ME, block, laid_out

from anaphora.contract.anthropic import LIFETIMES, AnthropicLedger, AnthropicRules, Breakpoint, Ttl, billed
from anaphora.contract.layout import Block
from anaphora.contract.openai import BreakpointLedger, BreakpointRules, CacheOptions, OpenAIBill

LOOKBACK = 4


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[Block], list[tuple[int, Ttl]]]:
    """A few blocks of two letters, so that prefixes are often shared, and marks in a lawful order."""
    size = draw(st.integers(1, 10))
    blocks = [
        block(draw(st.sampled_from("ab")), message_index=n, role="user", end=draw(st.just(10 + n))) for n in range(size)
    ]
    places = sorted(draw(st.sets(st.integers(0, size - 1), max_size=4)))
    num_long = draw(st.integers(0, len(places)))
    return blocks, [(place, "1h" if n < num_long else "5m") for n, place in enumerate(places)]


@dataclass(slots=True)
class Model:
    """The rules, told once more and slowly."""

    min_tokens: int
    written: dict[str, tuple[float, float]] = field(default_factory=dict)

    def read(
        self, blocks: list[Block], marks: list[tuple[int, Ttl]], now_s: float
    ) -> tuple[int, list[tuple[str, Ttl]]]:
        """Tokens read, and prefixes that will be written."""
        said = ["".join(one.content.decode() for one in blocks[: n + 1]) for n in range(len(blocks))]
        ends = [one.end for one in laid_out(blocks).blocks]
        marks = [(place, ttl) for place, ttl in marks if ends[place] >= self.min_tokens]
        live = {text for text, (_, expires_s) in self.written.items() if expires_s >= now_s}
        seen = [n for place, _ in marks for n in range(place, max(place - LOOKBACK, -1), -1) if said[n] in live]
        hit = max(seen, default=-1)
        for n in {hit, *(place for place, _ in marks)} - {-1}:
            if said[n] in live:
                lifetime_s, expires_s = self.written[said[n]]
                self.written[said[n]] = (lifetime_s, max(expires_s, now_s + lifetime_s))
        fresh: list[tuple[str, Ttl]] = [(said[place], ttl) for place, ttl in marks if said[place] not in live]
        return ends[hit] if hit >= 0 else 0, fresh

    def write(self, fresh: list[tuple[str, Ttl]], now_s: float) -> None:
        for text, ttl in fresh:
            self.written[text] = (LIFETIMES[ttl], now_s + LIFETIMES[ttl])


@settings(deadline=None)
@given(
    st.lists(st.tuples(requests(), st.integers(0, 2000)), min_size=1, max_size=12),
    st.sampled_from([0, 25, 60]),
)
def test_ledger_agrees_with_the_model_and_bills_add_up(
    steps: list[tuple[tuple[list[Block], list[tuple[int, Ttl]]], int]], min_tokens: int
) -> None:
    ledger = AnthropicLedger(AnthropicRules(lookback=LOOKBACK, min_tokens=min_tokens))
    model, now_s = Model(min_tokens), 0.0
    for (blocks, marks), seconds in steps:
        now_s += seconds
        layout = laid_out(blocks, after=3)
        breakpoints = [Breakpoint(place, ttl) for place, ttl in marks]
        reckoning = ledger.reckon(layout, breakpoints, scope=ME, now_s=now_s)
        read, fresh = model.read(blocks, marks, now_s)
        assert reckoning.hit == read
        model.write(fresh, now_s)
        ledger.publish(reckoning)
        ledger.check()
        for bill in (reckoning.bill(), *(reckoning.bill_for(n) for n in range(0, layout.num_tokens, 17))):
            bill.check()
            assert bill.input + bill.write_5m + bill.write_1h + bill.read == layout.num_tokens
            assert bill.written == bill.write_5m + bill.write_1h


marks_of = st.lists(st.tuples(st.integers(0, 100), st.sampled_from(["5m", "1h"])), max_size=4)


@settings(deadline=None)
@given(st.integers(0, 100), marks_of)
def test_any_bill_splits_the_whole_prompt(hit: int, marks: list[tuple[int, Ttl]]) -> None:
    bill = billed(100, hit, marks)
    assert bill.read + bill.write_1h + bill.write_5m + bill.input == 100
    assert bill.read == hit
    assert bill.input == 100 - max([hit, *(tokens for tokens, _ in marks)])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(requests(), st.sampled_from(["implicit", "explicit"]), st.sampled_from(["30m", "12h"])), max_size=8
    )
)
def test_openai_counts_cached_and_written_inside_the_total(
    steps: list[tuple[tuple[list[Block], list[tuple[int, Ttl]]], str, str]],
) -> None:
    ledger = BreakpointLedger(BreakpointRules(min_tokens=20))
    for (blocks, marks), mode, ttl in steps:
        marked = [
            block(
                one.content.decode(),
                end=one.end,
                message_index=one.message_index,
                ttl="30m" if n in dict(marks) else None,
            )
            for n, one in enumerate(blocks)
        ]
        layout = laid_out(marked, after=3)
        options = CacheOptions(mode="explicit" if mode == "explicit" else "implicit", ttl=ttl)
        reckoning = ledger.reckon(layout, options, scope=ME, now_s=0)
        ledger.publish(reckoning)
        for bill in (reckoning.bill(), *(reckoning.bill_for(n) for n in range(0, layout.num_tokens, 17))):
            bill.check()
            assert bill.cached + bill.written + bill.ordinary == layout.num_tokens
            assert bill.cached <= reckoning.hit
        assert len(reckoning.marks) <= 4


def test_a_bill_that_does_not_add_up_is_seen() -> None:
    for wrong in (OpenAIBill(10, cached=11), OpenAIBill(10, write_30m=-1)):
        try:
            wrong.check()
        except AssertionError:
            continue
        raise RuntimeError("a wrong bill passed its check")
