"""`anaphora bench`: measure this machine."""

from pathlib import Path
from typing import Annotated

import typer

from anaphora.cli.load import load
from anaphora.config import Settings, load_settings

app = typer.Typer(invoke_without_command=True)
app.command()(load)

Model = Annotated[
    str | None, typer.Option(help="A named model, a folder, a .gguf file or a hub id.", show_default=False)
]

Output = Annotated[Path, typer.Option(help="Folder for the JSON file and the plot.", file_okay=False)]


def _settings(model: str | None) -> Settings:
    return load_settings({"model": model})


@app.callback()
def main(
    context: typer.Context,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter runs: under a minute, rough.")] = False,
    floor: Annotated[bool, typer.Option("--floor", help="Also compare with what the hardware can do.")] = False,
    output: Output = Path("bench-results"),
    model: Model = None,
) -> None:
    """Compare hits with cold runs and with plain Transformers, side by side in one run.

    Exit status 1 if a target is missed.
    """
    if context.invoked_subcommand is not None:
        return
    from anaphora.bench.show import show_suite

    settings = _settings(model)
    if not show_suite(settings.model, quick=quick, with_floor=floor, output=output, cache_dir=settings.cache_dir):
        raise typer.Exit(1)


@app.command()
def restart(*, output: Output = Path("bench-results"), model: Model = None) -> None:
    """Measure what a restart costs (the first token of a prompt from disk, and from memory), and what keeping costs.

    Exit status 1 if a target is missed.
    """
    from anaphora.bench.show import show_restart

    settings = _settings(model)
    if not show_restart(settings.model, output=output, cache_dir=settings.cache_dir):
        raise typer.Exit(1)


@app.command()
def linear(model: Model = None) -> None:
    """Compare packed linear layers with torch's own, for the model's shapes and from 1 to 1,024 rows."""
    from anaphora.bench.show import show_linears

    settings = _settings(model)
    show_linears(settings.model, cache_dir=settings.cache_dir)


@app.command()
def attention(model: Model = None) -> None:
    """Compare ways to read cached keys: in halves or whole, together or apart."""
    from anaphora.bench.show import show_attention

    settings = _settings(model)
    show_attention(settings.model, cache_dir=settings.cache_dir)


@app.command()
def steps(model: Model = None) -> None:
    """Compare whole steps, of one sequence and of eight: in one native call, layer by layer, through Transformers."""
    from anaphora.bench.show import show_steps

    settings = _settings(model)
    if not show_steps(settings.model, cache_dir=settings.cache_dir):
        raise typer.Exit(1)


@app.command()
def weights(model: Model = None) -> None:
    """Compare weights as they are with weights rounded at load: perplexity, next tokens, size, time of a step."""
    from anaphora.bench.show import show_quality

    settings = _settings(model)
    if not show_quality(settings.model, cache_dir=settings.cache_dir):
        raise typer.Exit(1)


@app.command()
def core() -> None:
    """Measure the index: match and lease of a long prompt, eviction, memory for each token."""
    from anaphora.bench.show import show_core

    show_core()


@app.command()
def growth(
    *,
    largest: Annotated[int, typer.Option(help="Most cached tokens.", min=10_000)] = 10_000_000,
    output: Output = Path("bench-results"),
) -> None:
    """Measure the index from 10 thousand to 10 million cached tokens: time for each operation, memory for each token.

    Exit status 1 if a target is missed.
    """
    from anaphora.bench.show import show_growth

    if not show_growth(largest=largest, output=output):
        raise typer.Exit(1)


@app.command()
def transformers(model: Model = None) -> None:
    """Measure `model.generate` with and without a PromptCache."""
    from anaphora.bench.show import show_transformers

    settings = _settings(model)
    show_transformers(settings.model, cache_dir=settings.cache_dir)
