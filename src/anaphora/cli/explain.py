"""`anaphora explain` and `anaphora lint`: why prompts miss, from recorded requests, without a model."""

from pathlib import Path
from typing import Annotated

import typer


def explain(
    first: Annotated[Path, typer.Argument(help="A request body (JSON), or a log of them (JSON lines).")],
    second: Annotated[
        Path | None, typer.Argument(help="The later request; else the last two of the first file.", show_default=False)
    ] = None,
) -> None:
    """Say where one request leaves another, why, and what that costs."""
    from anaphora.cli.explanations import show_explanation

    show_explanation(first, second)


def lint(
    logs: Annotated[list[Path], typer.Argument(help="Request bodies (JSON) or logs of them (JSON lines), in order.")],
    *,
    profile: Annotated[
        str | None, typer.Option(help="Hosted model whose shortest cached prefix counts.", show_default=False)
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write everything to this file.", show_default=False)
    ] = None,
) -> None:
    """Find layouts of prompts that miss, what costs most first. Exit status 1 if a finding is an error."""
    from anaphora.cli.explanations import show_findings

    if not show_findings(logs, profile=profile, json_file=json_file):
        raise typer.Exit(1)
