"""Linear layers, replaceable: one variant per kind of machine and number of rows, the same weights in all of them.

On x86 CPUs in float32, `torch.nn.functional.linear` is 2-4 x above the memory floor at 1 to 64 rows, the sizes of a
decode step and of a cache hit. oneDNN with weights packed once is up to 3 x faster there, and layers that read the same
input (queries, keys and values; gate and up) gain again when they are joined into one product. From some hundred rows
on it is ahead by a tenth or less (`anaphora bench linear`), which is not worth the memory told of below: a cold prefill
takes the plain way.

oneDNN compiles and keeps code for every number of rows that it meets, about half a megabyte for each layer shape, and
never lets go of it. Rows are therefore padded to one of `ROW_COUNTS`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

ROW_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Row counts that the packed product is computed for. Above the last one the plain product is nearly as fast."""

JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names under which Transformers' models keep layers that read the same input, in the order of their calls."""


class PackedProduct:
    """y = x W^T + b for one or several layers that read the same x, through oneDNN. float32, CPU.

    Each layer takes its own share of the product; it is computed again when the input is another tensor.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        weight = torch.cat([linear.weight.detach() for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        assert len(biases) in (0, len(linears)), "all layers have a bias, or none"
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = torch.cat(biases) if biases else None
        self._sizes = [linear.out_features for linear in linears]
        self._inputs: Tensor | None = None  # kept while shares are left, so that "the same tensor" can be told
        self._left: dict[int, Tensor] = {}

    def share(self, index: int, inputs: Tensor) -> Tensor:
        """Give one layer's share: inputs [..., in_features] -> a view, [..., out_features of the layer].

        Needs at most `ROW_COUNTS[-1]` rows.
        """
        if len(self._sizes) == 1:
            return self._product(inputs)
        if inputs is not self._inputs or index not in self._left:
            self._inputs = inputs
            self._left = dict(enumerate(self._product(inputs).split_with_sizes(self._sizes, dim=-1)))
        result = self._left.pop(index)
        if not self._left:
            self._inputs = None
        return result

    def _product(self, inputs: Tensor) -> Tensor:
        num_rows = inputs.numel() // inputs.shape[-1]
        num_padded = ROW_COUNTS[bisect_left(ROW_COUNTS, num_rows)] - num_rows
        if not num_padded:
            return self._multiply(inputs)
        rows = functional.pad(inputs.reshape(num_rows, -1), (0, 0, 0, num_padded))
        return self._multiply(rows)[:num_rows].view(*inputs.shape[:-1], -1)

    def _multiply(self, inputs: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self._bias, "none", [], "")
        return result


class PackedLinear(nn.Module):
    """A linear layer that takes few rows through a packed product and many through its plain self."""

    def __init__(self, plain: nn.Linear, product: PackedProduct, index: int) -> None:
        super().__init__()
        self.plain = plain
        self._product = product
        self._index = index

    @property
    def weight(self) -> Tensor:  # [out_features, in_features]
        return self.plain.weight

    @property
    def bias(self) -> Tensor | None:  # [out_features]
        return self.plain.bias

    @property
    def in_features(self) -> int:
        return self.plain.in_features

    @property
    def out_features(self) -> int:
        return self.plain.out_features

    def forward(self, inputs: Tensor) -> Tensor:  # [..., in_features] -> [..., out_features]
        if 0 < inputs.numel() <= ROW_COUNTS[-1] * inputs.shape[-1]:
            return self._product.share(self._index, inputs)
        return functional.linear(inputs, self.plain.weight, self.plain.bias)


def packed(linear: nn.Linear) -> PackedLinear:
    """Pack one layer by itself."""
    return PackedLinear(linear, PackedProduct([linear]), 0)


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Say whether `pack_linears` has a faster variant for this dtype and device."""
    return device.type == "cpu" and dtype == torch.float32 and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def packed_bytes(model: nn.Module) -> int:
    """Count the bytes that `pack_linears` would add: a second copy of every plain linear layer's weights."""
    return sum(module.weight.nbytes for module in model.modules() if _is_plain(module))


def pack_linears(model: nn.Module) -> int:
    """Replace every plain `nn.Linear` by a packed variant; answer how many.

    Subclasses of Linear are left alone, and so are layers with hooks, which would be lost.
    """
    num_packed = 0
    for parent in [module for module in model.modules() if not isinstance(module, PackedLinear)]:
        grouped = {name for group in JOINED for name in group}
        singles = [(name,) for name, _ in parent.named_children() if name not in grouped]
        for group in (*JOINED, *singles):
            num_packed += _pack(parent, group)
    return num_packed


def unpack_linears(model: nn.Module) -> None:
    """Undo `pack_linears`."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PackedLinear):
                setattr(parent, name, child.plain)


def _pack(parent: nn.Module, names: Sequence[str]) -> int:
    """Pack a group of layers as one product if they can be joined, else one by one."""
    linears = {name: child for name in names if _is_plain(child := getattr(parent, name, None))}
    if len({(linear.in_features, linear.bias is None) for linear in linears.values()}) > 1:
        return sum(_pack(parent, (name,)) for name in linears)
    if linears:
        product = PackedProduct(list(linears.values()))
        for index, (name, linear) in enumerate(linears.items()):
            setattr(parent, name, PackedLinear(linear, product, index))
    return len(linears)


def _is_plain(child: object) -> TypeGuard[nn.Linear]:
    if type(child) is not nn.Linear or child.weight.dtype != torch.float32:
        return False
    return not (child._forward_hooks or child._forward_pre_hooks)
