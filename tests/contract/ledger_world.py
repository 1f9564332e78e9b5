"""Builders for ledger tests: requests as short lists of blocks, and a host whose clock stands where it is put."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anaphora.contract.anthropic import (
    AnthropicBill,
    AnthropicLedger,
    AnthropicRules,
    AnthropicSettings,
    Reckoning,
    Ttl,
    breakpoints_of,
    levels_of,
)
from anaphora.contract.layout import Block, Kind, Layout, Level, Scope, scope_of

TOKENS = 1000
"""Of one block, where a test doesn't say."""

ME = scope_of("me", "model")


def block(
    content: str,
    *,
    ttl: str | None = None,
    level: Level = "messages",
    kind: Kind = "text",
    **rest: Any,
) -> Block:
    """A block whose `end` is its own size until `laid_out` adds them up. `role` and `message_index` go together."""
    defaults: dict[str, Any] = {"end": TOKENS, "path": f"path.of.{content}", "role": "user", "message_index": 0}
    if level != "messages":
        defaults |= {"role": "", "message_index": -1}
    return Block(level=level, kind=kind, content=content.encode(), ttl=ttl, **{**defaults, **rest})


def laid_out(blocks: Sequence[Block], *, after: int = 0, settings: AnthropicSettings | None = None) -> Layout:
    """Blocks one after another, then `after` tokens of the template's."""
    placed: list[Block] = []
    for one in blocks:
        placed.append(replace(one, end=one.end + (placed[-1].end if placed else 0)))
    total = (placed[-1].end if placed else 0) + after
    layout = Layout(tuple(placed), total, levels_of(settings or AnthropicSettings(), AnthropicRules()))
    layout.check()
    return layout


def conversation(num_blocks: int, marks: Mapping[int, Ttl] | Sequence[int] = (), **changed: str) -> list[Block]:
    """Blocks 1 to n, each a message of its own; `marks` by number. `b6="new text"` says other content in block 6."""
    ttls = marks if isinstance(marks, Mapping) else dict.fromkeys(marks, "5m")
    return [
        block(
            changed.get(f"b{n}", f"block {n}"), ttl=ttls.get(n), message_index=n, role="user" if n % 2 else "assistant"
        )
        for n in range(1, num_blocks + 1)
    ]


@dataclass(slots=True)
class Host:
    """A ledger, a clock, and requests that are answered one after another."""

    ledger: AnthropicLedger
    now_s: float = 0.0
    scope: Scope = ME

    def started(
        self, blocks: Sequence[Block], *, automatic: Ttl | None = None, settings: AnthropicSettings | None = None
    ) -> Reckoning:
        """A request that has started and not been answered yet."""
        layout = laid_out(blocks, settings=settings)
        layout = replace(layout, levels=levels_of(settings or AnthropicSettings(), self.ledger.rules))
        breakpoints = breakpoints_of(layout.blocks, automatic, self.ledger.rules)
        reckoning = self.ledger.reckon(layout, breakpoints, scope=self.scope, now_s=self.now_s)
        self.ledger.check()
        return reckoning

    def answered(self, blocks: Sequence[Block], **rest: Any) -> AnthropicBill:
        """The bill of a request that was answered."""
        reckoning = self.started(blocks, **rest)
        self.ledger.publish(reckoning)
        self.ledger.check()
        return reckoning.bill()


def host(**rules: Any) -> Host:
    return Host(AnthropicLedger(AnthropicRules(**rules)))


def split(bill: AnthropicBill) -> tuple[int, int, int, int]:
    """Read, 1h write, 5m write, input: in thousands of tokens, which is blocks of the usual size."""
    bill.check()
    return tuple(n // TOKENS for n in (bill.read, bill.write_1h, bill.write_5m, bill.input))  # type: ignore[return-value]
