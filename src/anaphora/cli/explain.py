"""`anaphora explain` and `anaphora lint`: why requests miss."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from anaphora.cli.explanations import Pricing
    from anaphora.contract.prices import PriceBook

_ID = re.compile(r"(chatcmpl-|cmpl-|msg_|resp_|req_)[\w-]+")

DEFAULT_URL = "http://127.0.0.1:8000"

Prices = Annotated[
    Path | None, typer.Option(help="TOML file of prices that win over the built-in ones.", show_default=False)
]
PricedAs = Annotated[
    str | None, typer.Option("--as", metavar="MODEL", help="Take this model's prices.", show_default=False)
]


def explain(
    first: Annotated[
        str | None,
        typer.Argument(
            help="A request body (JSON), a log of them (JSON lines), or the id of a request to a server.",
            show_default=False,
        ),
    ] = None,
    second: Annotated[
        Path | None, typer.Argument(help="The later request; else the last two of the first file.", show_default=False)
    ] = None,
    *,
    last: Annotated[bool, typer.Option("--last", help="The last request to a running server.")] = False,
    url: Annotated[str, typer.Option(help="The server.")] = DEFAULT_URL,
    key: Annotated[str | None, typer.Option(help="API key, where the server wants one.", show_default=False)] = None,
    priced_as: PricedAs = None,
    prices: Prices = None,
) -> None:
    """Say where one request leaves another, why, and what that costs.

    With --last, or an id as the answer or its `request-id` header has it: why that request to a server missed.
    """
    from anaphora.cli.explanations import show_explanation, show_remembered

    if last or (first is not None and _ID.fullmatch(first)):
        show_remembered(url, "last" if last or first is None else first, key=key)
    elif first is None:
        raise typer.BadParameter("Name a file, or the id of a request, or say --last.")
    else:
        show_explanation(Path(first), second, pricing=_pricing(prices, priced_as))


def lint(
    logs: Annotated[list[Path], typer.Argument(help="Request bodies (JSON) or logs of them (JSON lines), in order.")],
    *,
    profile: Annotated[
        str | None, typer.Option(help="Hosted model whose shortest cached prefix counts.", show_default=False)
    ] = None,
    priced_as: PricedAs = None,
    prices: Prices = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write everything to this file.", show_default=False)
    ] = None,
    sarif_file: Annotated[
        Path | None, typer.Option("--sarif", help="Also write the findings to this file.", show_default=False)
    ] = None,
) -> None:
    """Find layouts of prompts that miss, what costs most first. Exit status 1 if a finding is an error."""
    from anaphora.cli.findings import Outputs, show_findings

    outputs = Outputs(json_file, sarif_file)
    if not show_findings(logs, profile=profile, pricing=_pricing(prices, priced_as), outputs=outputs):
        raise typer.Exit(1)


def _pricing(prices: Path | None, priced_as: str | None) -> "Pricing":
    from anaphora.cli.explanations import Pricing

    def load() -> "PriceBook":
        from anaphora.costs.price_books import price_book

        return price_book(prices)

    return Pricing(load, priced_as)
