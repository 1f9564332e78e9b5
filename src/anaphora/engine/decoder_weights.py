"""Recognise models that the native step can run, and lay their weights out for it.

The families are the pre-norm decoders with rotary positions and a gated feed-forward. What is recognised here is
still tested with numbers at load (`self_test.py`): a family's name alone proves nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anaphora.engine.models.spec import LoadedModel

FAMILIES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Joined layers read the same input: their weights lie one after another in one tensor."""

    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden]
    qkv_bias: Tensor | None
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None  # [head_dim]
    output: Tensor  # [hidden, num_heads * head_dim]
    output_bias: Tensor | None
    feed_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * inner, hidden]
    gate_up_bias: Tensor | None
    down: Tensor  # [hidden, inner]
    down_bias: Tensor | None

    def matrices(self) -> dict[str, Tensor]:
        """Name the matrices that a native step multiplies with; `gate` and `up` apart."""
        gate, up = self.gate_up.chunk(2)
        return {"qkv": self.qkv, "output": self.output, "gate": gate, "up": up, "down": self.down}

    def vectors(self) -> dict[str, Tensor | None]:
        """Name everything else."""
        names = set(self.__slots__) - {"qkv", "output", "gate_up", "down"}
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Tensor  # [vocab_size, hidden]
    rotary: nn.Module  # (any tensor of the dtype, positions [1, num_rows]) -> cosines, sines [1, num_rows, head_dim]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: Tensor  # [vocab_size, hidden]
    head_bias: Tensor | None
    epsilon: float  # of every norm
    scale: float  # of query-key products

    @property
    def hidden(self) -> int:
        return self.embedding.shape[1]

    @property
    def inner(self) -> int:
        return self.layers[0].down.shape[1]


def why_not_native(loaded: LoadedModel) -> str | None:
    """Say what keeps a model from the native step; None if nothing does."""
    model = loaded.model
    config = model.config
    if type(model).__name__ not in FAMILIES:
        return f"{type(model).__name__} is none of the families that they know"
    if loaded.device.type != "cpu" or loaded.dtype != torch.float32:
        return f"they compute float32 on the CPU, not {loaded.dtype} on {loaded.device}"
    if config.hidden_act != "silu":
        return f"the activation {config.hidden_act} is not theirs"
    if any(layer.self_attn.config is not config for layer in model.model.layers):
        return "layers have settings of their own"
    if _windows_matter(config, loaded.spec.max_context):
        return "layers have sliding windows"
    if any(part._forward_hooks or part._forward_pre_hooks for part in model.modules()):
        return "modules have hooks"
    parts = [part for layer in model.model.layers for part in layer.modules()]
    linears = [part for part in parts if isinstance(part, nn.Linear)] + [model.lm_head]
    if len(linears) != 7 * len(model.model.layers) + 1 or any(type(linear) is not nn.Linear for linear in linears):
        return "layers are not plain"
    norms = [part for part in (*parts, model.model.norm) if hasattr(part, "variance_epsilon")]
    if len({norm.variance_epsilon for norm in norms}) != 1:
        return "norms differ in their epsilon"
    return None


def decoder_weights(model: Any) -> DecoderWeights:
    """Collect a model's weights. Joined layers are copied next to each other, and the model reads them from there.

    Needs a model that `why_not_native` has nothing against.
    """
    decoder = model.model
    return DecoderWeights(
        embedding=_plain(decoder.embed_tokens.weight),
        rotary=decoder.rotary_emb,
        layers=tuple(_layer(layer) for layer in decoder.layers),
        final_norm=_plain(decoder.norm.weight),
        head=_plain(model.lm_head.weight),
        head_bias=_bias(model.lm_head),
        epsilon=float(decoder.norm.variance_epsilon),
        scale=float(decoder.layers[0].self_attn.scaling),
    )


def _layer(layer: Any) -> LayerWeights:
    attention, feed = layer.self_attn, layer.mlp
    qkv, qkv_bias = _join((attention.q_proj, attention.k_proj, attention.v_proj))
    gate_up, gate_up_bias = _join((feed.gate_proj, feed.up_proj))
    return LayerWeights(
        attention_norm=_plain(layer.input_layernorm.weight),
        qkv=qkv,
        qkv_bias=qkv_bias,
        query_norm=_head_norm(attention, "q_norm"),
        key_norm=_head_norm(attention, "k_norm"),
        output=_plain(attention.o_proj.weight),
        output_bias=_bias(attention.o_proj),
        feed_norm=_plain(layer.post_attention_layernorm.weight),
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=_plain(feed.down_proj.weight),
        down_bias=_bias(feed.down_proj),
    )


def _join(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Put the weights of layers one after another; the layers become views of the result."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    sizes = [linear.out_features for linear in linears]
    for linear, own in zip(linears, weight.split_with_sizes(sizes), strict=True):
        linear.weight.data = own
    biases = [linear.bias for linear in linears]
    if all(bias is None for bias in biases):
        return weight, None
    filled = [torch.zeros(n) if bias is None else bias.detach() for bias, n in zip(biases, sizes, strict=True)]
    return weight, torch.cat(filled)


def _plain(weight: Tensor) -> Tensor:
    return weight.detach().contiguous()


def _bias(linear: nn.Linear) -> Tensor | None:
    return None if linear.bias is None else _plain(linear.bias)


def _head_norm(attention: Any, name: str) -> Tensor | None:
    norm = getattr(attention, name, None)
    return None if norm is None else _plain(norm.weight)


def _windows_matter(config: Any, max_context: int) -> bool:
    window = getattr(config, "sliding_window", None)
    if window is None or window >= max_context or not getattr(config, "use_sliding_window", True):
        return False
    kinds = getattr(config, "layer_types", None)
    return kinds is None or "sliding_attention" in kinds
