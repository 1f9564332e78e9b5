"""The runner over native kernels: whom it takes, that both its ways agree, and what an engine says of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_world import Cold, Direct, Slots, check_is_idle, first_of, random_tokens, small_engine

from anaphora.engine.decoder_weights import why_not_native
from anaphora.engine.models.fetch import default_cache_dir
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.native import build as build_module
from anaphora.engine.native.library import NotBuilt, load_kernels
from anaphora.engine.native_runner import NativeRunner
from anaphora.engine.request import Sampling
from anaphora.errors import SettingsError
from anaphora.testing.random_models import random_model

NATIVE = ["llama", "llama-biased", "mistral", "qwen2", "qwen3"]
needs_kernels = pytest.mark.skipif(
    isinstance(load_kernels(default_cache_dir()), NotBuilt), reason="native kernels can't be built on this machine"
)


@needs_kernels
@pytest.mark.parametrize("family", NATIVE)
@pytest.mark.parametrize("max_few_rows", [0, 64, 10_000])
def test_every_split_between_few_and_many_rows_scores_like_a_cold_model(family: str, max_few_rows: int) -> None:
    rng = np.random.default_rng(3)
    direct, cold = Direct(family), Cold(random_model(family))
    assert isinstance(direct.runner, NativeRunner)
    direct.runner.max_few_rows = max_few_rows
    slots = Slots(2048, rng, max_length=40)
    shared, private = random_tokens(rng, 150), [random_tokens(rng, n) for n in (1, 2, 3, 4, 65)]
    shared_at = slots.take(len(shared))
    cold.check_scores(direct.prefill(shared, shared_at, chunk=67), cold.logits(shared))
    prompts = [np.concatenate([shared[: 150 - 7 * i], tail]) for i, tail in enumerate(private)]
    places = [(*first_of(shared_at, 150 - 7 * i), *slots.take(len(tail))) for i, tail in enumerate(private)]
    parts = [(p, 150 - 7 * i, len(p), at) for i, (p, at) in enumerate(zip(prompts, places, strict=True))]
    for found, prompt, (_, start, _, _) in zip(direct.step(parts), prompts, parts, strict=True):
        cold.check_scores(found, cold.logits(prompt)[start:])


@needs_kernels
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_number_of_threads_changes_no_score(num_threads: int) -> None:
    rng = np.random.default_rng(5)
    before = torch.get_num_threads()
    direct, cold = Direct("qwen3"), Cold(random_model("qwen3"))
    tokens = random_tokens(rng, 400)
    try:
        torch.set_num_threads(num_threads)
        found = direct.prefill(tokens, Slots(1024, rng, max_length=300).take(400), chunk=50)
    finally:
        torch.set_num_threads(before)
    cold.check_scores(found, cold.logits(tokens))


@pytest.mark.parametrize("family", ["gpt2", "gpt-neox", "opt", "phi3", "gemma3", "mistral-window"])
def test_other_families_are_left_to_torch(family: str) -> None:
    assert why_not_native(random_model(family)) is not None


def hook_a_layer(loaded: LoadedModel) -> None:
    loaded.model.model.layers[1].mlp.register_forward_hook(lambda module, args, out: out)


def replace_a_layer(loaded: LoadedModel) -> None:
    class Adapted(torch.nn.Linear):
        pass

    attention = loaded.model.model.layers[0].self_attn
    attention.q_proj = Adapted(attention.q_proj.in_features, attention.q_proj.out_features, bias=False)


def widen_an_epsilon(loaded: LoadedModel) -> None:
    loaded.model.model.layers[1].input_layernorm.variance_epsilon = 1e-2


def change_the_activation(loaded: LoadedModel) -> None:
    loaded.model.config.hidden_act = "gelu"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (hook_a_layer, "hooks"),
        (replace_a_layer, "not plain"),
        (widen_an_epsilon, "epsilon"),
        (change_the_activation, "gelu"),
    ],
)
def test_model_that_was_changed_is_left_to_torch(change: Callable[[LoadedModel], None], reason: str) -> None:
    loaded = random_model("llama")
    assert why_not_native(loaded) is None
    change(loaded)
    assert reason in str(why_not_native(loaded))


@needs_kernels
def test_layer_that_computes_something_else_fails_the_self_test_and_is_left_to_torch() -> None:
    """A forward of one's own is seen by no rule, but by the numbers."""
    loaded, twin = random_model("llama"), random_model("llama")
    for model in (loaded.model, twin.model):
        feed = model.model.layers[1].mlp
        feed.forward = lambda hidden, feed=feed, usual=feed.forward: usual(hidden) * 1.5
    cold = Cold(twin)
    with small_engine(loaded) as engine:
        assert "Kernels: torch" in engine.start_up_lines[-1]
        assert "differ from a full pass" in engine.start_up_lines[-1]
        prompt = random_tokens(np.random.default_rng(1), 30)
        for _ in range(2):
            cold.check(prompt, engine.generate(prompt, SHORT), max_tokens=5)
        check_is_idle(engine)


SHORT = Sampling(temperature=0.0, max_tokens=5, ignore_end=True)


@needs_kernels
def test_weights_are_joined_in_place_and_not_kept_twice() -> None:
    loaded = random_model("llama")
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    direct = Direct(loaded)
    attention = loaded.model.model.layers[0].self_attn
    joined = direct.runner._weights.layers[0].qkv  # type: ignore[union-attr]
    assert attention.k_proj.weight.untyped_storage().data_ptr() == joined.untyped_storage().data_ptr()
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_engine_says_what_computes() -> None:
    with small_engine("llama", kernels="torch") as engine:
        assert engine.start_up_lines[-1].startswith("Kernels: torch.")
        assert "setting `kernels`" in engine.start_up_lines[-1]
    with small_engine("gpt2") as engine:
        assert "GPT2LMHeadModel is none of the families" in engine.start_up_lines[-1]


def test_without_a_compiler_auto_falls_back_and_native_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module.shutil, "which", lambda name: None)
    cold, prompt = Cold(random_model("llama")), random_tokens(np.random.default_rng(2), 20)
    with small_engine("llama") as engine:
        assert "no GNU C++ compiler" in engine.start_up_lines[-1]
        cold.check(prompt, engine.generate(prompt, SHORT), max_tokens=5)
    with pytest.raises(SettingsError, match=r"kernels = 'native' can't be had: there is no GNU C\+\+ compiler"):
        small_engine("llama", kernels="native")


@needs_kernels
def test_native_runner_refuses_keys_that_are_not_numbers() -> None:
    loaded: Any = random_model("llama")
    direct = Direct(loaded)
    with torch.no_grad():
        loaded.model.model.layers[1].self_attn.k_proj.weight[0, 0] = torch.nan
    for max_few_rows in (0, 64):
        direct.runner.max_few_rows = max_few_rows  # type: ignore[union-attr]
        with pytest.raises(Exception, match="not numbers"):
            direct.prefill(
                random_tokens(np.random.default_rng(0), 9),
                Slots(64, np.random.default_rng(0), max_length=64).take(9),
                chunk=9,
            )
