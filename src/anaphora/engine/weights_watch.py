"""Notice that a model's weights changed, so that keys computed with the old ones are never used again."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from anaphora.errors import SettingsError

NUM_SAMPLES = 8
"""Elements looked at per tensor. An optimizer's step or a merged adapter changes them all; it takes one to notice."""

_ADAPTER_STATE = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")
"""Where adapter layers (PEFT) keep what is switched on: it changes keys without touching a tensor."""


class WeightsWatch:
    """Counts how often a model's weights were found changed.

    Seen: any in-place change that torch counts (optimizer steps, load_state_dict, `copy_`), exchanged tensors and
    modules, dense changes behind torch's back (`weight.data.add_`), adapters switched on or off, edited settings.
    Not seen: a change through `.data` of single elements that are not sampled, and what hooks do to activations.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._facts: tuple[Any, ...] | None = None
        # Views of the weights. They keep the memory of exchanged weights until the next look, so a new tensor can't
        # come to stand at an old one's address and pass for it.
        self._samples: list[Tensor] = []
        self._sampled: list[bytes] = []
        self.num_changes = 0

    def look(self) -> int:
        """Return the number of changes seen so far; equal numbers mean equal weights.

        Cost: one walk over the modules and one small copy, 2 to 3 ms for 270 tensors.
        Raises: SettingsError for weights that can't be watched.
        """
        tensors: list[Tensor] = []
        adapters: list[str] = []
        for module in self._model.modules():
            tensors += [tensor for tensor in _tensors_of(module) if tensor is not None]
            adapters += [f"{name}={module.__dict__[name]!r}" for name in _ADAPTER_STATE if name in module.__dict__]
        if any(tensor.is_inference() for tensor in tensors):
            raise SettingsError(
                "The model's weights were made under torch.inference_mode, where torch does not count changes. "
                "Load the model outside of it (generating under inference_mode is fine)."
            )
        places = tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)
        facts = (places, tuple(adapters), repr(self._model.config.to_dict()))
        if facts != self._facts:
            self._samples = _sample_views(tensors)
        sampled = [_bytes_of(group) for group in _by_kind(self._samples)]
        if facts != self._facts or sampled != self._sampled:
            self._facts, self._sampled = facts, sampled
            self.num_changes += 1
        return self.num_changes


def _tensors_of(module: Any) -> Iterator[Tensor | None]:
    yield from module._parameters.values()
    yield from module._buffers.values()


def _sample_views(tensors: list[Tensor]) -> list[Tensor]:
    views = []
    for tensor in tensors:
        whole = tensor.detach()
        if not whole.is_contiguous():
            whole = whole[(0,) * (whole.ndim - 1)]
        flat = whole.view(-1) if whole.is_contiguous() else whole
        views.append(flat[:: max(1, flat.numel() // NUM_SAMPLES)])
    return views


def _by_kind(views: list[Tensor]) -> Iterator[list[Tensor]]:
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for view in views:
        kinds.setdefault((view.dtype, view.device), []).append(view)
    yield from kinds.values()


def _bytes_of(views: list[Tensor]) -> bytes:
    return torch.cat(views).cpu().view(torch.uint8).numpy().tobytes()
