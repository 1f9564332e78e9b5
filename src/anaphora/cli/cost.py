"""`anaphora cost`: what usage cost, and what caching saved."""

from pathlib import Path
from typing import Annotated

import typer


def cost(
    usage: Annotated[list[Path], typer.Argument(help="Request logs (JSON lines) or usage exports (JSON).")],
    *,
    by: Annotated[str, typer.Option(help="tenant, model, day; several with commas between.")] = "model",
    priced_as: Annotated[
        str | None, typer.Option("--as", metavar="MODEL", help="Take this model's prices for all.", show_default=False)
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="TOML file of prices that win over the built-in ones.", show_default=False)
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write everything to this file.", show_default=False)
    ] = None,
) -> None:
    """Work out what recorded requests cost, by tenant, model or day, and what they had cost without a cache."""
    from anaphora.costs.show import show_costs

    show_costs(usage, by=by, priced_as=priced_as, prices=prices, json_file=json_file)
