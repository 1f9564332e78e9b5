"""A request's receipt as numbers for usage fields, as the `anaphora` object, and as response headers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from anaphora.api.contracts import Tab, tokens_of
from anaphora.api.explaining import told, worst
from anaphora.contract.prices import Tokens
from anaphora.engine.request import Receipt
from anaphora.explain.why import Miss


@dataclass(frozen=True, slots=True)
class Account:
    """What one HTTP request cost: the sum of its engine requests' receipts."""

    receipts: tuple[Receipt, ...]
    tab: Tab | None = None  # None: what was reused is what counts
    misses: tuple[Miss, ...] = ()  # why no more was reused, of each; () where that is not asked

    @property
    def tokens(self) -> Tokens:
        """What the usage fields say: the prompt split by what it is charged as, and the answer."""
        output = Tokens(output=self.num_generated_tokens)
        if self.tab is None:
            return output + Tokens(self.num_prompt_tokens - self.num_reused_tokens, self.num_reused_tokens)
        return sum((tokens_of(bill) for bill in self.tab.bills(self.receipts)), output)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(receipt.num_prompt_tokens for receipt in self.receipts)

    @property
    def num_reused_tokens(self) -> int:
        return sum(receipt.num_reused_tokens for receipt in self.receipts)

    @property
    def num_generated_tokens(self) -> int:
        return sum(receipt.num_generated_tokens for receipt in self.receipts)

    @property
    def miss(self) -> Miss | None:
        """Why no more was reused: of a batch, the request that lost most.

        Where the engine lost nothing and the usage says that nothing was read, what the contract has against it.
        """
        miss = worst(self.misses)
        missed = None if self.tab is None else self.tab.missed
        if miss is None or missed is None or miss.reason not in ("none", "first_seen") or self.tokens.read:
            return miss
        told = Miss(missed.reason, miss.num_tokens, miss.num_reused, gone_ago_s=missed.ago_s, level="contract")
        return replace(told, nearest_id=miss.nearest_id, nearest_ago_s=miss.nearest_ago_s, num_alike=miss.num_alike)

    def extension(self) -> dict[str, Any]:
        """The `anaphora` object of a response body. A batch lists its requests."""
        entries = [_entry(receipt) for receipt in self.receipts]
        miss = self.miss
        contract = {} if self.tab is None else {"contract": self.tab.told(self.receipts)}
        if miss is not None:
            contract["miss"] = told(miss)
        if len(entries) == 1:
            return {**entries[0], **contract}
        totals = {name: sum(entry[name] for entry in entries) for name in entries[0] if name.endswith("_tokens")}
        return {**totals, **contract, "requests": entries}

    def headers(self) -> dict[str, str]:
        """The response headers that are final when the answer begins."""
        computed = sum(receipt.num_computed_tokens for receipt in self.receipts)
        tokens = self.tokens
        contract = (
            {
                "x-anaphora-profile": self.tab.profile,
                "x-anaphora-contract-read-tokens": str(tokens.read),
                "x-anaphora-contract-written-tokens": str(tokens.written),
            }
            if self.tab
            else {}
        )
        miss = self.miss
        if miss is not None:
            contract["x-anaphora-miss-reason"] = miss.cause or miss.reason if miss.reason == "diverged" else miss.reason
            contract["x-anaphora-miss-lost-tokens"] = str(miss.num_lost)
            if miss.where:
                contract["x-anaphora-miss-where"] = f"{miss.where}:{miss.byte_index or 0}"
        return {
            **contract,
            "x-anaphora-prompt-tokens": str(self.num_prompt_tokens),
            "x-anaphora-reused-tokens": str(self.num_reused_tokens),
            "x-anaphora-computed-tokens": str(computed),
            "x-anaphora-source": self.receipts[0].source,
            "x-anaphora-stop-reason": self.receipts[0].stop_reason,
        }


def account_of(receipts: Sequence[Receipt | None], tab: Tab | None = None, misses: Sequence[Miss] = ()) -> Account:
    """The account of requests whose first delta is there."""
    assert receipts, "an HTTP request that answers has at least one engine request"
    known = tuple(receipt for receipt in receipts if receipt is not None)
    assert len(known) == len(receipts), "a request that has begun to answer has a receipt"
    return Account(known, tab, tuple(misses))


def _entry(receipt: Receipt) -> dict[str, Any]:
    return {
        "prompt_tokens": receipt.num_prompt_tokens,
        "reused_tokens": receipt.num_reused_tokens,
        "computed_tokens": receipt.num_computed_tokens,
        "written_tokens": receipt.num_written_tokens,
        "generated_tokens": receipt.num_generated_tokens,
        "kept_tokens": receipt.num_kept_tokens,
        "retention": receipt.retention,
        "source": receipt.source,
        "loaded_tokens": receipt.num_loaded_tokens,
        "stop_reason": receipt.stop_reason,
        "queue_ms": _milliseconds(receipt.queue_time_s),
        "time_to_first_token_ms": _milliseconds(receipt.time_to_first_token_s),
        "total_ms": _milliseconds(receipt.total_time_s),
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
