"""The device pool as bytes: records' keys and values copied out of slots, and into them.

On the CPU by NumPy, in one thread: torch would start a second team of workers beside the engine's.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anaphora.core.extent import Extent
from anaphora.engine.durable.claim import Claim
from anaphora.engine.kv_pool import KvPool
from anaphora.tiers.memory import Memory
from anaphora.tiers.record import LayerShape, Layout, Record

Bits = NDArray[Any]  # of integers as wide as the pool's numbers

_TORCH_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
_NUMPY_BITS = {1: np.int8, 2: np.int16, 4: np.int32}


class PoolBytes:
    """Copies between a pool and records of its layout. Any thread, on slots that only it writes or nobody does."""

    def __init__(self, pool: KvPool) -> None:
        self._layers = list(zip(pool.keys, pool.values, strict=True))
        self.layout = Layout(
            str(pool.keys[0].dtype).removeprefix("torch."),
            tuple(LayerShape(keys.shape[0], keys.shape[2], values.shape[2]) for keys, values in self._layers),
        )
        self.bytes_per_token = self.layout.kv_bytes(1)

    def copy_out(self, extents: Sequence[Extent], claim: Claim, memory: Memory) -> NDArray[np.uint8] | None:
        """Copy keys and values of slots into memory, as a record holds them. None: the slots were taken back.

        Cost: one read and one write of them; a layer at a time under the claim.
        """
        num_tokens = sum(extent.length for extent in extents)
        kv = memory.array(self.layout.kv_bytes(num_tokens))
        at = 0
        for layer in self._layers:
            for tensor in layer:
                shape = (tensor.shape[0], num_tokens, tensor.shape[2])
                num_bytes = tensor.element_size() * shape[0] * shape[1] * shape[2]
                block = kv[at : at + num_bytes].view(_NUMPY_BITS[tensor.element_size()]).reshape(shape)
                if not claim.do(partial(_copy_out, tensor, extents, block)):
                    return None
                at += num_bytes
        return kv

    def copy_in(self, record: Record, first: int, extents: Sequence[Extent], claim: Claim) -> bool:
        """Copy tokens of a record, from its `first` on, into slots. False: the slots were taken back.

        Cost: as `copy_out`.
        """
        assert record.layout == self.layout, "keys and values of another shape"
        last = first + sum(extent.length for extent in extents)
        for index, layer in enumerate(self._layers):
            for tensor, stored in zip(layer, record.layer(index), strict=True):
                block = stored.view(_NUMPY_BITS[tensor.element_size()])[:, first:last]
                if not claim.do(partial(_copy_in, tensor, extents, block)):
                    return False
        return True


def _copy_out(
    tensor: Tensor,  # [num_kv_heads, num_slots, head_dim]
    extents: Sequence[Extent],
    block: Bits,  # [num_kv_heads, num_tokens, head_dim]
) -> None:
    at = 0
    for extent in extents:
        block[:, at : at + extent.length] = _bits(tensor[:, extent.start : extent.stop])
        at += extent.length


def _copy_in(tensor: Tensor, extents: Sequence[Extent], block: Bits) -> None:
    at = 0
    for extent in extents:
        given, slots = block[:, at : at + extent.length], tensor[:, extent.start : extent.stop]
        if tensor.device.type == "cpu":
            _bits(slots)[:] = given
        else:
            slots.copy_(torch.from_numpy(np.ascontiguousarray(given)).view(tensor.dtype))
        at += extent.length


def _bits(tensor: Tensor) -> Bits:
    """Give the same memory as integers, which NumPy has for every dtype; a copy if it is on another device."""
    return tensor.cpu().view(_TORCH_BITS[tensor.element_size()]).numpy()
