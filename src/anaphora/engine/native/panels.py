"""Lay out weights as the kernels read them: 16 outputs side by side, depth after depth.

    rows     output 0: depth 0, 1, 2 ... | output 1: depth 0, 1, 2 ...
    panels   depth 0: outputs 0 ... 15 | depth 1: outputs 0 ... 15 | ... | depth 0: outputs 16 ... 31 | ...

One input meets 16 weights at once then, and no sum has to run across a vector. float32 is left row by row: panels would
be a second copy of it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anaphora.engine.weight_formats import GROUP, PackedMatrix, WeightFormat

PANEL = 16
"""Outputs side by side, as `kPanel` in `source/formats.h`. A matrix is filled up with zeros to whole panels."""


@dataclass(frozen=True, slots=True)
class Panels:
    """A matrix [num_outputs, depth] as the kernels read it.

    | format   | data                                      | scales, float32                                     |
    |----------|-------------------------------------------|-----------------------------------------------------|
    | float32  | [num_outputs, depth]                      |                                                     |
    | bfloat16 | [num_panels, depth, 16]                   |                                                     |
    | int8     | [num_panels, depth, 16]                   | [num_panels, depth / 32, 1, 16]                     |
    | int4     | [num_panels, depth, 8] uint8: outputs     | [num_panels, depth / 32, 2, 16]: scales, then least |
    |          | 0 to 7 in the low halves, others above    |                                                     |
    """

    format: WeightFormat
    data: Tensor
    scales: Tensor | None
    num_outputs: int

    @property
    def size_bytes(self) -> int:
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)


def in_panels(packed: PackedMatrix) -> Panels:
    """Rearrange a packed matrix. Cost: a few passes over it; float32 is not copied."""
    num_outputs = len(packed.data)
    if packed.format is WeightFormat.FLOAT32:
        return Panels(packed.format, packed.data, None, num_outputs)
    data = packed.data
    if packed.format is WeightFormat.INT4:
        halves = data.view(num_outputs, -1, GROUP // 2)
        data = torch.cat([halves & 15, halves >> 4], dim=-1).view(num_outputs, -1)
    data = _side_by_side(data)
    if packed.format is WeightFormat.INT4:
        low, high = data.chunk(2, dim=-1)
        data = low | (high << 4)
    scales = packed.scales
    if scales is not None:
        kinds = scales.view(num_outputs, -1, 1 if packed.format is WeightFormat.INT8 else 2)
        scales = torch.stack([_side_by_side(kinds[..., kind]) for kind in range(kinds.shape[-1])], dim=2)
    return Panels(packed.format, data.contiguous(), scales, num_outputs)


def _side_by_side(rows: Tensor) -> Tensor:  # [num_outputs, depth] -> [num_panels, depth, 16]
    num_outputs, depth = rows.shape
    filled = rows.new_zeros((-(-num_outputs // PANEL) * PANEL, depth))
    filled[:num_outputs] = rows
    return filled.view(-1, PANEL, depth).transpose(1, 2).contiguous()
