"""Where prices come from: a file of one's own first, then those kept up by others."""

from pathlib import Path

from anaphora.contract.prices import FirstOf, PriceBook, parse_prices
from anaphora.errors import SettingsError


def price_book(path: Path | None) -> PriceBook:
    """Hosted models' prices, behind those of the file where one is named.

    Raises: SettingsError.
    Cost: most of a second, for the table of all hosted models.
    """
    from anaphora.costs.hosted_prices import HostedPrices

    if path is None:
        return HostedPrices()
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The price file {path} can't be read: {error}.") from None
    return FirstOf(parse_prices(text, source=path.name), HostedPrices())
