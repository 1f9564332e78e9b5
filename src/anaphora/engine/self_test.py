"""Test with numbers, at load, that a model's KV can be cached exactly. Doubt means: serve it without reuse."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anaphora.core.extent import Extent
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.native_runner import NativeRunner
from anaphora.engine.runner import ExtentRunner
from anaphora.engine.step import Rows, plan_step
from anaphora.errors import EngineFailure

ReadsExtents = ExtentRunner | NativeRunner

NUM_TOKENS = 48
TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""Largest difference of scores, relative to their largest magnitude (or 1): rounding, with room to spare."""


def reference_scores(loaded: LoadedModel) -> tuple[Tensor, np.ndarray]:
    """Score every position of a fixed random prompt by the untouched model: [num_tokens, vocab_size], tokens."""
    num_tokens = min(NUM_TOKENS, loaded.spec.max_context)
    ids = np.random.default_rng(0).integers(0, loaded.spec.vocab_size, num_tokens).astype(np.int32)
    with torch.inference_mode():
        output = loaded.model(input_ids=torch.from_numpy(ids).to(loaded.device, torch.int64)[None], use_cache=False)
    return output.logits[0].float(), ids


def why_not_exact(runner: ReadsExtents, loaded: LoadedModel, expected: Tensor, ids: np.ndarray) -> str | None:
    """Score the same prompt from pieces in the pool; answer a sentence for the operator if anything differs.

    The prompt is cut in three, lies in scattered extents, and shares a step with another sequence. Uses the pool's
    first slots; nothing may be cached yet.
    """
    try:
        worst = _worst_difference(runner, expected, ids)
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError, EngineFailure) as error:
        return _sentence(loaded, f"its forward pass fails on cached pieces ({type(error).__name__}: {error})")
    scale = max(1.0, float(torch.where(expected.isfinite(), expected, 0.0).abs().max()))
    if not worst <= TOLERANCE[loaded.dtype] * scale:
        return _sentence(loaded, f"its scores from cached pieces differ from a full pass by {worst:.2g}")
    return _windows_missed(runner, loaded)


def _worst_difference(runner: ReadsExtents, expected: Tensor, ids: np.ndarray) -> float:
    num_tokens = len(ids)
    cut, late = num_tokens // 3, num_tokens - 1
    first = (Extent(num_tokens, cut), Extent(0, num_tokens - cut))
    second = (Extent(2 * num_tokens, num_tokens),)
    worst = 0.0
    with torch.inference_mode():
        for start, stop in ((0, cut), (cut, late), (late, num_tokens)):
            length = stop - start
            rows = [Rows(0, 0, length, start, first), Rows(1, length, length, start, second)]
            tokens = np.concatenate([ids[start:stop]] * 2)
            positions = np.concatenate([np.arange(start, stop)] * 2)
            logits = runner.run(tokens, positions, plan_step(rows), range(2 * length))
            for own in (logits[:length].float(), logits[length:].float()):
                worst = max(worst, _difference(own, expected[start:stop]))
    return worst


def _difference(found: Tensor, expected: Tensor) -> float:
    """Give the largest difference; infinity where a side is not a number. Equal infinities are equal."""
    difference = torch.where(found == expected, 0.0, (found - expected).abs())
    return float(torch.nan_to_num(difference, nan=math.inf).max())


def _windows_missed(runner: ReadsExtents, loaded: LoadedModel) -> str | None:
    """Compare the windows that layers asked for with the configuration; the test prompt may be too short to tell."""
    config: Any = loaded.model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    seen = runner.attention.windows_seen
    expected = {layer: window if kinds is None or kinds[layer] == "sliding_attention" else None for layer in seen}
    if seen == expected:
        return None
    return _sentence(loaded, "its layers' sliding windows are not those of its settings")


def _sentence(loaded: LoadedModel, reason: str) -> str:
    return f"{loaded.spec.architecture} can't be cached exactly because {reason}; it is served without reuse"
