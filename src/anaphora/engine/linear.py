"""Linear layers, replaceable: one variant per kind of machine, the same weight values in all of them.

On x86 CPUs in float32, `torch.nn.functional.linear` is 2-4 x above the memory floor at 1 to 64 rows, the sizes of a
decode step and of a cache hit. oneDNN with weights packed once is up to 3 x faster there and not slower at the sizes
of a cold prefill (`anaphora bench linear`).
"""

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """y = x W^T + b through oneDNN, with W kept in oneDNN's own blocked layout. float32, CPU."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:  # [..., in_features] -> [..., out_features]
        result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")
        return result

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, packed"


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Say whether `pack_linears` has a faster variant for this dtype and device."""
    return device.type == "cpu" and dtype == torch.float32 and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def pack_linears(model: nn.Module) -> int:
    """Replace every plain `nn.Linear` by a `PackedLinear`; answer how many. Subclasses of Linear are left alone.

    Weights that nothing else holds (all but tied embeddings) are freed, so memory grows by the tied ones alone.
    """
    num_packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.float32:
                setattr(parent, name, PackedLinear(child))
                num_packed += 1
    return num_packed
