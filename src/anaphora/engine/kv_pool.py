"""The device pool: per layer one tensor of keys and one of values, addressed by slot."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from anaphora.core.extent import Extent
from anaphora.engine.models.spec import ModelSpec
from anaphora.engine.step import Write


class KvPool:
    """Keys and values of every cached or running token.

    keys[layer], values[layer]: [num_kv_heads, num_slots, head_dim]. A slot's content is undefined until it is written;
    nothing reads a slot that no lease covers. The bytes are fixed at construction: the pool never grows.
    """

    def __init__(self, spec: ModelSpec, *, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (spec.num_kv_heads, num_slots, spec.head_dim)
        self.num_slots = num_slots
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(spec.num_layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(spec.num_layers)]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def is_finite(self, writes: Iterable[Write]) -> bool:
        """Say whether what was written is made of numbers, infinity excluded.

        The last layer stands for all: what is not a number in one layer makes the same token's keys and values
        not numbers in every layer above it.
        """
        found = [
            torch.isfinite(tensor[:, write.slot_start : write.slot_start + write.length]).all()
            for write in writes
            for tensor in (self.keys[-1], self.values[-1])
        ]
        return bool(torch.stack(found).all())


def gather(
    pool: Tensor,  # [num_kv_heads, num_slots, head_dim]
    extents: Sequence[Extent],
) -> Tensor:  # [num_kv_heads, num_tokens, head_dim]
    """Give a sequence's keys (or values) in token order: a view of the pool for one extent, else a copy.

    Cost: for more than one extent, one read and one write of num_tokens * num_kv_heads * head_dim elements.
    Source: compare PagedAttention, Kwon et al. 2023, arXiv:2309.06180, section 4 (block tables; ours are extents).
    """
    if len(extents) == 1:
        return pool[:, extents[0].start : extents[0].stop]
    if not extents:
        return pool[:, :0]
    return torch.cat([pool[:, extent.start : extent.stop] for extent in extents], dim=1)
