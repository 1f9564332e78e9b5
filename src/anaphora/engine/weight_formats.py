"""Smaller formats for weights, taken only where they hold every value exactly.

Most checkpoints were rounded before they were published: to bfloat16, or to blocks of 8 or 4 bits in a GGUF file.
Loaded as float32 they take up to six times the memory that their values need, and a decode step is bound by reading
them. The formats here are the checkpoint's own, found again from its float32 values and checked value by value, so
nothing is rounded that was not rounded before.

    bfloat16    the upper half of each float32
    int8        groups of 32 along a row: value = scale * q             as GGUF's Q8_0
    int4        groups of 32 along a row: value = scale * q + least     as GGUF's Q4_1; two values in a byte
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

GROUP = 32
_CHUNK = 1 << 22  # values that are looked at together: bounds the memory that checking takes


class WeightFormat(IntEnum):
    """Numbers as in `native/source/formats.h`."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [num_outputs, depth], kept row by row."""

    format: WeightFormat
    data: Tensor  # float32 or bfloat16 [num_outputs, depth]; int8 the same; uint8 [num_outputs, depth / 2] for int4
    scales: Tensor | None  # float32: [num_outputs, depth / 32] for int8, [num_outputs, depth / 32, 2] for int4

    @property
    def size_bytes(self) -> int:
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)


_Parts = tuple[Tensor, Tensor | None]
_Packer = Callable[[Tensor], _Parts | None]


def pack_exactly(weight: Tensor) -> PackedMatrix:  # [num_outputs, depth] float32
    """Give the smallest format that holds the weight exactly; float32 is the weight itself, not a copy.

    Cost: a few passes over the weight; one over its first rows for a format that doesn't fit.
    """
    for kind, packer in ((WeightFormat.INT4, _int4), (WeightFormat.INT8, _int8), (WeightFormat.BFLOAT16, _bfloat16)):
        if (parts := _in_chunks(weight, packer)) is not None:
            return PackedMatrix(kind, *parts)
    return PackedMatrix(WeightFormat.FLOAT32, weight, None)


def unpack(packed: PackedMatrix) -> Tensor:  # [num_outputs, depth] float32
    """Give the values back. The reference that the native kernels are tested against."""
    if packed.scales is None:
        return packed.data.float()
    num_rows = len(packed.data)
    if packed.format is WeightFormat.INT8:
        return (packed.data.float().view(num_rows, -1, GROUP) * packed.scales[..., None]).view(num_rows, -1)
    halves = packed.data.view(num_rows, -1, GROUP // 2)
    values = torch.cat([halves & 15, halves >> 4], dim=-1).float()
    return (values * packed.scales[..., :1] + packed.scales[..., 1:]).view(num_rows, -1)


def _in_chunks(weight: Tensor, packer: _Packer) -> _Parts | None:
    num_rows, depth = weight.shape
    rows = max(1, _CHUNK // depth)
    if packer(weight[: min(8, num_rows)]) is None:
        return None
    found: list[_Parts] = []
    for chunk in weight.split_with_sizes([min(rows, num_rows - start) for start in range(0, num_rows, rows)]):
        if (parts := packer(chunk)) is None:
            return None
        found.append(parts)
    scales = [own for _, own in found if own is not None]
    return torch.cat([data for data, _ in found]), torch.cat(scales) if scales else None


def _bfloat16(weight: Tensor) -> _Parts | None:
    rounded = weight.bfloat16()
    return (rounded, None) if torch.equal(rounded.float(), weight) else None


def _int8(weight: Tensor) -> _Parts | None:
    groups = _groups(weight)
    if groups is None:
        return None
    scales = (groups.abs().amax(dim=-1) / 127).half().float()
    whole = (groups / torch.where(scales > 0, scales, 1.0)[..., None]).round().clamp(-127, 127)
    if not torch.equal(whole * scales[..., None], groups):
        return None
    return whole.to(torch.int8).view(weight.shape), scales.contiguous()


def _int4(weight: Tensor) -> _Parts | None:
    groups = _groups(weight)
    if groups is None:
        return None
    least = groups.amin(dim=-1)
    scales = ((groups.amax(dim=-1) - least) / 15).half().float()
    divisors = torch.where(scales > 0, scales, 1.0)
    whole = ((groups - least[..., None]) / divisors[..., None]).round().clamp(0, 15)
    if not torch.equal(whole * scales[..., None] + least[..., None], groups):
        return None
    low, high = whole.to(torch.uint8).chunk(2, dim=-1)
    return (low | (high << 4)).view(len(weight), -1), torch.stack([scales, least], dim=-1)


def _groups(weight: Tensor) -> Tensor | None:  # [num_rows, depth / 32, 32]
    if weight.shape[1] % GROUP or not bool(weight.isfinite().all()):
        return None
    return weight.reshape(len(weight), -1, GROUP)
