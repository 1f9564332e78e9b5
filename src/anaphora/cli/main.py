"""The `anaphora` command."""

import sys
from typing import Annotated

import typer

import anaphora
from anaphora.cli import bench, cache, chat, cost, demo, explain, models, serve, simulate
from anaphora.errors import AnaphoraError

app = typer.Typer(
    name="anaphora",
    help="A self-hosted LLM server about prompt caching: prompts that open the same way are computed once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anaphora {anaphora.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command()(demo.demo)
app.command()(serve.serve)
app.command()(chat.chat)
app.command()(simulate.simulate)
app.command()(cost.cost)
app.command()(explain.explain)
app.command()(explain.lint)
app.add_typer(cache.app, name="cache")
app.add_typer(models.app, name="models")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line. Errors made on purpose are one line on standard error and exit status 1."""
    try:
        app()
    except AnaphoraError as error:
        print(f"anaphora: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
