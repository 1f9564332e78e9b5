"""Whole steps of the model, by number of new rows: what the bounds between few and many rows rest on."""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch

from anaphora.bench.timing import interleaved, seconds
from anaphora.core.extent import Extent
from anaphora.engine.decoder_weights import why_not_native
from anaphora.engine.kv_pool import KvPool
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.native.library import Kernels
from anaphora.engine.native_runner import NativeRunner
from anaphora.engine.runner import ExtentRunner, Runner
from anaphora.engine.step import Read, Rows, StepPlan, plan_step

STEPS = ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (1, 32), (1, 64), (1, 96), (1, 128), (1, 256), (1, 512))
CROWDS = ((8, 8), (8, 64), (8, 128), (8, 256), (8, 512), (8, 1024))
"""Sequences that share the cached past, and new rows of them all together."""

NUM_PAST = 2000


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step over a cached past, in milliseconds."""

    num_sequences: int
    num_rows: int  # of all sequences together
    one_call_ms: float  # native, all layers in one call
    by_layer_ms: float  # native, products by torch
    torch_ms: float  # Transformers' forward over the same pool


def compare_steps(
    loaded: LoadedModel,
    kernels: Kernels,
    *,
    steps: Sequence[tuple[int, int]] = STEPS + CROWDS,
    num_past: int = NUM_PAST,
    num_rounds: int = 7,
) -> list[StepTimes]:
    """Time steps over `num_past` cached tokens, given as (sequences, rows). Needs a model that the native kernels know.

    Rows are shared out evenly; every sequence reads the whole past and rows of its own.
    """
    assert why_not_native(loaded) is None, "the native kernels don't know this model"
    twin = copy.deepcopy(loaded)
    num_slots = num_past + max(num_rows for _, num_rows in steps)
    pools = [KvPool(loaded.spec, num_slots=num_slots, dtype=torch.float32, device=loaded.device) for _ in range(2)]
    native, other = NativeRunner(loaded, pools[0], kernels), ExtentRunner(twin, pools[1])
    tokens = np.random.default_rng(0).integers(0, loaded.spec.vocab_size, num_slots).astype(np.int32)

    def in_one_call(rows: Sequence[Rows]) -> None:
        native.max_few_rows = num_slots
        _step(native, tokens, rows)

    def by_layer(rows: Sequence[Rows]) -> None:
        native.max_few_rows = 0
        _step(native, tokens, rows)

    found = []
    with torch.inference_mode():
        past = [Rows(0, 0, num_past, 0, (Extent(0, num_past),))]
        by_layer(past)
        _step(other, tokens, past)
        for num_sequences, num_rows in steps:
            rows = _rows(num_sequences, num_rows // num_sequences, num_past)
            ways = (partial(in_one_call, rows), partial(by_layer, rows), partial(_step, other, tokens, rows))
            times = interleaved(*(partial(seconds, way) for way in ways), num_rounds=num_rounds)
            found.append(StepTimes(num_sequences, num_rows, *(1e3 * median(own) for own in times)))
    return found


@dataclass(frozen=True, slots=True)
class SharedPast:
    """Attention of one decode step of several sequences over a past of the same tokens, in milliseconds.

    Attention is what a step takes longer than without a past.
    """

    num_sequences: int
    num_past: int
    together_ms: float  # the past lies in the pool once, and is read once
    apart_ms: float  # it lies there once, and each sequence reads it by itself
    copies_ms: float  # each sequence has its own


def compare_shared_past(
    loaded: LoadedModel, kernels: Kernels, *, num_sequences: int = 8, num_past: int = 1500, num_rounds: int = 25
) -> SharedPast:
    """Time what reading a shared prefix once is worth. Needs a model that the native kernels know."""
    num_slots = num_sequences * (num_past + 1)
    native = NativeRunner(
        loaded, KvPool(loaded.spec, num_slots=num_slots, dtype=torch.float32, device=loaded.device), kernels
    )
    tokens = np.random.default_rng(0).integers(0, loaded.spec.vocab_size, num_past + num_sequences).astype(np.int32)
    own = [Extent(num_sequences * num_past + index, 1) for index in range(num_sequences)]
    copies = [Extent(index * num_past, num_past) for index in range(num_sequences)]

    def rows(position: int, pasts: Sequence[tuple[Extent, ...]]) -> list[Rows]:
        return [Rows(i, i, 1, position, (*past, end)) for i, (past, end) in enumerate(zip(pasts, own, strict=True))]

    shared = plan_step(rows(num_past, [(copies[0],)] * num_sequences))
    apart = dataclasses.replace(
        shared, reads=tuple(Read(read.extent, (reader,)) for read in shared.reads for reader in read.readers)
    )
    plans = (
        (shared, num_past),
        (apart, num_past),
        (plan_step(rows(num_past, [(copy_,) for copy_ in copies])), num_past),
        (plan_step(rows(0, [()] * num_sequences)), 0),
    )

    def run(plan: StepPlan, position: int) -> None:
        native.run(tokens[:num_sequences], np.full(num_sequences, position), plan, range(num_sequences))

    with torch.inference_mode():
        for copy_ in copies:
            _step(native, tokens, [Rows(0, 0, num_past, 0, (copy_,))])
        ways = [partial(run, *plan) for plan in plans]
        times = interleaved(*(partial(seconds, way) for way in ways), num_rounds=num_rounds)
    together, alone, copied, without = (1e3 * median(found) for found in times)
    return SharedPast(num_sequences, num_past, together - without, alone - without, copied - without)


def _rows(num_sequences: int, num_each: int, num_past: int) -> list[Rows]:
    """Sequences that go on from one past, each in slots of its own."""
    return [
        Rows(index, index * num_each, num_each, num_past, (Extent(0, num_past), Extent(start, num_each)))
        for index, start in enumerate(range(num_past, num_past + num_sequences * num_each, num_each))
    ]


def _step(runner: Runner, tokens: np.ndarray, rows: Sequence[Rows]) -> None:
    positions = np.concatenate([np.arange(one.position, one.position + one.num_rows) for one in rows])
    ids = tokens[: rows[-1].row_stop]
    runner.run(ids, positions, plan_step(rows), [one.row_stop - 1 for one in rows])
