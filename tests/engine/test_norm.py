"""Norms are replaced only where the numbers prove them alike."""

import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from anaphora.engine.norm import FusedNorm, fuse_norms


class ShiftedRMSNorm(LlamaRMSNorm):
    """Scales by 1 + weight under the usual attribute names."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states) / self.weight * (1 + self.weight)


def weighted(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2.0, len(norm.weight)))
    return norm


def test_llama_norm_is_replaced_and_answers_alike() -> None:
    model = nn.Sequential(weighted(LlamaRMSNorm(24, eps=1e-5)))
    inputs = torch.randn(2, 5, 24) * 30
    expected = model(inputs)
    assert fuse_norms(model) == 1
    assert isinstance(model[0], FusedNorm)
    torch.testing.assert_close(model(inputs), expected, atol=1e-6, rtol=1e-5)


def test_norms_that_scale_otherwise_are_left_alone() -> None:
    model = nn.Sequential(weighted(ShiftedRMSNorm(24)), weighted(Gemma3RMSNorm(24)), nn.LayerNorm(24))
    kinds = [type(layer) for layer in model]
    assert fuse_norms(model) == 0
    assert [type(layer) for layer in model] == kinds


def test_norms_with_hooks_are_left_alone() -> None:
    model = nn.Sequential(weighted(LlamaRMSNorm(24)))
    model[0].register_forward_hook(lambda module, args, out: out * 0)
    assert fuse_norms(model) == 0
