"""Read a loaded model's facts off its settings, its tokenizer and its layers."""

from typing import Any

import torch

from anaphora.engine.models.cacheable import why_not_cacheable
from anaphora.engine.models.digest import model_digest
from anaphora.engine.models.spec import LoadedModel, ModelSpec

UNBOUNDED_CONTEXT = 1 << 20
"""Tokens of context of a model whose settings name no limit (recurrent ones): large, but finite."""

_CHAT_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>")
"""Tokens that end an assistant's turn in common chat templates; they count if the template names them."""


def loaded_model(
    model: Any, tokenizer: Any, *, name: str, weights: str, dtype: torch.dtype, device: torch.device
) -> LoadedModel:
    """Put a model into its final state (eval, no gradients) and join it with its facts.

    `weights` is the hash of the weights' content.
    """
    model.eval()
    model.requires_grad_(False)
    digest = model_digest(weights=weights, dtype=dtype, model=model, tokenizer=tokenizer)
    text = model.config.get_text_config(decoder=True)
    num_heads = _first(text, "num_attention_heads", "n_head", "num_heads", default=1)
    num_kv_heads = _num_kv_heads(text, num_heads)
    hidden_size = _first(text, "hidden_size", "n_embd", "d_model", default=num_heads)
    spec = ModelSpec(
        name=name,
        architecture=type(model).__name__,
        num_layers=_first(text, "num_hidden_layers", "n_layer", "num_layers", default=1),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_first(text, "head_dim", default=max(1, hidden_size // num_heads)),
        vocab_size=_vocab_size(model, text),
        max_context=_max_context(text, tokenizer),
        end_token_ids=_end_token_ids(model, tokenizer),
        digest=digest,
        not_cacheable_because=why_not_cacheable(type(model), model.config),
    )
    return LoadedModel(model=model, tokenizer=tokenizer, spec=spec, dtype=dtype, device=device)


def _first(config: Any, *names: str, default: int) -> int:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return default


def _num_kv_heads(text: Any, num_heads: int) -> int:
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    value = getattr(text, "num_key_value_heads", None)
    if isinstance(value, list | tuple):
        return int(max(value))
    return _first(text, "num_key_value_heads", "num_kv_heads", default=num_heads)


def _vocab_size(model: Any, text: Any) -> int:
    head = model.get_output_embeddings()
    if head is not None and getattr(head, "weight", None) is not None:
        return int(head.weight.shape[0])
    return _first(text, "vocab_size", default=1)


def _max_context(text: Any, tokenizer: Any) -> int:
    limit = _first(text, "max_position_embeddings", "n_positions", "seq_length", "max_seq_len", default=0)
    return limit or min(int(tokenizer.model_max_length), UNBOUNDED_CONTEXT)


def _end_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Join the end tokens that the settings, the tokenizer and the chat template name."""
    found: set[int] = set()
    for holder in (getattr(model, "generation_config", None), model.config, tokenizer):
        value = getattr(holder, "eos_token_id", None)
        found.update(value if isinstance(value, list | tuple) else [] if value is None else [value])
    template = tokenizer.chat_template
    for token in _CHAT_ENDS:
        if isinstance(template, str) and token in template:
            token_id = tokenizer.convert_tokens_to_ids(token)
            if token_id is not None and token_id != tokenizer.unk_token_id:
                found.add(token_id)
    return frozenset(int(token_id) for token_id in found if token_id >= 0)
