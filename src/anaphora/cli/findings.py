"""Print what lint found in a log, and write it down as JSON or SARIF. What `anaphora lint` calls."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.console import Console

import anaphora
from anaphora.cli.explanations import Pricing, dollars, min_tokens_of, tell_problems
from anaphora.cli.request_files import Place, RequestFiles
from anaphora.explain.lint import Finding, Linter, LogReport, Sent

SARIF_LEVELS = {"error": "error", "warning": "warning", "note": "note"}
RULES = {
    "volatile-front": "What changes in every call stands in front of what stays.",
    "volatile-marked": "A breakpoint stands on a part that changes in every call.",
    "prefix-short": "A breakpoint's prefix is shorter than the host caches.",
    "unmarked": "Requests open alike and nothing is marked to be cached.",
    "idle": "A request comes later than the lifetime of what it would have read.",
    "fan-out": "Requests that open alike are sent before the first begins to answer.",
    "miss": "A request repeats what was sent before, behind a change.",
}


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files that are written besides what is printed."""

    json_file: Path | None = None
    sarif_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Priced:
    """A finding and what it costs, where a price is known."""

    finding: Finding
    cost: Decimal | None
    place: Place | None


def show_findings(paths: Sequence[Path], *, profile: str | None, pricing: Pricing, outputs: Outputs) -> bool:
    """Print what lint finds in the files, read as one log. True: no finding is an error.

    Raises: UnreadableRequests, SettingsError for an unknown profile.
    """
    console = Console(soft_wrap=True)
    linter = Linter(min_tokens=0 if profile is None else min_tokens_of(profile))
    files = RequestFiles()
    places: list[Place] = []
    models: list[tuple[str, int]] = []
    for path in paths:
        for place, recorded in files.read(path):
            places.append(place)
            models.append((str(recorded.body.get("model") or ""), len(recorded.side.rendered.tokens)))
            linter.take(
                Sent(
                    side=recorded.side,
                    at_s=recorded.at_s,
                    began_s=recorded.began_s,
                    num_read=None if recorded.usage is None else recorded.usage.read,
                    needs_marks=recorded.api == "messages",
                )
            )
    tell_problems(files, console)
    report = linter.report()
    priced = [_priced(one, models, places, pricing) for one in report.findings]
    for line in summary_of(report, priced):
        console.print(line, highlight=False, markup=False)
    _write(outputs, report, priced)
    return all(one.severity != "error" for one in report.findings)


def summary_of(report: LogReport, priced: Sequence[Priced]) -> Iterator[str]:
    """A report in words, what costs most first."""
    share = report.num_reused / report.num_tokens if report.num_tokens else 0.0
    better = (report.num_reused + report.num_lost) / report.num_tokens if report.num_tokens else 0.0
    requests = "1 request" if report.num_requests == 1 else f"{report.num_requests:,} requests"
    head = f"{requests}, {report.num_tokens:,} tokens: {share:.0%} can be reused"
    yield head + (f", {better:.0%} without the misses below." if report.num_lost else ".")
    if report.num_read is not None and report.num_tokens_told:
        reached = report.num_read / report.num_tokens_told
        yield f"Their usage says that {reached:.0%} was read from a cache."
    for one in priced:
        yield from _lines_of(one)
    for line in report.advice:
        yield f"To do: {line}"


def sarif_of(priced: Sequence[Priced]) -> dict[str, Any]:
    """The findings in the format that code hosts show beside code."""
    rules = [{"id": name, "shortDescription": {"text": text}} for name, text in RULES.items()]
    driver = {"name": "anaphora lint", "version": anaphora.__version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(one) for one in priced]}],
    }


def _result(one: Priced) -> dict[str, Any]:
    finding = one.finding
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": finding.path or "request"}]}
    if one.place is not None:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": one.place.path.as_posix()},
            "region": {"startLine": one.place.line},
        }
    properties = {"tokens": finding.num_tokens, "requests": finding.num_requests}
    cost = {} if one.cost is None else {"cost_usd": float(one.cost)}
    return {
        "ruleId": finding.rule,
        "level": SARIF_LEVELS[finding.severity],
        "message": {"text": " ".join(text for text in (finding.says, finding.advice) if text)},
        "locations": [location],
        "properties": {**properties, **cost},
    }


def _priced(one: Finding, models: Sequence[tuple[str, int]], places: Sequence[Place], pricing: Pricing) -> Priced:
    model, num_tokens = models[one.request_index]
    cost = pricing.lost(model, one.num_tokens, num_tokens=num_tokens) if one.num_tokens else None
    return Priced(one, cost, places[one.request_index])


def _lines_of(priced: Priced) -> Iterator[str]:
    one = priced.finding
    cost = f", {one.num_tokens:,} tokens" if one.num_tokens else ""
    cost += "" if priced.cost is None else f", {dollars(priced.cost)}"
    where = f"request {one.request_index + 1}" + (f" and {one.num_requests - 1} more" if one.num_requests > 1 else "")
    yield f"{one.severity} {one.rule} {one.path + ' ' if one.path else ''}({where}{cost}): {one.says}"
    if one.advice:
        yield f"    {one.advice}"


def _write(outputs: Outputs, report: LogReport, priced: Sequence[Priced]) -> None:
    whole = asdict(report)
    for entry, one in zip(whole["findings"], priced, strict=True):
        entry["cost_usd"] = None if one.cost is None else float(one.cost)
        entry["file"] = None if one.place is None else f"{one.place.path.name}, {one.place.where}"
    for path, value in ((outputs.json_file, whole), (outputs.sarif_file, sarif_of(priced))):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
