"""Why nothing is read, where the rules tell. Method: each reason by itself, under all three sets of rules."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anaphora.contract.anthropic import AnthropicLedger, AnthropicRules, Breakpoint
from anaphora.contract.entries import MAX_EXPIRED, Entries, Missed, Write
from anaphora.contract.layout import Block, Key, Layout, scope_of
from anaphora.contract.openai import BreakpointLedger, BreakpointRules, CacheOptions, StepLedger, StepRules

SCOPE = scope_of("anthropic", "tenant", "model")


def layout(num_blocks: int, *, marks: tuple[int, ...] = (), word: str = "b") -> Layout:
    """Blocks of 100 tokens, each a user's message."""
    blocks = tuple(
        Block(
            "messages",
            "text",
            f"{word}{index}".encode(),
            100 * (index + 1),
            f"messages[{index}]",
            index,
            "user",
            "30m" if index in marks else None,
        )
        for index in range(num_blocks)
    )
    return Layout(blocks, 100 * num_blocks + 3)


def anthropic(ledger: AnthropicLedger, num_blocks: int, *marks: int, now_s: float = 0.0) -> Missed | None:
    reckoning = ledger.reckon(
        layout(num_blocks), [Breakpoint(index, "5m") for index in marks], scope=SCOPE, now_s=now_s
    )
    ledger.publish(reckoning)
    ledger.check()
    return reckoning.missed


def test_anthropic_names_marks_lengths_lifetimes_and_sight() -> None:
    ledger = AnthropicLedger(AnthropicRules(min_tokens=300, lookback=3))
    assert anthropic(ledger, 4) == Missed("no_breakpoint")
    assert anthropic(ledger, 4, 1) == Missed("below_minimum")
    assert anthropic(ledger, 4, 3) is None, "nobody wrote it before"
    assert anthropic(ledger, 4, 3, now_s=10.0) is None, "it is read"
    assert anthropic(ledger, 9, 8, now_s=20.0) == Missed("out_of_sight")
    assert anthropic(ledger, 4, 3, now_s=311.0) == Missed("expired", 1.0)
    assert anthropic(ledger, 4, 3, now_s=312.0) is None, "it was written again"


def test_openai_steps_name_lengths_and_lifetimes() -> None:
    ledger = StepLedger(StepRules(min_tokens=256, step=128, default_retention="in_memory", in_memory_idle_s=300.0))
    tokens = np.arange(600, dtype=np.int32)

    def missed(num_tokens: int, now_s: float) -> Missed | None:
        reckoning = ledger.reckon(tokens[:num_tokens], CacheOptions(), scope=SCOPE, now_s=now_s)
        ledger.publish(reckoning)
        return reckoning.missed

    assert missed(200, 0.0) == Missed("below_minimum")
    assert missed(600, 0.0) is None
    assert missed(600, 1.0) is None
    assert missed(600, 900.0) == Missed("expired", 599.0)


def test_openai_breakpoints_name_marks_lengths_and_lifetimes() -> None:
    ledger = BreakpointLedger(BreakpointRules(min_tokens=300))
    explicit = CacheOptions(mode="explicit")

    def missed(options: CacheOptions, now_s: float, *marks: int, num_blocks: int = 4) -> Missed | None:
        reckoning = ledger.reckon(layout(num_blocks, marks=marks), options, scope=SCOPE, now_s=now_s)
        ledger.publish(reckoning)
        ledger.check()
        return reckoning.missed

    assert missed(explicit, 0.0) == Missed("no_breakpoint")
    assert missed(explicit, 0.0, 0) == Missed("below_minimum")
    assert missed(CacheOptions(), 0.0) is None
    assert missed(CacheOptions(), 10.0) is None
    assert missed(CacheOptions(), 5000.0) == Missed("expired", 3190.0)


def test_what_has_expired_is_remembered_for_a_while() -> None:
    entries = Entries()
    for number in range(MAX_EXPIRED + 1):
        entries.publish(Write(Key(b"%d" % number), 1.0, number / 1e6))
    assert entries.expired_at(Key(b"0"), 0.5) is None
    assert entries.expired_at(Key(b"0"), 2.0) == 1.0, "it has expired, whether or not it was swept"
    entries.sweep(2.0)
    entries.check()
    assert len(entries) == 0
    assert entries.expired_at(Key(b"0"), 2.0) is None, "too long ago"
    assert entries.expired_at(Key(b"1"), 2.0) == 1.0 + 1e-6
    entries.publish(Write(Key(b"1"), 1.0, 2.0))
    assert entries.expired_at(Key(b"1"), 2.0) is None


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 6)), max_size=12))
def test_what_is_read_is_never_missed(asks: list[tuple[int, int]]) -> None:
    ledger, now_s = AnthropicLedger(AnthropicRules()), 0.0
    for wait_s, num_blocks in asks:
        now_s += wait_s
        reckoning = ledger.reckon(layout(num_blocks), [Breakpoint(num_blocks - 1, "5m")], scope=SCOPE, now_s=now_s)
        ledger.publish(reckoning)
        ledger.check()
        assert not (reckoning.hit and reckoning.missed)
        if reckoning.missed is not None:
            assert reckoning.missed.reason == "expired"
            assert reckoning.missed.ago_s is not None
            assert reckoning.missed.ago_s > 0
