"""What the rest of the engine needs to know about a loaded model. Facts only."""

from dataclasses import dataclass
from typing import Any, NewType

import torch

ModelDigest = NewType("ModelDigest", bytes)
"""32 bytes over weights content, dtype, architecture settings (rope, window, attention) and tokenizer."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    name: str  # the name requests use
    architecture: str  # for example "LlamaForCausalLM"
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int  # rows of the output layer
    max_context: int  # tokens, prompt and answer together
    end_token_ids: frozenset[int]
    digest: ModelDigest
    not_cacheable_because: str | None  # None: KV can be cached exactly; else a sentence for the operator

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype.itemsize


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: Any  # transformers.PreTrainedModel, eval mode, no grad
    tokenizer: Any  # transformers.PreTrainedTokenizerBase
    spec: ModelSpec
    dtype: torch.dtype
    device: torch.device
