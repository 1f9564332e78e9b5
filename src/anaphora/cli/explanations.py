"""Print why a request missed: of two bodies, of a log, or of a request that a server remembers."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.text import Text

from anaphora.api.recorded import Recorded
from anaphora.cli.request_files import RequestFiles, UnreadableRequests
from anaphora.contract.prices import MILLION, Price, PriceBook, Tokens, cost_of
from anaphora.contract.profiles import profile_named
from anaphora.errors import AnaphoraError
from anaphora.explain.divergence import Excerpt
from anaphora.explain.reasons import Explanation, explain

MAX_PROBLEMS_SHOWN = 5
TIMEOUT_S = 30.0


class Unexplained(AnaphoraError):
    """A server does not tell about a request."""


class Pricing:
    """Whose prices count, and from where. They are loaded when first asked for."""

    def __init__(self, load: Callable[[], PriceBook], priced_as: str | None = None) -> None:
        self._load = load
        self._priced_as = priced_as

    @cached_property
    def _book(self) -> PriceBook:
        return self._load()

    def price(self, model: str) -> Price | None:
        """A model's price now, where one is known."""
        name = self._priced_as or model
        return self._book.price(name, datetime.now(UTC)) if name else None

    def lost(self, model: str, num_lost: int, *, num_tokens: int) -> Decimal | None:
        """Dollars that tokens cost more because they were not read. None: no price is known."""
        price = self.price(model)
        if price is None:
            return None
        rates = price.rates_for(num_tokens)
        read = rates.input if rates.read is None else rates.read
        return (rates.input - read) * num_lost / MILLION


def show_explanation(first: Path, second: Path | None, *, pricing: Pricing) -> None:
    """Print where and why the later request leaves the earlier one: the last of two files, or the last two of one.

    Raises: UnreadableRequests.
    """
    console = Console(soft_wrap=True)
    one, other = _pair(first, second, console)
    found = explain(one.side, other.side)
    for line in lines_of(found):
        console.print(line, highlight=False)
    if (
        found.reason == "none"
        and _json(one) != _json(other)
        and len(one.side.prompt.messages) == len(other.side.prompt.messages)
    ):
        console.print("The JSON differs all the same: same tokens, written otherwise.", highlight=False)
    for cost in _costs(found, other, pricing):
        console.print(cost, highlight=False, markup=False)


def show_remembered(url: str, name: str, *, key: str | None) -> None:
    """Print why a request that a running server remembers reused no more. `name`: an id, or `last`.

    Raises: Unexplained.
    """
    console = Console(soft_wrap=True)
    for line in lines_of_entry(_fetched(url, name, key)):
        console.print(line, highlight=False)


def min_tokens_of(profile: str) -> int:
    """The shortest prefix that a hosted model caches. Raises: SettingsError that lists the profiles."""
    rules = profile_named(profile)
    return rules.anthropic.min_tokens or int(getattr(rules.openai, "min_tokens", 0))


def lines_of(found: Explanation) -> list[Text]:
    """An explanation in words."""
    lines = [_head(found.where, found.says)]
    if found.divergence is not None:
        lines += _sides(found.divergence.first, found.divergence.second)
    lines.append(Text(f"Reused: {found.num_reused:,} of {found.num_tokens:,} tokens."))
    if found.num_lost:
        lines.append(Text(f"Lost: {found.num_lost:,} tokens behind it that both requests have."))
    return [*lines, *_advice(found.advice, found.num_reused + found.num_lost, found.num_tokens, found.num_lost)]


def lines_of_entry(entry: Mapping[str, Any]) -> list[Text]:
    """What a server tells of a request, in words."""
    told = entry.get("anaphora") or {}
    miss = told.get("miss") or {}
    num_tokens, num_reused = entry["prompt_tokens"], told.get("reused_tokens", 0)
    head = f"{entry['id']} ({entry['model']}, {entry['endpoint']}, {entry['state']})"
    says = str(miss.get("says", "The request has not begun to answer."))
    where = str(miss.get("where", ""))
    lines = [Text(head, style="dim"), _head("" if says.startswith(where) else where, says)]
    excerpts = entry.get("excerpts") or {}
    if excerpts:
        lines += _sides(*(Excerpt(excerpts[side]["text"], excerpts[side]["at"]) for side in ("first", "second")))
    if "byte" in miss:
        lines.append(Text(f"Place: byte {miss['byte']:,} of {where}, token {miss['token']:,}."))
    if nearest := miss.get("nearest"):
        ago = nearest["seconds_ago"]
        lines.append(
            Text(f"Compared with {nearest['id']}, {ago:,.0f} s before: {nearest['alike_tokens']:,} tokens alike.")
        )
    lines.append(Text(f"Reused: {num_reused:,} of {num_tokens:,} tokens."))
    contract = told.get("contract") or {}
    if contract.get("read_tokens", num_reused) != num_reused:
        lines.append(
            Text(f"The usage says {contract['read_tokens']:,}: by the rules of profile {contract['profile']}.")
        )
    num_lost = miss.get("lost_tokens", 0)
    if num_lost:
        lines.append(Text(f"Lost: {num_lost:,} tokens computed again that were sent before."))
    return [*lines, *_advice(str(miss.get("advice", "")), num_reused + num_lost, num_tokens, num_lost)]


def tell_problems(files: RequestFiles, console: Console) -> None:
    """Say what was left out."""
    if files.problems:
        what = "1 request was" if len(files.problems) == 1 else f"{len(files.problems):,} requests were"
        console.print(f"{what} left out.", highlight=False)
        for problem in files.problems[:MAX_PROBLEMS_SHOWN]:
            console.print(f"  {problem}", highlight=False, markup=False)


def dollars(amount: Decimal) -> str:
    """An amount with about two digits that say something."""
    return f"${amount:,.2f}" if amount >= 1 else f"${float(amount):.2g}"


def _head(where: str, says: str) -> Text:
    line = Text(f"{where}: " if where else "", style="bold")
    return line.append(says, style="not bold" if where else "bold")


def _sides(first: Excerpt, second: Excerpt) -> list[Text]:
    """Both sides one above the other, coloured from where they part, and a mark under that place."""
    lines = [_line("first ", first, "red"), _line("second", second, "green")]
    width = len(_line("first ", Excerpt(first.text[: first.at], 0), "").plain) - 1
    return [*lines, Text(" " * width + "^")]


def _advice(advice: str, num_would: int, num_tokens: int, num_lost: int) -> list[Text]:
    if not advice:
        return []
    line = Text("What to do: ", style="bold").append(advice, style="not bold")
    if num_lost:
        line.append(f" Then {num_would:,} of {num_tokens:,} tokens would hit.", style="not bold")
    return [line]


def _costs(found: Explanation, recorded: Recorded, pricing: Pricing) -> Iterator[str]:
    """What the loss costs in each call, where a price is known."""
    model = str(recorded.body.get("model") or "")
    if not found.num_lost or (price := pricing.price(model)) is None:
        return
    lost = pricing.lost(model, found.num_lost, num_tokens=found.num_tokens)
    call = cost_of(Tokens(found.num_tokens - found.num_reused, found.num_reused), price).total
    if lost is not None:
        source = f"{price.model}, {price.source}"
        yield f"Cost: {dollars(lost)} of {dollars(call)} for the input of each such call ({source})."


def _pair(first: Path, second: Path | None, console: Console) -> tuple[Recorded, Recorded]:
    files = RequestFiles()
    earlier: list[Recorded] = []
    for _, recorded in files.read(first):
        earlier = [*earlier[-1:], recorded]
    if second is not None:
        later = [recorded for _, recorded in files.read(second)]
        tell_problems(files, console)
        return earlier[-1], later[-1]
    tell_problems(files, console)
    if len(earlier) == 1:
        raise UnreadableRequests(f"{first} has one request in it. Name a second file, or a log of two or more.")
    return earlier[-2], earlier[-1]


def _json(recorded: Recorded) -> str:
    return json.dumps(recorded.body, sort_keys=True)


def _fetched(url: str, name: str, key: str | None) -> dict[str, Any]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    base = url.rstrip("/").removesuffix("/v1")
    try:
        response = httpx.get(f"{base}/v1/anaphora/requests/{name}", headers=headers, timeout=TIMEOUT_S)
        value = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unexplained(f"{base} does not answer: {error}. Name the server with --url.") from None
    if response.status_code != 200 or not isinstance(value, dict):
        problem = value.get("error", {}).get("message") if isinstance(value, dict) else None
        raise Unexplained(f"{base} says: {problem or response.status_code}")
    return value


def _line(name: str, excerpt: Excerpt, colour: str) -> Text:
    """An excerpt on one line: line breaks and signs that a terminal would obey are written out."""
    before, after = excerpt.text[: excerpt.at], excerpt.text[excerpt.at :]
    if not colour:
        before, after = excerpt.text, ""
    line = Text(f'  {name}  "').append(_shown(before)).append(_shown(after), style=colour)
    return line.append('"')


def _shown(text: str) -> str:
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
