"""`anaphora demo`: the main job in one minute."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    model: Annotated[
        str | None, typer.Option(help="A named model, a folder, a .gguf file or a hub id.", show_default=False)
    ] = None,
    cache_dir: Annotated[Path | None, typer.Option(help="Where models are kept.", show_default=False)] = None,
) -> None:
    """Answer two questions over one long system prompt; show what was reused, and that the scores are the same."""
    from anaphora.config import load_settings

    settings = load_settings({"model": model, "cache_dir": cache_dir})
    from anaphora.bench.demo import show_demo

    if not show_demo(settings.model, cache_dir=settings.cache_dir):
        raise typer.Exit(1)
