"""Weights in smaller formats: found where they are exact, refused where one value is off, read back by the kernels."""

import numpy as np
import pytest
import torch
from engine_world import Cold, random_tokens, small_engine
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from anaphora.engine.native.library import Kernels
from anaphora.engine.native.panels import in_panels
from anaphora.engine.request import Sampling
from anaphora.engine.weight_formats import PackedMatrix, WeightFormat, pack_exactly, unpack
from anaphora.testing.random_models import random_model


def q4_1(num_rows: int, depth: int, seed: int) -> torch.Tensor:
    """Weights as GGUF's Q4_1 gives them back: scale and least are float16, both ends of the range occur."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, 16, (num_rows, depth // 32, 32), generator=generator).float()
    groups[..., 5], groups[..., 17] = 0, 15
    scale, least = (torch.randn((num_rows, depth // 32, 1), generator=generator).half().float() for _ in range(2))
    return (groups * scale.abs() + least).view(num_rows, depth)


def q8_0(num_rows: int, depth: int, seed: int) -> torch.Tensor:
    """Weights as GGUF's Q8_0 gives them back: the largest of a group is 127 steps."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(-127, 128, (num_rows, depth // 32, 32), generator=generator).float()
    groups[..., 3] = 127
    return (groups * torch.rand((num_rows, depth // 32, 1), generator=generator).half().float()).view(num_rows, depth)


def bfloat16(num_rows: int, depth: int, seed: int) -> torch.Tensor:
    return torch.randn((num_rows, depth), generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def float32(num_rows: int, depth: int, seed: int) -> torch.Tensor:
    return torch.randn((num_rows, depth), generator=torch.Generator().manual_seed(seed))


MAKERS = {
    WeightFormat.INT4: q4_1,
    WeightFormat.INT8: q8_0,
    WeightFormat.BFLOAT16: bfloat16,
    WeightFormat.FLOAT32: float32,
}


@pytest.mark.parametrize("kind", MAKERS)
@given(num_rows=st.integers(1, 21), num_groups=st.integers(1, 5), seed=st.integers(0, 999))
def test_format_of_a_checkpoint_is_found_again_and_gives_the_same_values(
    kind: WeightFormat, num_rows: int, num_groups: int, seed: int
) -> None:
    weight = MAKERS[kind](num_rows, 32 * num_groups, seed)
    packed = pack_exactly(weight)
    assert packed.format is kind
    assert torch.equal(unpack(packed), weight)


@pytest.mark.parametrize("kind", [WeightFormat.INT4, WeightFormat.INT8, WeightFormat.BFLOAT16])
@pytest.mark.parametrize("place", [(0, 0), (19, 95), (7, 40)])
def test_one_value_that_does_not_fit_refuses_the_format(kind: WeightFormat, place: tuple[int, int]) -> None:
    weight = MAKERS[kind](20, 96, 1)
    weight[place] += 3e-5
    packed = pack_exactly(weight)
    assert packed.format is WeightFormat.FLOAT32
    assert packed.data is weight
    assert torch.equal(unpack(packed), weight)


def test_widths_without_whole_groups_and_what_is_not_a_number_are_left_as_they_are() -> None:
    assert pack_exactly(torch.zeros(3, 33)).format is WeightFormat.BFLOAT16
    weight = q4_1(4, 64, 0)
    weight[1, 1] = torch.inf
    packed = pack_exactly(weight)
    assert packed.format in (WeightFormat.FLOAT32, WeightFormat.BFLOAT16)
    assert torch.equal(unpack(packed), weight)


def test_groups_of_one_value_and_of_zeros_are_exact() -> None:
    weight = torch.cat([torch.zeros(2, 32), torch.full((2, 32), 0.3333)])
    packed = pack_exactly(weight)
    assert packed.format is WeightFormat.INT4
    assert torch.equal(unpack(packed), weight)


@pytest.mark.parametrize("kind", MAKERS)
@given(
    shape=st.tuples(st.integers(1, 30), st.integers(1, 10), st.integers(1, 70)),
    has_bias=st.booleans(),
    seed=st.integers(0, 999),
)
def test_native_product_equals_torch_in_every_format(
    kernels: Kernels, kind: WeightFormat, shape: tuple[int, int, int], has_bias: bool, seed: int
) -> None:
    num_rows, num_groups, num_outputs = shape
    weight = MAKERS[kind](num_outputs, 32 * num_groups, seed)
    packed = pack_exactly(weight)
    assert packed.format is kind
    inputs = float32(num_rows, 32 * num_groups, seed + 1)
    bias = float32(1, num_outputs, seed + 2)[0] if has_bias else None
    expected = functional.linear(inputs, weight, bias)
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(
        kernels.linear(inputs, in_panels(packed), bias) / scale, expected / scale, atol=1e-5, rtol=1e-5
    )


@given(num_rows=st.integers(1, 30), depth=st.integers(1, 600), num_outputs=st.integers(1, 40), seed=st.integers(0, 99))
def test_native_product_takes_any_width(
    kernels: Kernels, num_rows: int, depth: int, num_outputs: int, seed: int
) -> None:
    weight, inputs = float32(num_outputs, depth, seed), float32(num_rows, depth, seed + 1)
    for own in (weight, weight.bfloat16().float()):
        found = kernels.linear(inputs, in_panels(pack_exactly(own)), None)
        torch.testing.assert_close(found, functional.linear(inputs, own), atol=1e-4, rtol=1e-4)


def test_engine_over_a_rounded_checkpoint_keeps_it_small_and_answers_like_a_cold_model(kernels: Kernels) -> None:
    loaded, twin = random_model("llama"), random_model("llama")
    with torch.no_grad():
        for model in (loaded.model, twin.model):
            for index, parameter in enumerate(p for p in model.parameters() if p.dim() == 2):
                maker = (q4_1, q8_0, bfloat16)[index % 3]
                parameter.copy_(maker(*parameter.shape, seed=index) * 0.125)
    cold, rng = Cold(twin), np.random.default_rng(4)
    with small_engine(loaded) as engine:
        assert "int4" in engine.start_up_lines[-1]
        assert "Kernels: native" in engine.start_up_lines[-1]
        prompt = random_tokens(rng, 40)
        for _ in range(2):
            answer = engine.generate(prompt, Sampling(temperature=0.0, max_tokens=8, ignore_end=True))
            cold.check(prompt, answer, max_tokens=8)


def test_size_counts_values_and_scales() -> None:
    packed = pack_exactly(q4_1(8, 64, 0))
    assert isinstance(packed, PackedMatrix)
    assert packed.size_bytes == 8 * 32 + 8 * 2 * 2 * 4
