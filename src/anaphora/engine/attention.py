"""Attention that reads leased extents in place.

Attention over a sequence = attention over each piece of it, merged by log-sum-exp:

    out = sum_i exp(lse_i - lse) * out_i,   lse = log sum_i exp(lse_i)

Over a piece that lies fully in the past there is no causal mask. Query heads that share a key head then fold into the
query dimension, and so do the rows of every sequence that reads the piece: no key is repeated or read twice.
Sources: online softmax, Milakov and Gimelshein 2018, arXiv:1805.02867; split attention with log-sum-exp merge,
Flash-Decoding (Dao et al. 2023) and Hydragen, arXiv:2402.05099, section 3.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from anaphora.engine.kv_pool import KvPool, gather
from anaphora.engine.step import Read, Rows, StepPlan, extents_between


@dataclass(frozen=True, slots=True)
class Piece:
    """Attention of some rows over some keys, not yet merged with the rest."""

    out: Tensor  # [num_kv_heads, num_groups, num_rows, head_dim]
    lse: Tensor  # [num_kv_heads, num_groups, num_rows], float32: log of the sum of exp(scores)


class AttentionKernel(Protocol):
    """How one piece is computed on one kind of device."""

    def past(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> list[Piece]:
        """Attend query [num_kv_heads, num_groups, num_rows, head_dim] to all of keys, values
        [num_kv_heads, num_tokens, head_dim]. Answers one piece, or several where the kernel cut the keys."""
        ...

    def causal(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Piece:
        """The same where row i sees keys 0..i; num_rows = num_tokens."""
        ...


class MathKernel:
    """Plain matrix products in float32: every device, every dtype. The reference the others are tested against."""

    def past(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> list[Piece]:
        return [_attend(query, keys, values, Scores(scale))]

    def causal(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Piece:
        num_rows = query.shape[2]
        mask = torch.ones(num_rows, num_rows, dtype=torch.bool, device=query.device).tril_()
        return _attend(query, keys, values, Scores(scale, mask=mask))


class CpuFlashKernel:
    """torch's flash attention for CPU, which returns the log-sum-exp.

    A few query rows over many keys give it too little to share between threads: the keys are then cut in two
    (Flash-Decoding).
    """

    MAX_ROWS_TO_SPLIT = 12  # rows after folding; measured: beyond this the whole read is as fast
    MIN_TOKENS_TO_SPLIT = 1024  # measured: below this the second merge costs more than the thread gains

    def past(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> list[Piece]:
        num_kv_heads, num_groups, num_rows, head_dim = query.shape
        num_tokens = keys.shape[1]
        folded = query.reshape(num_kv_heads, 1, num_groups * num_rows, head_dim)
        if folded.shape[2] > self.MAX_ROWS_TO_SPLIT or num_tokens < self.MIN_TOKENS_TO_SPLIT:
            return [_unfold(_flash(folded, keys[:, None], values[:, None], scale), query.shape)]
        half, odd = divmod(num_tokens, 2)
        cut = (num_kv_heads, 2, half, head_dim)
        halves = _flash(folded.expand(-1, 2, -1, -1), keys[:, odd:].view(cut), values[:, odd:].view(cut), scale)
        pieces = [_unfold(Piece(halves.out[:, i], halves.lse[:, i]), query.shape) for i in range(2)]
        if odd:
            pieces.append(_unfold(_flash(folded, keys[:, None, :1], values[:, None, :1], scale), query.shape))
        return pieces

    def causal(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Piece:
        num_groups = query.shape[1]
        keys, values = (x[:, None].expand(-1, num_groups, -1, -1) for x in (keys, values))
        return _flash(query, keys, values, scale, causal=True)


def _flash(query: Tensor, keys: Tensor, values: Tensor, scale: float, *, causal: bool = False) -> Piece:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, keys, values, 0.0, causal, scale=scale)
    return Piece(out, lse)


def _unfold(piece: Piece, shape: torch.Size) -> Piece:
    return Piece(piece.out.reshape(shape), piece.lse.reshape(shape[:3]))


def merge(pieces: list[Piece]) -> Tensor:  # [num_kv_heads, num_groups, num_rows, head_dim]
    """Join attention of the same rows over disjoint keys. Weights in float32, answer in the pieces' dtype."""
    if len(pieces) == 1:
        return pieces[0].out
    weights = torch.softmax(torch.stack([piece.lse for piece in pieces]), dim=0).unsqueeze_(-1)
    out = pieces[0].out * weights[0]
    for piece, weight in zip(pieces[1:], weights[1:], strict=True):
        out.addcmul_(piece.out.to(out.dtype), weight)
    return out.to(pieces[0].out.dtype)


@dataclass(frozen=True, slots=True)
class Scores:
    """What happens to query-key products before the softmax."""

    scale: float
    mask: Tensor | None = None  # bool [num_rows, num_tokens]; True: visible
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    sinks: Tensor | None = None  # [num_kv_heads, num_groups]: one more logit per head that attracts weight only


def _attend(query: Tensor, keys: Tensor, values: Tensor, how: Scores) -> Piece:
    scores = torch.matmul(query.float(), keys.float().transpose(1, 2).unsqueeze(1)) * how.scale
    if how.softcap is not None:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    if how.mask is not None:
        scores = scores.masked_fill(~how.mask, -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    if how.sinks is not None:
        lse = torch.logaddexp(lse, how.sinks.float().unsqueeze(-1))
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return Piece(torch.matmul(weights, values.float().unsqueeze(1)).to(query.dtype), lse)


class ExtentAttention:
    """The attention function of one runner: set `plan`, run the model, and every layer follows the plan.

    Serves exactly: full causal attention, grouped-query heads, sliding windows, logit soft caps, attention sinks.
    `windows_seen` records for each layer the window its module asked for (None: whole context), so that the loader can
    compare it with the configuration.
    """

    def __init__(self, pool: KvPool, kernel: AttentionKernel) -> None:
        self.pool = pool
        self.kernel = kernel
        self.plan: StepPlan | None = None
        self.windows_seen: dict[int, int | None] = {}

    def __call__(
        self,
        module: Any,
        query: Tensor,  # [1, num_heads, num_rows, head_dim]
        key: Tensor,  # [1, num_kv_heads, num_rows, head_dim]
        value: Tensor,  # [1, num_kv_heads, num_rows, head_dim]
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **ignored: Any,
    ) -> tuple[Tensor, None]:  # [1, num_rows, num_heads, head_dim]
        """Write the step's keys and values into the pool and attend, as Transformers' AttentionInterface asks."""
        plan = self.plan
        assert plan is not None, "the model ran without a plan"
        assert attention_mask is None, "the mask function registered beside this one returns no mask"
        layer, head_dim = module.layer_idx, query.shape[-1]
        self._write(layer, key[0], value[0], plan)
        how = Scores(head_dim**-0.5 if scaling is None else scaling, softcap=softcap, sinks=s_aux)
        return self.attend(layer, query[0], (key[0], value[0]), how, window=sliding_window)[None], None

    def attend(
        self,
        layer: int,
        query: Tensor,  # [num_heads, num_rows, head_dim]
        fresh: tuple[Tensor, Tensor],  # the step's own keys and values, [num_kv_heads, num_rows, head_dim] each
        how: Scores,  # its mask is not used; sinks: [num_heads]
        *,
        window: int | None = None,
    ) -> Tensor:  # [num_rows, num_heads, head_dim]
        """Attend the rows of a step, whose keys and values are in the pool already."""
        plan = self.plan
        assert plan is not None
        self.windows_seen[layer] = window
        num_heads, num_rows, head_dim = query.shape
        num_kv_heads = fresh[0].shape[0]
        grouped = query.view(num_kv_heads, num_heads // num_kv_heads, num_rows, head_dim)
        out = torch.empty((num_rows, num_heads, head_dim), dtype=query.dtype, device=query.device)
        rows_out = out.view(num_rows, *grouped.shape[:2], head_dim).permute(1, 2, 0, 3)
        if how.softcap is not None or how.sinks is not None or self._window_matters(plan, window):
            sinks = None if how.sinks is None else how.sinks.view(grouped.shape[:2])
            masked = Scores(how.scale, softcap=how.softcap, sinks=sinks)
            self._attend_masked(layer, grouped, rows_out, masked, window)
        else:
            self._attend_in_place(layer, grouped, rows_out, fresh, how.scale)
        return out

    def _write(self, layer: int, key: Tensor, value: Tensor, plan: StepPlan) -> None:
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        for write in plan.writes:
            rows = slice(write.row_start, write.row_start + write.length)
            slots = slice(write.slot_start, write.slot_start + write.length)
            keys[:, slots] = key[:, rows]
            values[:, slots] = value[:, rows]

    @staticmethod
    def _window_matters(plan: StepPlan, window: int | None) -> bool:
        return window is not None and any(rows.position + rows.num_rows > window for rows in plan.sequences)

    def _attend_in_place(
        self, layer: int, query: Tensor, rows_out: Tensor, fresh: tuple[Tensor, Tensor], scale: float
    ) -> None:
        """Merge reads of extents with causal attention among the step's own keys and values (`fresh`)."""
        plan = self.plan
        assert plan is not None
        if len(plan.sequences) == 1:
            rows_out.copy_(self._attend_alone(layer, query, fresh, scale))
            return
        key, value = fresh
        pieces: list[list[Piece]] = [[] for _ in plan.sequences]
        for read in plan.reads:
            self._attend_past(layer, query, read, pieces, scale)
        for index, rows in enumerate(plan.sequences):
            own = slice(rows.row_start, rows.row_stop)
            if rows.num_rows > 1:
                pieces[index].append(self.kernel.causal(query[:, :, own], key[:, own], value[:, own], scale))
            rows_out[:, :, own] = merge(pieces[index])

    def _attend_alone(self, layer: int, query: Tensor, fresh: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """Answer the only sequence of a step, whose rows are all there are: nothing has to be cut out or joined."""
        plan = self.plan
        assert plan is not None
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        pieces: list[Piece] = []
        for read in plan.reads:
            extent = slice(read.extent.start, read.extent.stop)
            pieces += self.kernel.past(query, keys[:, extent], values[:, extent], scale)
        if query.shape[2] > 1:
            pieces.append(self.kernel.causal(query, *fresh, scale))
        return merge(pieces)

    def _attend_past(self, layer: int, query: Tensor, read: Read, pieces: list[list[Piece]], scale: float) -> None:
        plan = self.plan
        assert plan is not None
        readers = [plan.sequences[index] for index in read.readers]
        rows = [query[:, :, reader.row_start : reader.row_stop] for reader in readers]
        extent = slice(read.extent.start, read.extent.stop)
        keys, values = self.pool.keys[layer][:, extent], self.pool.values[layer][:, extent]
        found = self.kernel.past(rows[0] if len(rows) == 1 else torch.cat(rows, dim=2), keys, values, scale)
        start = 0
        for index, reader in zip(read.readers, readers, strict=True):
            stop = start + reader.num_rows
            pieces[index] += [Piece(piece.out[:, :, start:stop], piece.lse[:, :, start:stop]) for piece in found]
            start = stop

    def _attend_masked(self, layer: int, query: Tensor, rows_out: Tensor, how: Scores, window: int | None) -> None:
        """Answer one sequence after another over a copy of what its rows can see, with an explicit mask."""
        plan = self.plan
        assert plan is not None
        for rows in plan.sequences:
            keys, values, first = self._visible(layer, rows, window)
            rows_at = torch.arange(rows.position, rows.position + rows.num_rows, device=query.device)[:, None]
            tokens_at = torch.arange(first, first + keys.shape[1], device=query.device)[None, :]
            mask = tokens_at <= rows_at
            if window is not None:
                mask &= tokens_at > rows_at - window
            own = slice(rows.row_start, rows.row_stop)
            masked = Scores(how.scale, mask, how.softcap, how.sinks)
            rows_out[:, :, own] = _attend(query[:, :, own], keys, values, masked).out

    def _visible(self, layer: int, rows: Rows, window: int | None) -> tuple[Tensor, Tensor, int]:
        first = 0 if window is None else max(0, rows.position - window + 1)
        extents = list(extents_between(rows.extents, first, rows.position + rows.num_rows))
        return gather(self.pool.keys[layer], extents), gather(self.pool.values[layer], extents), first


def kernel_for(device: torch.device) -> AttentionKernel:
    """Choose the kernel for a device."""
    return CpuFlashKernel() if device.type == "cpu" else MathKernel()
