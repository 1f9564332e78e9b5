"""What a model's keys and values depend on, as 32 bytes.

    sha256 over   weights content | dtype | architecture settings | tokenizer

Two models with the same digest give the same keys and values for the same tokens. The other way round is not
promised: a setting that changes nothing may change the digest, which costs a miss and never a wrong answer.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from anaphora.engine.models.spec import ModelDigest
from anaphora.engine.models.storage import remembered_sha256

_FORMAT = "anaphora-model-1"

_WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path",
        "_attn_implementation",
        "attn_implementation",
        "architectures",  # the class is there under its own name
        "dtype",  # there under its own name, as loaded
        "torch_dtype",
        "gradient_checkpointing",
        "id2label",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "transformers_version",
        "use_cache",
    }
)
"""Settings that say where a model came from or what a call returns, not what its keys and values are."""


def model_digest(*, weights: str, dtype: torch.dtype, model: Any, tokenizer: Any) -> ModelDigest:
    """Digest a model from its weights' hash (see `weights_of_files`, `weights_of_state`) and everything else.

    The same in every process and on every host.
    Cost: one pass over the tokenizer's vocabulary.
    """
    content = {
        "format": _FORMAT,
        "weights": weights,
        "dtype": str(dtype),
        "class": type(model).__name__,
        "config": _settings(model.config.to_dict()),
        "tokenizer": tokenizer_hash(tokenizer),
    }
    return ModelDigest(hashlib.sha256(_canonical(content)).digest())


def weights_of_files(paths: Iterable[Path], *, cache_dir: Path) -> str:
    """Hash the content of weight files, by name order. Cost: one read of each file not hashed before."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):
        digest.update(f"{path.name}\0{remembered_sha256(path, cache_dir=cache_dir)}\0".encode())
    return digest.hexdigest()


def weights_of_state(state: Mapping[str, torch.Tensor]) -> str:
    """Hash a state dict: names, dtypes, shapes and bytes, by name order. Cost: one read of all weights."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().to("cpu").contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def tokenizer_hash(tokenizer: Any) -> str:
    """Hash what a tokenizer does with text. Chat templates don't count: they are text before tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content: Any = json.loads(backend.to_str())
        content["truncation"] = content["padding"] = None  # set per call, not part of the tokenizer
    else:
        content = {
            "class": type(tokenizer).__name__,
            "vocabulary": sorted(tokenizer.get_vocab().items()),
            "special": sorted(map(str, tokenizer.all_special_tokens)),
        }
    return hashlib.sha256(_canonical(content)).hexdigest()


def _settings(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _settings(item) for key, item in value.items() if key not in _WITHOUT_EFFECT}
    if isinstance(value, list | tuple):
        return [_settings(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()
