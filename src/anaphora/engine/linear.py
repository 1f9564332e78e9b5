"""Linear layers, replaceable: one variant per kind of machine, the same weight values in all of them.

On x86 CPUs in float32, `torch.nn.functional.linear` is 2-4 x above the memory floor at 1 to 64 rows, the sizes of a
decode step and of a cache hit. oneDNN with weights packed once is up to 3 x faster there and not slower at the sizes
of a cold prefill. Layers that read the same input (queries, keys and values; gate and up) are joined into one product:
a quarter less time at one row (`anaphora bench linear`).
"""

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names under which Transformers' models keep layers that read the same input, in the order of their calls."""


class PackedLinear(nn.Module):
    """y = x W^T + b through oneDNN, with W kept in oneDNN's own blocked layout. float32, CPU."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:  # [out_features, in_features]
        """Unpack W, for models that use it besides the layer itself. Cost: a copy each time."""
        dense: Tensor = self.packed.to_dense()
        return dense

    def forward(self, inputs: Tensor) -> Tensor:  # [..., in_features] -> [..., out_features]
        result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")
        return result

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, packed"


class JoinedProduct:
    """One product for several layers, handed out part by part. Computes again when the input is another tensor."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        first = linears[0]
        self.sizes = [linear.out_features for linear in linears]
        joined = nn.Linear(first.in_features, sum(self.sizes), bias=first.bias is not None, device="meta")
        joined.weight = nn.Parameter(torch.cat([linear.weight.detach() for linear in linears]), requires_grad=False)
        if first.bias is not None:
            joined.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]), requires_grad=False)
        self.linear = PackedLinear(joined)
        self._inputs: Tensor | None = None  # kept while parts are left, so that "the same tensor" can be told
        self._left: dict[int, Tensor] = {}

    def part(self, index: int, inputs: Tensor) -> Tensor:
        """Give one layer's share of the product: a view, [..., sizes[index]]."""
        if inputs is not self._inputs or index not in self._left:
            self._inputs = inputs
            self._left = dict(enumerate(self.linear(inputs).split_with_sizes(self.sizes, dim=-1)))
        result = self._left.pop(index)
        if not self._left:
            self._inputs = None
        return result


class LinearPart(nn.Module):
    """One of several layers that are computed together."""

    def __init__(self, product: JoinedProduct, index: int) -> None:
        super().__init__()
        self.in_features = product.linear.in_features
        self.out_features = product.sizes[index]
        self._product = product
        self._index = index

    @property
    def weight(self) -> Tensor:  # [out_features, in_features]
        """Unpack this layer's own W. Cost: a copy of all joined weights each time."""
        return torch.split(self._product.linear.weight, self._product.sizes)[self._index]

    @property
    def bias(self) -> Tensor | None:  # [out_features]
        joined = self._product.linear.bias
        return None if joined is None else torch.split(joined, self._product.sizes)[self._index]

    def forward(self, inputs: Tensor) -> Tensor:  # [..., in_features] -> [..., out_features]
        return self._product.part(self._index, inputs)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, joined"


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Say whether `pack_linears` has a faster variant for this dtype and device."""
    return device.type == "cpu" and dtype == torch.float32 and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def pack_linears(model: nn.Module) -> int:
    """Replace every plain `nn.Linear` by a packed variant; answer how many.

    Subclasses of Linear are left alone, and so are layers with hooks, which would be lost.
    Weights that nothing else holds (all but tied embeddings) are freed, so memory grows by the tied ones alone.
    """
    num_packed = 0
    for parent in list(model.modules()):
        for group in JOINED:
            children = [getattr(parent, name, None) for name in group]
            linears = [child for child in children if _is_plain(child)]
            if len(linears) == len(group) and _can_join(linears):
                product = JoinedProduct(linears)
                for index, name in enumerate(group):
                    setattr(parent, name, LinearPart(product, index))
                num_packed += len(group)
        for name, child in list(parent.named_children()):
            if _is_plain(child):
                setattr(parent, name, PackedLinear(child))
                num_packed += 1
    return num_packed


def unpack_linears(model: nn.Module) -> None:
    """Undo `pack_linears`: plain layers with the same weights, bit for bit."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PackedLinear | LinearPart):
                setattr(parent, name, _plain(child))


def _is_plain(child: object) -> TypeGuard[nn.Linear]:
    if type(child) is not nn.Linear or child.weight.dtype != torch.float32:
        return False
    return not (child._forward_hooks or child._forward_pre_hooks)


def _can_join(linears: Sequence[nn.Linear]) -> bool:
    return len({(linear.in_features, linear.bias is None) for linear in linears}) == 1


def _plain(packed: PackedLinear | LinearPart) -> nn.Linear:
    plain = nn.Linear(packed.in_features, packed.out_features, bias=packed.bias is not None, device="meta")
    plain.weight = nn.Parameter(packed.weight.clone(), requires_grad=False)
    if packed.bias is not None:
        plain.bias = nn.Parameter(packed.bias.detach().clone(), requires_grad=False)
    return plain
