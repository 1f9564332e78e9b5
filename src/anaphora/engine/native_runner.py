"""A runner for the decoders that the native kernels know: the whole step in one call, or layer by layer.

few rows (decode, a hit's tail)    one native call: weights and cache are read once, nothing is called in between
many rows (prefill)                large products by the library that torch is built on, attention by
                                   `ExtentAttention`, the small operations between them fused and native
"""

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from anaphora.core.extent import Extent
from anaphora.engine.attention import ExtentAttention, Scores, kernel_for
from anaphora.engine.decoder_weights import DecoderWeights, LayerWeights, decoder_weights
from anaphora.engine.kv_pool import KvPool, gather
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.native.library import ALL_VISIBLE, Kernels, Layer, Model, Run, Step, address, matrix, structures
from anaphora.engine.native.panels import Panels, in_panels
from anaphora.engine.step import Rows, StepPlan, Write
from anaphora.engine.weight_formats import PackedMatrix, pack_exactly
from anaphora.errors import EngineFailure

MAX_FEW_ROWS = 512
"""Up to here a step is one native call. Measured (`anaphora bench steps`): beyond, the library's products win."""


class NativeRunner:
    """Runs a decoder whose weights `decoder_weights` knows how to lay out. See `Runner`."""

    def __init__(
        self,
        loaded: LoadedModel,
        pool: KvPool,
        kernels: Kernels,
        *,
        pack: Callable[[Tensor], PackedMatrix] = pack_exactly,
    ) -> None:
        """Set up the runner; `pack` chooses how weights are kept for few rows."""
        self.attention = ExtentAttention(pool, kernel_for(loaded.device))
        self.max_few_rows = MAX_FEW_ROWS
        self._pool = pool
        self._kernels = kernels
        self._weights = decoder_weights(loaded.model)
        packed = _Packed(self._weights, pack)
        self._packed = packed
        parts = zip(self._weights.layers, packed.layers, zip(pool.keys, pool.values, strict=True), strict=True)
        self._layers = structures(Layer, [_layer(*part) for part in parts])
        self._model = _model(loaded, self._weights, pool, self._layers)
        self._model.head = matrix(packed.head)

    @property
    def formats(self) -> str:
        """Name the formats of the weights and what they take, for the operator."""
        counted = Counter(packed.format.name.lower() for packed in self._packed.all)
        size_mib = sum(packed.size_bytes for packed in self._packed.all) / 2**20
        kinds = ", ".join(f"{number} in {name}" for name, number in counted.most_common())
        return f"matrices: {kinds}; {size_mib:,.0f} MiB"

    def run(self, tokens: NDArray[Any], positions: NDArray[Any], plan: StepPlan, logit_rows: Sequence[int]) -> Tensor:
        """See `Runner.run`. Cost: one forward pass.

        Raises: EngineFailure for keys or values that must not be kept. Slots of other sequences are untouched then.
        """
        hidden = functional.embedding(torch.from_numpy(tokens.astype(np.int64, copy=False)), self._weights.embedding)
        at = torch.from_numpy(positions.astype(np.int64, copy=False))[None]
        cosines, sines = (angles[0].contiguous() for angles in self._weights.rotary(hidden, at))
        slots = _slots(plan)
        step = Step(
            num_rows=len(tokens),
            num_threads=torch.get_num_threads(),
            hidden=address(hidden),
            cosines=address(cosines),
            sines=address(sines),
            slots=slots.ctypes.data,
        )
        run = self._run_few if len(tokens) <= self.max_few_rows else self._run_many
        logits = run(hidden, step, plan, logit_rows)
        if not self._pool.is_finite(plan.writes):
            raise EngineFailure("the model's keys or values are not numbers")
        return logits

    def forget(self, sequence_id: int) -> None:
        """Nothing is kept outside the pool."""

    def _run_few(self, hidden: Tensor, step: Step, plan: StepPlan, logit_rows: Sequence[int]) -> Tensor:
        described, rows = _runs(plan)
        runs, run_rows = structures(Run, described), np.asarray(rows, dtype=np.int32)
        wanted = np.asarray(logit_rows, dtype=np.int32)
        logits = torch.empty((len(wanted), self._weights.head.shape[0]))
        step.num_runs, step.runs = len(described), ctypes.addressof(runs)
        step.run_rows, step.logit_rows = run_rows.ctypes.data, wanted.ctypes.data
        step.num_logits, step.logits = len(wanted), address(logits)
        self._kernels.run_step(self._model, step)
        return logits

    def _run_many(self, hidden: Tensor, step: Step, plan: StepPlan, logit_rows: Sequence[int]) -> Tensor:
        written = [Extent(write.slot_start, write.length) for write in plan.writes]
        self.attention.plan = plan
        try:
            for index, weights in enumerate(self._weights.layers):
                self._run_layer(index, weights, hidden, step=step, written=written)
        finally:
            self.attention.plan = None
        rows = hidden[torch.tensor(logit_rows, dtype=torch.int64)]
        normed = self._kernels.norm_rows(rows, self._weights.final_norm, self._weights.epsilon)
        if len(normed) <= self.max_few_rows:
            return self._kernels.linear(normed, self._packed.head, self._weights.head_bias)
        return functional.linear(normed, self._weights.head, self._weights.head_bias)

    def _run_layer(
        self, index: int, weights: LayerWeights, hidden: Tensor, *, step: Step, written: Sequence[Extent]
    ) -> None:
        """Add one layer's work to hidden [num_rows, hidden], in place. `written`: the slots of the rows' own KV."""
        kernels, epsilon = self._kernels, self._weights.epsilon
        normed = kernels.norm_rows(hidden, weights.attention_norm, epsilon)
        qkv = functional.linear(normed, weights.qkv, weights.qkv_bias)
        query = kernels.place_rows(self._model, index, qkv, step)
        fresh = gather(self._pool.keys[index], written), gather(self._pool.values[index], written)
        attended = self.attention.attend(index, query, fresh, Scores(self._weights.scale))
        _add_product(hidden, attended.view(len(hidden), -1), weights.output, weights.output_bias)
        normed = kernels.norm_rows(hidden, weights.feed_norm, epsilon)
        gated = kernels.gate_rows(functional.linear(normed, weights.gate_up, weights.gate_up_bias))
        _add_product(hidden, gated, weights.down, weights.down_bias)


def _add_product(to: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    to.addmm_(inputs, weight.T)
    if bias is not None:
        to += bias


def _slots(plan: StepPlan) -> NDArray[np.int64]:  # [num_rows]
    slots = np.empty(plan.num_rows, dtype=np.int64)
    for write in plan.writes:
        rows = slice(write.row_start, write.row_start + write.length)
        slots[rows] = np.arange(write.slot_start, write.slot_start + write.length)
    return slots


def _runs(plan: StepPlan) -> tuple[list[Run], list[int]]:
    """Describe who reads what: the extents in the past, then each sequence's own rows among themselves."""
    runs: list[Run] = []
    rows: list[int] = []
    for read in plan.reads:
        first = len(rows)
        for index in read.readers:
            rows += _rows_of(plan.sequences[index])
        runs.append(Run(read.extent.start, read.extent.length, first, len(rows) - first, ALL_VISIBLE))
    own_rows: Rows | None = None
    for sequence, write in _own_writes(plan):
        if sequence.num_rows == 1:
            continue  # it reads itself as a part of its past
        if sequence is not own_rows:
            own_rows, first = sequence, len(rows)
            rows += _rows_of(sequence)
        seen_from = write.row_start - sequence.row_start
        runs.append(Run(write.slot_start, write.length, first, sequence.num_rows, seen_from))
    return runs, rows


def _own_writes(plan: StepPlan) -> Iterator[tuple[Rows, Write]]:
    """Give each write with the sequence whose rows it places. Both stand in the order of rows."""
    sequences = iter(plan.sequences)
    sequence = next(sequences)
    for write in plan.writes:
        while write.row_start >= sequence.row_stop:
            sequence = next(sequences)
        yield sequence, write


def _rows_of(sequence: Rows) -> range:
    return range(sequence.row_start, sequence.row_stop)


class _Packed:
    """A decoder's matrices as the native step reads them."""

    def __init__(self, weights: DecoderWeights, pack: Callable[[Tensor], PackedMatrix]) -> None:
        self.layers = [
            {name: in_panels(pack(own)) for name, own in layer.matrices().items()} for layer in weights.layers
        ]
        self.head = in_panels(pack(weights.head))

    @property
    def all(self) -> Iterator[Panels]:
        return (matrix for layer in (*self.layers, {"head": self.head}) for matrix in layer.values())


def _layer(weights: LayerWeights, packed: dict[str, Panels], pool: tuple[Tensor, Tensor]) -> Layer:
    vectors = {name: address(vector) for name, vector in weights.vectors().items()}
    matrices = {name: matrix(own) for name, own in packed.items()}
    return Layer(**vectors, **matrices, keys=address(pool[0]), values=address(pool[1]))


def _model(loaded: LoadedModel, weights: DecoderWeights, pool: KvPool, layers: Any) -> Model:
    spec = loaded.spec
    return Model(
        num_slots=pool.num_slots,
        num_layers=spec.num_layers,
        hidden=weights.hidden,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        inner=weights.inner,
        vocab_size=weights.head.shape[0],
        num_rotated=spec.head_dim,
        epsilon=weights.epsilon,
        scale=weights.scale,
        final_norm=address(weights.final_norm),
        head_bias=address(weights.head_bias),
        layers=ctypes.addressof(layers),
    )
