"""The tiny random models that other tests lean on: real architectures, reproducible, different where they must be."""

import pytest
import torch

from anaphora.engine.models.digest import weights_of_state
from anaphora.testing.random_models import (
    CACHEABLE_FAMILIES,
    FAMILIES,
    UNCACHEABLE_FAMILIES,
    WINDOW,
    byte_tokenizer,
    random_model,
)


@pytest.mark.parametrize("family", FAMILIES)
def test_same_seed_gives_the_same_model_and_another_seed_another(family: str) -> None:
    first, again, other = (random_model(family, seed=seed).spec.digest for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("family", FAMILIES)
def test_model_computes_and_its_facts_are_those_of_its_layers(family: str) -> None:
    loaded = random_model(family, vocab_size=300, max_context=64)
    tokens = torch.tensor([loaded.tokenizer.encode("one two three four")])
    with torch.no_grad():
        scores = loaded.model(tokens).logits
    assert scores.shape == (1, tokens.shape[1], loaded.spec.vocab_size)
    assert loaded.spec.vocab_size == 300
    assert scores.std() > 0.1
    assert loaded.spec.end_token_ids == {299}


@pytest.mark.parametrize("family", CACHEABLE_FAMILIES)
def test_cacheable_families_say_so_and_give_the_shape_of_their_keys(family: str) -> None:
    loaded = random_model(family, max_context=64)
    tokens = torch.tensor([loaded.tokenizer.encode("abcdef")])
    with torch.no_grad():
        layers = loaded.model(tokens, use_cache=True).past_key_values.layers
    spec = loaded.spec
    assert spec.not_cacheable_because is None
    assert len(layers) == spec.num_layers
    assert layers[0].keys.shape[1::2] == (spec.num_kv_heads, spec.head_dim)
    assert spec.max_context == 64


@pytest.mark.parametrize("family", UNCACHEABLE_FAMILIES)
def test_uncacheable_families_say_why(family: str) -> None:
    reason = random_model(family).spec.not_cacheable_because
    assert reason is not None
    assert reason.endswith("it is served without reuse")


def test_sliding_window_changes_scores_only_beyond_the_window() -> None:
    # The windowed model has the plain one's weights: the seed is the same.
    plain, windowed = random_model("mistral"), random_model("mistral-window")
    assert weights_of_state(plain.model.state_dict()) == weights_of_state(windowed.model.state_dict())
    tokens = torch.arange(2 * WINDOW)[None]
    with torch.no_grad():
        difference = (plain.model(tokens).logits - windowed.model(tokens).logits).abs().amax(dim=-1)[0]
    assert difference[:WINDOW].max() < 1e-4
    assert difference[WINDOW:].min() > 1e-2


def test_global_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    random_model("llama")
    assert torch.equal(torch.rand(3), expected)


def test_unknown_family_and_impossible_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match="no family 'lama'"):
        random_model("lama")
    with pytest.raises(ValueError, match="258"):
        byte_tokenizer(258)
    with pytest.raises(ValueError, match="100000"):
        byte_tokenizer(100_000)


@pytest.mark.parametrize("vocab_size", [259, 384, 961])
def test_byte_tokenizer_fills_its_vocabulary_and_round_trips(vocab_size: int) -> None:
    tokenizer = byte_tokenizer(vocab_size)
    text = "the\tquick  bröwn 🦊<|im_end|>\n 漢字 0123"
    assert len(tokenizer) == vocab_size
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text
