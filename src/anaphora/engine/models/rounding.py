"""Round a model's matrices to fewer bits, once, when it is loaded: `--weights int8`.

Rounding happens in the float32 weights themselves. So every way to run the model computes with the same numbers, a hit
still equals a cold run, and the native kernels find the format again, value by value (`weight_formats.py`).

    bfloat16    every value to 8 significant bits
    int8        groups of 32 along a row: scale * q, the largest magnitude is 127 steps     as GGUF's Q8_0
    int4        groups of 32 along a row: least + scale * q, least to largest is 15 steps   as GGUF's Q4_1
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anaphora.engine.weight_formats import GROUP

Rounding = Literal["checkpoint", "bfloat16", "int8", "int4"]
"""checkpoint: as they are."""


def round_weights(model: Any, rounding: Rounding) -> int:
    """Round the weights of every linear layer in place; answer how many were rounded.

    Layers whose rows are no multiple of 32 wide are left alone by int8 and int4. An output layer that is tied to the
    embedding is rounded with it.
    """
    if rounding == "checkpoint":
        return 0
    round_rows, num_rounded = _ROUNDINGS[rounding], 0
    with torch.no_grad():
        for layer in (module for module in model.modules() if isinstance(module, nn.Linear)):
            if rounding == "bfloat16" or not layer.weight.shape[1] % GROUP:
                layer.weight.copy_(round_rows(layer.weight.float()))
                num_rounded += 1
    return num_rounded


def _to_bfloat16(weight: Tensor) -> Tensor:
    return weight.bfloat16().float()


def _to_int8(weight: Tensor) -> Tensor:
    groups = weight.view(len(weight), -1, GROUP)
    scales = _as_half(groups.abs().amax(dim=-1, keepdim=True) / 127)
    return (_steps(groups, scales).clamp(-127, 127) * scales).view_as(weight)


def _to_int4(weight: Tensor) -> Tensor:
    groups = weight.view(len(weight), -1, GROUP)
    least = _as_half(groups.amin(dim=-1, keepdim=True))
    scales = _as_half((groups.amax(dim=-1, keepdim=True) - least) / 15)
    return (_steps(groups - least, scales).clamp(0, 15) * scales + least).view_as(weight)


def _steps(values: Tensor, scales: Tensor) -> Tensor:
    return (values / torch.where(scales > 0, scales, 1.0)).round()


def _as_half(scales: Tensor) -> Tensor:
    return scales.half().float()


_ROUNDINGS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"bfloat16": _to_bfloat16, "int8": _to_int8, "int4": _to_int4}
)
