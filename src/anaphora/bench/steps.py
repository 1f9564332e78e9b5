"""Whole steps of the model, by number of new rows: what the bound between few and many rows rests on."""

import copy
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
from anaphora.engine.step import Rows, plan_step

STEP_ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256)
NUM_PAST = 2000


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step over a cached past, in milliseconds."""

    num_rows: int
    one_call_ms: float  # native, all layers in one call
    by_layer_ms: float  # native, products by torch
    torch_ms: float  # Transformers' forward over the same pool


def compare_steps(
    loaded: LoadedModel,
    kernels: Kernels,
    *,
    rows: Sequence[int] = STEP_ROWS,
    num_past: int = NUM_PAST,
    num_rounds: int = 9,
) -> list[StepTimes]:
    """Time steps of one sequence with `num_past` tokens cached. Needs a model that the native kernels know."""
    assert why_not_native(loaded) is None, "the native kernels don't know this model"
    twin = copy.deepcopy(loaded)
    num_slots = num_past + max(rows)
    pools = [KvPool(loaded.spec, num_slots=num_slots, dtype=torch.float32, device=loaded.device) for _ in range(2)]
    native, other = NativeRunner(loaded, pools[0], kernels), ExtentRunner(twin, pools[1])
    tokens = np.random.default_rng(0).integers(0, loaded.spec.vocab_size, num_slots).astype(np.int32)

    def in_one_call(start: int, stop: int) -> None:
        native.max_few_rows = num_slots
        _step(native, tokens, start, stop)

    def by_layer(start: int, stop: int) -> None:
        native.max_few_rows = 0
        _step(native, tokens, start, stop)

    found = []
    with torch.inference_mode():
        by_layer(0, num_past)
        _step(other, tokens, 0, num_past)
        for num_rows in rows:
            span = num_past, num_past + num_rows
            ways = (partial(in_one_call, *span), partial(by_layer, *span), partial(_step, other, tokens, *span))
            times = interleaved(*(partial(seconds, way) for way in ways), num_rounds=num_rounds)
            found.append(StepTimes(num_rows, *(1e3 * median(own) for own in times)))
    return found


def _step(runner: Runner, tokens: np.ndarray, start: int, stop: int) -> None:
    rows = Rows(0, 0, stop - start, start, (Extent(0, stop),))
    runner.run(tokens[start:stop], np.arange(start, stop), plan_step([rows]), [stop - start - 1])
