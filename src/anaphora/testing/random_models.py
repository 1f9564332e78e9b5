"""Tiny models with random weights, and a byte-level tokenizer made in code: real architectures, no download.

random_model("llama")              2 layers, grouped-query heads, float32, the same weights for the same seed
random_model("mistral-window")     with a sliding window small enough to matter in a test
random_model("mamba")              one that can't be cached
"""

from collections.abc import Callable, Mapping
from itertools import product
from string import ascii_lowercase
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from anaphora.engine.models.describe import loaded_model
from anaphora.engine.models.digest import weights_of_state
from anaphora.engine.models.spec import LoadedModel

WINDOW = 8
"""Tokens of the sliding windows: shorter than any test's prompt."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""The last ids of the vocabulary, in this order."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)

_Sizes = Mapping[str, int]

_LLAMA_LIKE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.2,  # wide, so that next-token scores differ enough to compare
}


def random_model(
    family: str,
    *,
    seed: int = 0,
    vocab_size: int = 384,
    max_context: int = 512,
    dtype: torch.dtype = torch.float32,
) -> LoadedModel:
    """Return a tiny model of a family (see FAMILIES) with random weights, on the CPU.

    The same arguments give the same weights, tokenizer and digest in every process. The global random
    state is left as it was.

    Raises: ValueError for an unknown family or a vocabulary under 259.
    """
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}; there are {', '.join(FAMILIES)}")
    tokenizer = byte_tokenizer(vocab_size)
    tokenizer.model_max_length = max_context
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    config = FAMILIES[family]({"vocab_size": vocab_size, "max_context": max_context})
    config.bos_token_id = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    config.eos_token_id = config.pad_token_id = end
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        _randomise_constants(model)
    model.generation_config.eos_token_id = end
    weights = weights_of_state(model.state_dict())
    return loaded_model(
        model,
        tokenizer,
        name=f"random-{family}",
        weights=weights,
        dtype=dtype,
        device=torch.device("cpu"),
    )


def byte_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer: 256 bytes, a few two-letter merges, and SPECIAL_TOKENS at the end.

    Every text round-trips.

    Raises: ValueError for a vocabulary under 259, or over 1,137 (there are no more merges).
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("Ġ", letter) for letter in ascii_lowercase] + list(product("etaoinshrdlu", ascii_lowercase))
    pairs += [pair for pair in product(ascii_lowercase, ascii_lowercase) if pair not in set(pairs)]
    num_merges = vocab_size - _SMALLEST_VOCABULARY
    if not 0 <= num_merges <= len(pairs):
        largest = _SMALLEST_VOCABULARY + len(pairs)
        raise ValueError(f"vocab_size {vocab_size} is not within {_SMALLEST_VOCABULARY} .. {largest}")
    merges = pairs[:num_merges]
    tokens = [*alphabet, *(left + right for left, right in merges), *SPECIAL_TOKENS]
    backend = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _randomise_constants(model: Any) -> None:
    """Give norms and biases, which start at 0 or 1, values of their own, so that none can be left out."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and ("norm" in name or "ln" in name or name.endswith("bias")):
            with torch.no_grad():
                parameter.add_(torch.randn_like(parameter) * 0.1)


def _llama(sizes: _Sizes) -> Any:
    return transformers.LlamaConfig(**_LLAMA_LIKE, **_common(sizes))


def _llama_biased(sizes: _Sizes) -> Any:
    return transformers.LlamaConfig(**_LLAMA_LIKE, **_common(sizes), attention_bias=True, mlp_bias=True)


def _qwen2(sizes: _Sizes) -> Any:
    return transformers.Qwen2Config(**_LLAMA_LIKE, **_common(sizes))


def _qwen3(sizes: _Sizes) -> Any:
    return transformers.Qwen3Config(**_LLAMA_LIKE, **_common(sizes))


def _mistral(sizes: _Sizes) -> Any:
    return transformers.MistralConfig(**_LLAMA_LIKE, **_common(sizes), sliding_window=None)


def _mistral_window(sizes: _Sizes) -> Any:
    return transformers.MistralConfig(**_LLAMA_LIKE, **_common(sizes), sliding_window=WINDOW)


def _phi3(sizes: _Sizes) -> Any:
    fields = {name: value for name, value in _LLAMA_LIKE.items() if name != "head_dim"}
    return transformers.Phi3Config(**fields, **_common(sizes), pad_token_id=0, sliding_window=None)


def _gemma3(sizes: _Sizes) -> Any:
    fields = {**_LLAMA_LIKE, "num_hidden_layers": 3}
    return transformers.Gemma3TextConfig(
        **fields,
        **_common(sizes),
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=16,
    )


def _gpt2(sizes: _Sizes) -> Any:
    return transformers.GPT2Config(
        vocab_size=sizes["vocab_size"],
        n_positions=sizes["max_context"],
        n_embd=64,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        **_no_dropout("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    )


def _gpt_neox(sizes: _Sizes) -> Any:
    return transformers.GPTNeoXConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.2,
        **_common(sizes),
    )


def _opt(sizes: _Sizes) -> Any:
    return transformers.OPTConfig(
        hidden_size=64,
        ffn_dim=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        word_embed_proj_dim=64,
        init_std=0.2,
        **_no_dropout("dropout", "attention_dropout"),
        **_common(sizes),
    )


def _mamba(sizes: _Sizes) -> Any:
    return transformers.MambaConfig(vocab_size=sizes["vocab_size"], hidden_size=64, state_size=8, num_hidden_layers=2)


def _bloom(sizes: _Sizes) -> Any:
    return transformers.BloomConfig(
        vocab_size=sizes["vocab_size"], hidden_size=64, n_layer=2, n_head=4, initializer_range=0.2
    )


def _common(sizes: _Sizes) -> dict[str, Any]:
    return {"vocab_size": sizes["vocab_size"], "max_position_embeddings": sizes["max_context"]}


def _no_dropout(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, 0.0)


CACHEABLE_FAMILIES: dict[str, Callable[[_Sizes], Any]] = {
    "llama": _llama,
    "llama-biased": _llama_biased,
    "gpt2": _gpt2,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mistral": _mistral,
    "mistral-window": _mistral_window,
    "phi3": _phi3,
    "gemma3": _gemma3,
    "gpt-neox": _gpt_neox,
    "opt": _opt,
}

UNCACHEABLE_FAMILIES: dict[str, Callable[[_Sizes], Any]] = {"mamba": _mamba, "bloom": _bloom}

FAMILIES = {**CACHEABLE_FAMILIES, **UNCACHEABLE_FAMILIES}
