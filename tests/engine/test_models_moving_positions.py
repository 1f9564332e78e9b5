"""Rotary scalings that depend on the sequence's length are cached only where they can't move.

Method: Transformers' own configurations; the engine on a tiny model with LongRoPE on both sides of the border.
"""

import dataclasses

import pytest
import torch
import transformers

from anaphora.engine.engine import Engine
from anaphora.engine.models.moving_positions import longest_fixed_context, why_positions_move
from anaphora.engine.settings import EngineSettings
from anaphora.testing.random_models import random_model

ORIGINAL = 64
POOL_BYTES = 8 << 20


def config(rope: dict[str, object] | None) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(max_position_embeddings=256, rope_parameters=rope)


@pytest.mark.parametrize("rope", [None, {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}])
def test_positions_that_stay_put_have_no_limit(rope: dict[str, object] | None) -> None:
    assert longest_fixed_context(config(rope)) is None
    assert why_positions_move(config(rope), max_context=256) is None


def test_dynamic_scaling_is_fixed_up_to_the_configured_context() -> None:
    dynamic = config({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    assert longest_fixed_context(dynamic) == 256
    assert why_positions_move(dynamic, max_context=256) is None
    assert "max_context to 256" in str(why_positions_move(dynamic, max_context=257))


def longrope_model() -> object:
    loaded = random_model("llama", max_context=256)
    base = loaded.model.config
    width = base.head_dim // 2
    base.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * width,
        "long_factor": [4.0] * width,
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    }
    torch.manual_seed(0)
    return dataclasses.replace(loaded, model=transformers.LlamaForCausalLM(base).eval().requires_grad_(False))


@pytest.mark.parametrize(("max_context", "is_cached"), [(ORIGINAL, True), (ORIGINAL + 1, False)])
def test_the_engine_caches_longrope_only_below_its_border(max_context: int, is_cached: bool) -> None:
    settings = EngineSettings(max_context=max_context, kv_pool_bytes=POOL_BYTES)
    with Engine(longrope_model(), settings) as engine:
        prompt = list(range(10, 50))
        engine.generate(prompt, temperature=0.0, max_tokens=2)
        receipt = engine.generate(prompt, temperature=0.0, max_tokens=2).receipt
    assert (receipt.num_reused_tokens == 39) == is_cached
    assert (engine.spec.not_cacheable_because is None) == is_cached
