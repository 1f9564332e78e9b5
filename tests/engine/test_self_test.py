"""The self-test at load: a model whose cached pieces would lie is served without reuse, and right.

Method: real families made to lie: in their windows, in their keys, in what they hand to attention.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from engine_world import Cold, check_is_idle, random_tokens, small_engine

from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.request import Sampling
from anaphora.testing.random_models import random_model

FIXED = Sampling(temperature=0.0, max_tokens=6, ignore_end=True)


def layers(loaded: LoadedModel) -> Any:
    return loaded.model.model.layers


def keys_that_know_the_length(loaded: LoadedModel) -> None:
    """Keys scaled by how many tokens came at once: right in a full pass, another thing in pieces."""
    layers(loaded)[0].self_attn.k_proj.register_forward_hook(lambda module, args, out: out * (1 + 0.01 * out.shape[1]))


def state_besides_keys(loaded: LoadedModel) -> None:
    """Each token gets a part of the hidden state of the token in front of it."""

    def shift(module: Any, args: Any, out: Any) -> Any:
        hidden = out[0] if isinstance(out, tuple) else out
        shifted = hidden + torch.nn.functional.pad(hidden, (0, 0, 1, 0))[:, :-1]
        return (shifted, *out[1:]) if isinstance(out, tuple) else shifted

    layers(loaded)[0].register_forward_hook(shift)


def reads_pieces(loaded: LoadedModel) -> bool:
    return str(loaded.model.config._attn_implementation).startswith("anaphora")


def not_numbers_from(loaded: LoadedModel, module: Any) -> None:
    module.register_forward_hook(lambda _, args, out: out * torch.nan if reads_pieces(loaded) else out)


def scores_that_are_not_numbers_in_pieces(loaded: LoadedModel) -> None:
    not_numbers_from(loaded, loaded.model.model.norm)


def keys_that_are_not_numbers_in_pieces(loaded: LoadedModel) -> None:
    not_numbers_from(loaded, layers(loaded)[1].self_attn.k_proj)


def pass_that_fails_on_pieces(loaded: LoadedModel) -> None:
    def refuse(module: Any, args: Any) -> None:
        if reads_pieces(loaded):
            raise ValueError("not with this attention")

    layers(loaded)[0].register_forward_pre_hook(refuse)


def check_is_refused(loaded: LoadedModel, cold: Cold, reason: str) -> None:
    rng = np.random.default_rng(0)
    with small_engine(loaded) as engine:
        assert engine.spec.not_cacheable_because is not None
        assert reason in engine.spec.not_cacheable_because
        assert engine.spec.not_cacheable_because.endswith("served without reuse")
        assert "Reuse: none" in engine.start_up_lines[1]
        for _ in range(2):
            prompt = random_tokens(rng, 60)
            found = engine.generate(prompt.tolist(), FIXED)
            assert found.receipt.num_reused_tokens == 0
            assert found.receipt.stop_reason == "not_cacheable"
            assert len(found.completions[0].token_ids) == 6
        check_is_idle(engine)


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (keys_that_know_the_length, "differ from a full pass"),
        (state_besides_keys, "differ from a full pass"),
        (scores_that_are_not_numbers_in_pieces, "differ from a full pass by inf"),
        (keys_that_are_not_numbers_in_pieces, "not numbers"),
        (pass_that_fails_on_pieces, "fails on cached pieces"),
    ],
)
def test_model_that_lies_in_pieces_is_served_without_reuse(lie: Callable[[LoadedModel], None], reason: str) -> None:
    loaded, judge = random_model("llama"), random_model("llama")
    lie(loaded)
    check_is_refused(loaded, Cold(judge), reason)


class OtherWindow:
    """A layer's settings, but for the window."""

    def __init__(self, config: Any, window: int | None) -> None:
        self._config = config
        self.sliding_window = window

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


@pytest.mark.parametrize(
    ("configured", "told"), [(8, None), (8, 4), (8, 7), (8, 9), (2048, None), (2048, 4096), (None, 2048), (2048, 8)]
)
def test_layer_with_another_window_than_configured_is_refused(configured: int | None, told: int | None) -> None:
    """Also where the window is longer than the test's prompt, so that no score can show it."""
    loaded = random_model("mistral-window")
    loaded.model.config.sliding_window = configured
    layers(loaded)[1].self_attn.config = OtherWindow(loaded.model.config, told)
    with small_engine(loaded) as engine:
        assert engine.spec.not_cacheable_because is not None


@pytest.mark.parametrize("window", [None, 1, 8, 47, 48, 49, 2048])
def test_layers_with_the_configured_window_are_cached(window: int | None) -> None:
    loaded = random_model("mistral-window")
    loaded.model.config.sliding_window = window
    with small_engine(loaded) as engine:
        assert engine.spec.not_cacheable_because is None


def test_scores_that_are_minus_infinity_on_purpose_hide_no_difference() -> None:
    """Some models do that to ids without a token."""

    def shut_out(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out.index_fill(-1, torch.tensor([380, 381]), -torch.inf)

    honest, lying = random_model("llama"), random_model("llama")
    keys_that_know_the_length(lying)
    for loaded in (honest, lying):
        loaded.model.lm_head.register_forward_hook(shut_out)
    with small_engine(lying) as engine:
        assert engine.spec.not_cacheable_because is not None
    with small_engine(random_model("llama")) as engine:
        assert engine.spec.not_cacheable_because is None


def test_refused_model_keeps_its_own_attention_and_answers_like_a_cold_one() -> None:
    loaded, cold = random_model("llama"), Cold(random_model("llama"))
    pass_that_fails_on_pieces(loaded)
    prompt = random_tokens(np.random.default_rng(1), 60)
    with small_engine(loaded) as engine:
        cold.check(prompt, engine.generate(prompt.tolist(), FIXED), max_tokens=6)
        cold.check(prompt, engine.generate(prompt.tolist(), FIXED), max_tokens=6)
