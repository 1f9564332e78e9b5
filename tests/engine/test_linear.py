"""Packed linear layers: the same numbers, bounded memory, weights still readable for models that use them directly."""

import copy
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from anaphora.engine.linear import ROW_COUNTS, PackedLinear, pack_linears, packed, packed_bytes, unpack_linears


@pytest.mark.parametrize(("out_features", "in_features", "bias"), [(5, 7, True), (64, 48, False), (384, 64, True)])
def test_packed_layer_multiplies_alike_at_every_number_of_rows(out_features: int, in_features: int, bias: bool) -> None:
    linear = nn.Linear(in_features, out_features, bias=bias)
    layer = packed(linear)
    assert layer.weight is linear.weight
    for num_rows in range(ROW_COUNTS[-1] + 3):
        inputs = torch.randn(1, num_rows, in_features)
        with torch.inference_mode():
            found = layer(inputs)
            assert found.shape == (1, num_rows, out_features)
            torch.testing.assert_close(found, linear(inputs), atol=1e-5, rtol=1e-5)


def _resident_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux")
def test_memory_does_not_grow_with_every_number_of_rows_met() -> None:
    shapes = [(576, 576), (192, 576), (1536, 576), (576, 1536)]
    layers = [packed(nn.Linear(in_features, out_features)) for out_features, in_features in shapes]
    with torch.inference_mode():
        for num_rows in ROW_COUNTS:
            for layer in layers:
                layer(torch.zeros(num_rows, layer.in_features))
        before = _resident_bytes()
        for num_rows in range(1, 300):
            for layer in layers:
                layer(torch.zeros(num_rows, layer.in_features))
    grown = _resident_bytes() - before
    assert grown < 64 * 2**20, f"{grown / 2**20:.0f} MiB kept; unpadded, it is about 0.6 MiB for each shape and number"


def test_only_plain_linear_layers_are_packed() -> None:
    class Special(nn.Linear):
        """A subclass may do something else with its weights."""

    model = nn.Sequential(nn.Linear(4, 4), Special(4, 4), nn.Sequential(nn.Linear(4, 4)), nn.Embedding(3, 4))
    assert pack_linears(model) == 2
    assert [type(layer) for layer in model] == [PackedLinear, Special, nn.Sequential, nn.Embedding]
    assert pack_linears(model) == 0


def test_layers_with_hooks_keep_them() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, args, out: out * 0)
    model[1].register_forward_pre_hook(lambda module, args: None)
    assert pack_linears(model) == 1
    assert torch.equal(model[0](torch.ones(1, 4)), torch.zeros(1, 4))


class Block(nn.Module):
    """Layers under the names that are joined."""

    def __init__(self, *, bias: bool, value_bias: bool | None = None) -> None:
        super().__init__()
        self.q_proj = nn.Linear(16, 24, bias=bias)
        self.k_proj = nn.Linear(16, 8, bias=bias)
        self.v_proj = nn.Linear(16, 8, bias=bias if value_bias is None else value_bias)

    def forward(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        return [self.q_proj(inputs), self.k_proj(inputs), self.v_proj(inputs)]


@pytest.mark.parametrize("bias", [True, False])
def test_joined_layers_multiply_alike_and_unpack(bias: bool) -> None:
    block = Block(bias=bias)
    plain = copy.deepcopy(block)
    assert packed_bytes(block) == 4 * 16 * 40
    assert pack_linears(block) == 3
    assert len({id(layer._product) for layer in block.children()}) == 1
    for num_rows in (1, 7, 1, 500):
        inputs = torch.randn(1, num_rows, 16)
        with torch.inference_mode():
            for ours, theirs in zip(block(inputs), plain(inputs), strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    unpack_linears(block)
    for ours, theirs in zip(block.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_joined_layers_answer_right_in_any_order_and_with_different_inputs() -> None:
    block = Block(bias=True)
    plain = copy.deepcopy(block)
    pack_linears(block)
    one, two = torch.randn(2, 3, 16)
    with torch.inference_mode():
        for name, inputs in [("q_proj", one), ("v_proj", two), ("k_proj", one), ("k_proj", one), ("q_proj", two)]:
            ours, theirs = getattr(block, name)(inputs), getattr(plain, name)(inputs)
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_nothing_is_kept_when_all_parts_are_given_out() -> None:
    block = Block(bias=False)
    pack_linears(block)
    inputs = torch.randn(1, 16)
    kept = weakref.ref(inputs)
    with torch.inference_mode():
        block(inputs)
    del inputs
    assert kept() is None


def test_layers_that_differ_in_bias_are_packed_one_by_one() -> None:
    block = Block(bias=True, value_bias=False)
    assert pack_linears(block) == 3
    assert len({id(layer._product) for layer in block.children()}) == 3
