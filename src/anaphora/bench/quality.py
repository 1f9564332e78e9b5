"""What rounding weights costs and gains: perplexity and next tokens over a fixed text, size, time of a decode step.

Each rounding is run twice: by Transformers' own forward in float32, and by the native kernels from packed weights. The
two have to agree, whatever the rounding: packing loses nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from anaphora.bench.load.material import load_material
from anaphora.bench.timing import seconds
from anaphora.core.extent import Extent
from anaphora.engine.kv_pool import KvPool
from anaphora.engine.models.loading import load_model
from anaphora.engine.models.rounding import Rounding
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.native.library import Kernels
from anaphora.engine.native_runner import NativeRunner
from anaphora.engine.step import Rows, plan_step

ROUNDINGS: tuple[Rounding, ...] = ("checkpoint", "bfloat16", "int8", "int4")
NUM_TOKENS = 2048
_CHUNK = 256
_NUM_STEPS = 15


@dataclass(frozen=True, slots=True)
class Quality:
    """One rounding. Agreement: the part of places where both name the same next token as the best."""

    rounding: Rounding
    formats: str
    plain_perplexity: float
    native_perplexity: float
    native_agrees: float  # with Transformers over the same rounded weights
    checkpoint_agrees: float  # with Transformers over the checkpoint's weights
    step_ms: float  # of one new token behind the text, native


def measure_quality(
    model: str, kernels: Kernels, *, cache_dir: Path, num_tokens: int = NUM_TOKENS
) -> Iterator[Quality]:
    """Load the model once for each rounding and run it over the same real text, of `num_tokens` tokens."""
    reference: Tensor | None = None
    for rounding in ROUNDINGS:
        loaded = load_model(model, cache_dir=cache_dir, device=torch.device("cpu"), progress=False, rounding=rounding)
        tokens = _text(loaded, num_tokens)
        with torch.inference_mode():
            plain = loaded.model(input_ids=torch.from_numpy(tokens)[None].long(), use_cache=False).logits[0]
            runner, native = _native(loaded, kernels, tokens)
            took_s = median(seconds(partial(_step, runner, tokens)) for _ in range(_NUM_STEPS))
        best = plain.argmax(dim=-1)
        reference = best if reference is None else reference
        yield Quality(
            rounding,
            runner.formats,
            _perplexity(plain, tokens),
            _perplexity(native, tokens),
            float((native.argmax(dim=-1) == best).float().mean()),
            float((best == reference).float().mean()),
            1e3 * took_s,
        )


def _text(loaded: LoadedModel, num_tokens: int) -> np.ndarray:  # [num_tokens] int32
    text = "\n\n".join(load_material().paragraphs())
    ids = loaded.tokenizer(text, truncation=True, max_length=num_tokens).input_ids
    assert len(ids) == num_tokens, f"the text has {len(ids)} tokens only"
    return np.asarray(ids, dtype=np.int32)


def _native(loaded: LoadedModel, kernels: Kernels, tokens: np.ndarray) -> tuple[NativeRunner, Tensor]:
    """Set up the native runner and give its scores of the whole text [num_tokens, vocab_size]."""
    pool = KvPool(loaded.spec, num_slots=len(tokens) + 1, dtype=torch.float32, device=loaded.device)
    runner = NativeRunner(loaded, pool, kernels)
    scores = []
    for start in range(0, len(tokens), _CHUNK):
        num_rows = min(_CHUNK, len(tokens) - start)
        plan = plan_step([Rows(0, 0, num_rows, start, (Extent(0, start + num_rows),))])
        positions = np.arange(start, start + num_rows)
        scores.append(runner.run(tokens[start : start + num_rows], positions, plan, range(num_rows)))
    return runner, torch.cat(scores)


def _step(runner: NativeRunner, tokens: np.ndarray) -> None:
    plan = plan_step([Rows(0, 0, 1, len(tokens), (Extent(0, len(tokens) + 1),))])
    runner.run(tokens[-1:], np.array([len(tokens)]), plan, [0])


def _perplexity(scores: Tensor, tokens: np.ndarray) -> float:
    return float(functional.cross_entropy(scores[:-1], torch.from_numpy(tokens[1:]).long()).exp())
