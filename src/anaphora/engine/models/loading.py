"""Load a model by catalog name, folder, GGUF file or hub id.

name in the catalog ──fetch──> FILE.gguf ──> plain folder ──┐
FILE.gguf ─────────────────────────────────> plain folder ──┼──> LoadedModel
folder ─────────────────────────────────────────────────────┤
hub id ──huggingface_hub──> folder ─────────────────────────┘
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from anaphora.engine.models.catalog import CATALOG
from anaphora.engine.models.describe import loaded_model
from anaphora.engine.models.digest import weights_of_files
from anaphora.engine.models.fetch import fetch
from anaphora.engine.models.gguf_file import plain_directory
from anaphora.engine.models.hub import snapshot
from anaphora.engine.models.rounding import Rounding, round_weights
from anaphora.engine.models.spec import LoadedModel
from anaphora.errors import ModelUnavailable


@dataclass(frozen=True, slots=True)
class _Located:
    """Where a model's folder is, under which name it is served, and which files its weights' hash is of."""

    folder: Path
    name: str
    hashed: tuple[Path, ...]


def load_model(
    source: str,
    *,
    cache_dir: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device,
    name: str | None = None,
    progress: bool = True,
    rounding: Rounding = "checkpoint",
) -> LoadedModel:
    """Return the model of a catalog name, a folder, a GGUF file or a hub id, ready for inference.

    Fetches and converts what isn't in `cache_dir` yet. `name` is what requests call the model; by default the
    catalog name, the hub id, or the name of the file or folder. `rounding` is for those who want smaller weights than
    the checkpoint has (`rounding.py`); the model's digest tells it.

    Raises: ModelUnavailable, with what was tried and what to do.
    """
    with _progress_bars(progress):
        located = _locate(source, cache_dir=cache_dir, dtype=dtype, progress=progress)
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(located.folder))
            model = AutoModelForCausalLM.from_pretrained(str(located.folder), dtype=dtype)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
            raise ModelUnavailable(f"{source} was found in {located.folder} but can't be loaded: {error}") from error
        weights = weights_of_files(located.hashed, cache_dir=cache_dir)
        if round_weights(model, rounding):
            weights += f" rounded to {rounding}"
        return loaded_model(
            model.to(device),
            tokenizer,
            name=name or located.name,
            weights=weights,
            dtype=dtype,
            device=device,
        )


def _locate(source: str, *, cache_dir: Path, dtype: torch.dtype, progress: bool) -> _Located:
    path = Path(source).expanduser()
    if (entry := CATALOG.get(source)) is not None:
        file = fetch(entry, cache_dir=cache_dir, progress=progress)
        return _gguf(file, source, cache_dir=cache_dir, dtype=dtype)
    if path.is_file():
        return _gguf(path, path.stem, cache_dir=cache_dir, dtype=dtype)
    if path.is_dir():
        return _directory(path, path.resolve().name)
    if source.endswith(".gguf") or source.startswith(("/", "./", "../", "~")):
        raise ModelUnavailable(f"There is no file or folder {source}.")
    if source.count("/") == 1:
        return _directory(snapshot(source), source)
    raise ModelUnavailable(
        f"No model {source!r}: it is none of the named models ({', '.join(sorted(CATALOG))}), no folder, no "
        ".gguf file, and no hub id (owner/name)."
    )


def _gguf(path: Path, name: str, *, cache_dir: Path, dtype: torch.dtype) -> _Located:
    folder = plain_directory(path, cache_dir=cache_dir, dtype=dtype)
    return _Located(folder=folder, name=name, hashed=(path,))


def _directory(folder: Path, name: str) -> _Located:
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(
            f"{folder} has no config.json, so it is not a model folder of Transformers. Expected there: "
            "config.json, *.safetensors, and the tokenizer's files (tokenizer.json). "
            "For a GGUF file give the file's own path."
        )
    weights = tuple(folder.glob("*.safetensors")) or tuple(folder.glob("pytorch_model*.bin"))
    if not weights:
        raise ModelUnavailable(f"{folder} has a config.json but no weights (*.safetensors or pytorch_model*.bin).")
    return _Located(folder=folder, name=name, hashed=weights)


@contextlib.contextmanager
def _progress_bars(wanted: bool) -> Iterator[None]:
    """Show or hide Transformers' own progress bars meanwhile."""
    before: Any = transformers_logging.is_progress_bar_enabled()
    (transformers_logging.enable_progress_bar if wanted else transformers_logging.disable_progress_bar)()
    try:
        yield
    finally:
        (transformers_logging.enable_progress_bar if before else transformers_logging.disable_progress_bar)()
