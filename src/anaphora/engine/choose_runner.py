"""Choose how a loaded model runs: the fastest way that its self-test finds exact."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anaphora.engine.decoder_weights import why_not_native
from anaphora.engine.kv_pool import KvPool
from anaphora.engine.models.moving_positions import why_positions_move
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.native.build import NotBuilt
from anaphora.engine.native.library import Kernels, load_kernels
from anaphora.engine.native_runner import NativeRunner
from anaphora.engine.plain_runner import PlainRunner
from anaphora.engine.runner import ExtentRunner, Runner
from anaphora.engine.self_test import reference_scores, why_not_exact
from anaphora.errors import SettingsError

KernelChoice = Literal["auto", "native", "torch"]


@dataclass(frozen=True, slots=True)
class ChosenRunner:
    runner: Runner
    refusal: str | None  # why the model's KV can't be cached exactly: a sentence
    kernels: str  # what computes, for the operator: a sentence
    pool: KvPool | None = None  # where it keeps keys and values; None where nothing can be reused


def choose_runner(loaded: LoadedModel, *, num_slots: int, kernels: KernelChoice, cache_dir: Path) -> ChosenRunner:
    """Set a model up to run on a new pool of `num_slots`; its linear layers and attention may be replaced.

    Raises: SettingsError where kernels = "native" can't be had.
    """
    refusal = loaded.spec.not_cacheable_because or _why_positions_move(loaded)
    if refusal is not None:
        return ChosenRunner(PlainRunner(loaded), refusal, "Kernels: Transformers' own.")
    expected, ids = reference_scores(loaded)
    pool = KvPool(loaded.spec, num_slots=num_slots, dtype=loaded.dtype, device=loaded.device)
    native = "they are turned off by the setting `kernels`" if kernels == "torch" else _native(loaded, pool, cache_dir)
    if isinstance(native, NativeRunner):
        reasons = (why_not_exact(way, loaded, expected, ids) for way in _both_ways(native))
        refusal = next((reason for reason in reasons if reason is not None), None)
        if refusal is None:
            return ChosenRunner(native, None, f"Kernels: native ({native.formats}).", pool)
        native = refusal
    if kernels == "native":
        raise SettingsError(f"kernels = 'native' can't be had: {native}. Use kernels = 'auto'.")
    own_attention = loaded.model.config._attn_implementation
    runner = ExtentRunner(loaded, pool)
    refusal = why_not_exact(runner, loaded, expected, ids)
    told = f"Kernels: torch. The native ones are not used: {native}."
    if refusal is None:
        return ChosenRunner(runner, None, told, pool)
    runner.restore(own_attention)
    return ChosenRunner(PlainRunner(loaded), refusal, told)


def _native(loaded: LoadedModel, pool: KvPool, cache_dir: Path) -> NativeRunner | str:
    """Set up the native runner, or say why it can't be."""
    if (reason := why_not_native(loaded)) is not None:
        return reason
    kernels = load_kernels(cache_dir)
    if isinstance(kernels, NotBuilt):
        return kernels.reason
    if (reason := _why_heads_do_not_fit(loaded, kernels)) is not None:
        return reason
    return NativeRunner(loaded, pool, kernels)


def _why_heads_do_not_fit(loaded: LoadedModel, kernels: Kernels) -> str | None:
    head_dim = loaded.spec.head_dim
    if head_dim % kernels.width or head_dim > kernels.max_head_dim:
        return f"heads of {head_dim} are no multiple of {kernels.width} up to {kernels.max_head_dim}"
    return None


def _both_ways(runner: NativeRunner) -> Iterator[NativeRunner]:
    """Give the runner twice: running every step layer by layer, then as it will run."""
    usual = runner.max_few_rows
    runner.max_few_rows = 0
    yield runner
    runner.max_few_rows = usual
    yield runner


def _why_positions_move(loaded: LoadedModel) -> str | None:
    reason = why_positions_move(loaded.model.config, max_context=loaded.spec.max_context)
    if reason is None:
        return None
    return f"{loaded.spec.architecture} can't be cached exactly because {reason}; it is served without reuse"
