"""Which models can't have their keys and values cached exactly, and why.

Only sure cases are listed: what a model's class or settings say in so many words. The engine tests every
model with numbers at load as well. Sliding windows, capped logits and attention sinks are served exactly and
so are not listed.
"""

from collections.abc import Callable
from typing import Any

_ENDING = "it is served without reuse"

_STATEFUL_LAYERS = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent"})
_SPARSE_LAYERS = {
    "chunked_attention": "attends within fixed chunks of the sequence",
    "window_attention": "attends within fixed chunks of the sequence",
    "indexed_attention": "chooses keys with an index of its own",
    "compressed_sparse_attention": "attends to compressed keys",
    "heavily_compressed_attention": "attends to compressed keys",
    "minimax_m3_sparse": "chooses keys with an index of its own",
    "reference_sliding_attention": "treats prompt and answer differently",
}
_RECURRENT_FAMILIES = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "recurrent_gemma"})
_ALIBI_FAMILIES = frozenset({"bloom", "mpt"})


def why_not_cacheable(model_class: Any, config: Any) -> str | None:
    """Return a sentence for the operator if the model can't be cached exactly; None if it may be."""
    text = config.get_text_config(decoder=True)
    for check in _CHECKS:
        reason = check(model_class, config, text)
        if reason is not None:
            return f"{model_class.__name__} can't be cached exactly because {reason}; {_ENDING}"
    return None


def _encoder(model_class: Any, config: Any, text: Any) -> str | None:
    if getattr(config, "is_encoder_decoder", False):
        return "its answers depend on an encoder's output besides the tokens in front of them"
    return None


def _recurrent(model_class: Any, config: Any, text: Any) -> str | None:
    layers = set(getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ())
    if layers & _STATEFUL_LAYERS:
        return "some of its layers keep a running state instead of keys and values per token"
    if text.model_type in _RECURRENT_FAMILIES or getattr(model_class, "_is_stateful", False):
        return "it keeps a running state instead of keys and values per token"
    return None


def _position_bias(model_class: Any, config: Any, text: Any) -> str | None:
    if text.model_type in _ALIBI_FAMILIES or getattr(text, "alibi", False):
        return "it biases attention by distance (ALiBi), which attention over cached pieces does not apply"
    return None


def _sparse(model_class: Any, config: Any, text: Any) -> str | None:
    for kind in getattr(text, "layer_types", None) or ():
        if kind in _SPARSE_LAYERS:
            return f"some of its layers' attention {_SPARSE_LAYERS[kind]} ({kind})"
    if getattr(text, "attention_chunk_size", None) and not getattr(text, "layer_types", None):
        return "its attention works within fixed chunks of the sequence"
    return None


def _shared_or_uneven(model_class: Any, config: Any, text: Any) -> str | None:
    if getattr(text, "num_kv_shared_layers", 0):
        return "some of its layers use the keys and values of other layers"
    if getattr(text, "kv_lora_rank", None):
        return "it keeps compressed keys and values (latent attention)"
    key_width = getattr(text, "head_dim", None)
    value_width = getattr(text, "v_head_dim", None)
    if key_width is not None and value_width is not None and key_width != value_width:
        return "its keys and values have different widths"
    if getattr(text, "global_head_dim", None) not in (None, key_width):
        return "its layers have keys of different widths"
    if isinstance(getattr(text, "num_key_value_heads", None), list | tuple):
        return "its layers have different numbers of key and value heads"
    return None


def _own_attention(model_class: Any, config: Any, text: Any) -> str | None:
    if not getattr(model_class, "_supports_attention_backend", True):
        return "its attention can't be exchanged (Transformers' AttentionInterface does not reach it)"
    return None


_CHECKS: tuple[Callable[[Any, Any, Any], str | None], ...] = (
    _encoder,
    _recurrent,
    _position_bias,
    _sparse,
    _shared_or_uneven,
    _own_attention,
)
