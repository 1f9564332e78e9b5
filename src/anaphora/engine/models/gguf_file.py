"""GGUF files: read once through Transformers' loader, then kept as plain weights that load fast.

FILE.gguf ──dequantise──> <cache_dir>/dequantised/<content>-<dtype>-<loader>/  config.json  model.safetensors
                                                                               tokenizer.json  gguf.json
"""

import json
import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from anaphora.engine.models.gguf_fields import check_gguf, read_fields
from anaphora.engine.models.storage import exclusive, is_disk_full, new_directory, remembered_sha256
from anaphora.engine.models.tokenizer import GGUF_PRE_KEY, tokenizer_from_gguf, warn_about_rule
from anaphora.errors import ModelUnavailable

_log = logging.getLogger(__name__)

_LAYOUT = 1  # raise when what is written to a kept folder changes
_NOTE = "gguf.json"


def plain_directory(path: Path, *, cache_dir: Path, dtype: torch.dtype) -> Path:
    """Return the folder with the file's weights in `dtype` and its tokenizer, making it if need be.

    Raises: ModelUnavailable.
    Cost: the first time, a pass over the file and a write of num_weights * dtype bytes; then a hash look-up.
    """
    check_gguf(path)
    content = remembered_sha256(path, cache_dir=cache_dir)
    target = cache_dir / "dequantised" / _key(content, dtype)
    try:
        with exclusive(cache_dir, f"dequantise-{target.name}"):
            if not target.is_dir():
                _log.info("dequantising %s once; the result is kept in %s", path.name, target)
                with new_directory(target) as staging:
                    _convert(path, staging, dtype)
    except (OSError, SafetensorError) as error:
        if is_disk_full(error):
            raise ModelUnavailable(
                f"The disk of {cache_dir} is full: the weights of {path.name} in {dtype} don't fit "
                "beside the file. Free some space, or set another cache folder (ANAPHORA_CACHE_DIR)."
            ) from error
        raise ModelUnavailable(f"{path.name} can't be kept in {cache_dir}: {error}") from error
    note = json.loads((target / _NOTE).read_text(encoding="utf-8"))
    warn_about_rule(note["pre"], source=path.name, byte_level=note["byte_level"])
    return target


def _key(content: str, dtype: torch.dtype) -> str:
    """Name a kept folder. Transformers' conversion may change between its minor releases."""
    loader = ".".join(transformers.__version__.split(".")[:2])
    return f"{content[:32]}-{str(dtype).removeprefix('torch.')}-t{loader}-{_LAYOUT}"


def _convert(path: Path, folder: Path, dtype: torch.dtype) -> None:
    fields = read_fields(path)
    model = _dequantise(path, dtype)
    tokenizer = tokenizer_from_gguf(path, fields)
    if (context := getattr(model.config, "max_position_embeddings", None)) is not None:
        tokenizer.model_max_length = context
    # A plain folder: nothing in it may send a later load back to the GGUF file.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.config._name_or_path = path.stem
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    note = {
        "pre": fields.get("tokenizer.ggml.pre"),
        "byte_level": fields.get("tokenizer.ggml.model") == "gpt2",
    }
    (folder / _NOTE).write_text(json.dumps(note), encoding="utf-8")


def _dequantise(path: Path, dtype: torch.dtype) -> Any:
    arguments: dict[str, Any] = {"gguf_file": path.name, "dtype": dtype}
    if hasattr(transformers, "GgufConfig"):  # releases that would otherwise keep some weights packed
        arguments["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        return AutoModelForCausalLM.from_pretrained(str(path.parent), **arguments)
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise ModelUnavailable(
            f"Transformers can't load {path}: {error}. Is the file whole, and its architecture one that Transformers "
            "reads from GGUF files?"
        ) from error


def pre_tokenizer_name(tokenizer: Any) -> str | None:
    """Name of the cutting rule a GGUF file gave this tokenizer; None if it came from elsewhere."""
    name = tokenizer.init_kwargs.get(GGUF_PRE_KEY)
    return None if name is None else str(name)
