"""Weights rounded at load: near the checkpoint's, the same however the model is run, and another model to the cache."""

from pathlib import Path

import numpy as np
import pytest
import torch
from engine_world import Cold, random_tokens, small_engine
from torch import nn

from anaphora.bench.quality import ROUNDINGS, measure_quality
from anaphora.engine.engine import Engine
from anaphora.engine.models.loading import load_model
from anaphora.engine.models.rounding import Rounding, round_weights
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.native.library import Kernels
from anaphora.engine.request import Sampling
from anaphora.engine.settings import EngineSettings
from anaphora.engine.weight_formats import WeightFormat, pack_exactly
from anaphora.testing.random_models import random_model

LARGEST_ERROR = {"bfloat16": 2**-8, "int8": 1 / 127, "int4": 1 / 15}
"""Of a value, as a part of the largest magnitude in its row."""

LOSSY: tuple[Rounding, ...] = ("bfloat16", "int8", "int4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    saved = random_model("llama")
    found = tmp_path_factory.mktemp("models") / "tiny"
    saved.model.save_pretrained(found)
    saved.tokenizer.save_pretrained(found)
    return found


def load(folder: Path, rounding: Rounding) -> LoadedModel:
    return load_model(
        str(folder), cache_dir=folder.parent, device=torch.device("cpu"), progress=False, rounding=rounding
    )


def linears(model: nn.Module) -> list[torch.Tensor]:
    return [module.weight for module in model.modules() if isinstance(module, nn.Linear)]


@pytest.mark.parametrize("rounding", LOSSY)
def test_every_linear_layer_is_rounded_a_little_and_its_format_is_found_again(folder: Path, rounding: Rounding) -> None:
    before, after = linears(load(folder, "checkpoint").model), linears(load(folder, rounding).model)
    for old, new in zip(before, after, strict=True):
        assert not torch.equal(old, new)
        assert float((old - new).abs().max()) <= LARGEST_ERROR[rounding] * float(old.abs().max())
        assert pack_exactly(new).format is WeightFormat[rounding.upper()]


def test_rounding_twice_is_rounding_once(folder: Path) -> None:
    for rounding in LOSSY:
        loaded = load(folder, rounding)
        before = [weight.clone() for weight in linears(loaded.model)]
        round_weights(loaded.model, rounding)
        for old, new in zip(before, linears(loaded.model), strict=True):
            torch.testing.assert_close(old, new, atol=1e-6, rtol=1e-4)


def test_each_rounding_is_another_model_to_the_cache_and_the_same_one_every_time(folder: Path) -> None:
    digests = [load(folder, rounding).spec.digest for rounding in ROUNDINGS]
    assert len(set(digests)) == len(ROUNDINGS)
    assert digests == [load(folder, rounding).spec.digest for rounding in ROUNDINGS]


def test_rows_that_are_no_multiple_of_a_group_are_left_as_they_are() -> None:
    layer = nn.Linear(33, 4)
    before = layer.weight.clone()
    assert round_weights(nn.Sequential(layer), "int8") == 0
    assert torch.equal(layer.weight, before)
    assert round_weights(nn.Sequential(layer), "bfloat16") == 1


@pytest.mark.parametrize("rounding", LOSSY)
def test_engine_over_rounded_weights_answers_like_a_cold_model_over_the_same(folder: Path, rounding: Rounding) -> None:
    cold, rng = Cold(load(folder, rounding)), np.random.default_rng(2)
    with small_engine(load(folder, rounding)) as engine:
        prompt = random_tokens(rng, 50)
        for _ in range(2):
            answer = engine.generate(prompt, Sampling(temperature=0.0, max_tokens=6, ignore_end=True))
            cold.check(prompt, answer, max_tokens=6)


def test_setting_reaches_the_model(folder: Path) -> None:
    settings = EngineSettings(weights="int8", kv_pool_bytes=2**20, num_threads=1)
    with Engine.load(str(folder), settings, cache_dir=folder.parent, progress=False) as engine:
        assert engine.spec.digest == load(folder, "int8").spec.digest


def test_quality_is_that_of_the_plain_model_however_weights_are_kept(folder: Path, kernels: Kernels) -> None:
    found = list(measure_quality(str(folder), kernels, cache_dir=folder.parent, num_tokens=64))
    assert [one.rounding for one in found] == list(ROUNDINGS)
    for one in found:
        assert one.native_perplexity == pytest.approx(one.plain_perplexity, rel=1e-4)
        assert one.native_agrees >= 0.98
    assert found[0].checkpoint_agrees == 1.0
    assert "int4" in found[3].formats
