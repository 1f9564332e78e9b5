"""The hardware floor of a forward pass: no code can read the bytes or do the sums faster than this machine.

floor = max(bytes read / bandwidth, sums / peak of a large matrix product), both measured in the same run.
"""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from anaphora.bench.lines import Line
from anaphora.bench.timing import best_seconds
from anaphora.engine.models.spec import ModelSpec
from anaphora.engine.weight_formats import pack_exactly

_READ_FLOATS = 2**27  # 512 MiB: far more than any cache
_MATRIX = 2048  # large enough to reach the peak


@dataclass(frozen=True, slots=True)
class Hardware:
    bytes_per_s: float
    flops_per_s: float


def measure_hardware(*, num_rounds: int = 5) -> Hardware:
    """Measure reading bandwidth and float32 matrix products, with torch's threads. Takes seconds and 512 MiB."""
    with torch.inference_mode():
        data = torch.ones(_READ_FLOATS)
        read_s = best_seconds(data.sum, num_rounds=num_rounds)
        left, right = torch.rand(_MATRIX, _MATRIX), torch.rand(_MATRIX, _MATRIX)
        multiply_s = best_seconds(lambda: torch.mm(left, right), num_rounds=num_rounds)
    return Hardware(data.nbytes / read_s, 2 * _MATRIX**3 / multiply_s)


@dataclass(frozen=True, slots=True)
class Work:
    """What one forward pass over `num_new` tokens behind `num_cached` must at least do."""

    num_bytes: int
    num_flops: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's linear layers: their elements, and their bytes in the smallest format that holds them exactly."""

    num_in_layers: int
    num_in_output: int
    num_bytes: int


def weights_of(model: PreTrainedModel) -> Weights:
    """Count the weights of an untouched model."""
    output = model.get_output_embeddings()
    layers = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not output]
    num_bytes = sum(pack_exactly(layer.weight.detach()).size_bytes for layer in (*layers, output))
    return Weights(sum(layer.weight.numel() for layer in layers), output.weight.numel(), num_bytes)


def work_of(spec: ModelSpec, weights: Weights, *, num_cached: int, num_new: int) -> Work:
    """Count weights, keys and values (each read once) and sums in float32; scores of one token only."""
    num_tokens = num_cached + num_new
    kv_bytes = num_tokens * spec.kv_bytes_per_token(torch.float32)
    linear_flops = 2 * (weights.num_in_layers * num_new + weights.num_in_output)
    attention_flops = 4 * spec.num_layers * spec.num_heads * spec.head_dim * num_new * num_tokens
    return Work(weights.num_bytes + kv_bytes, linear_flops + attention_flops)


def floor_line(name: str, took_s: float, work: Work, hardware: Hardware) -> Line:
    """Say how far above the floor a measured time lies."""
    floor_s = max(work.num_bytes / hardware.bytes_per_s, work.num_flops / hardware.flops_per_s)
    return Line(
        f"{name}: hit / hardware floor",
        took_s / floor_s,
        "x",
        parts={
            "hit_ms": 1e3 * took_s,
            "floor_ms": 1e3 * floor_s,
            "read_gb_per_s": hardware.bytes_per_s / 1e9,
            "gflop_per_s": hardware.flops_per_s / 1e9,
        },
    )
