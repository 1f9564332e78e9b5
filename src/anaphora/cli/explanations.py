"""Print why a request missed and what lint found. What `anaphora explain` and `anaphora lint` call."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from anaphora.cli.request_files import Reader, RequestFile, UnreadableRequests
from anaphora.contract.profiles import profile_named
from anaphora.explain.divergence import Excerpt
from anaphora.explain.lint import Finding, LogReport, lint_log
from anaphora.explain.reasons import Explanation, Side, explain

MAX_PROBLEMS_SHOWN = 5


def show_explanation(first: Path, second: Path | None) -> None:
    """Print where and why the later request leaves the earlier one: the last of two files, or the last two of one.

    Raises: UnreadableRequests.
    """
    console = Console(soft_wrap=True)
    for line in lines_of(explain(*_pair(first, second, console))):
        console.print(line, highlight=False, markup=False)


def show_findings(paths: Sequence[Path], *, profile: str | None, json_file: Path | None) -> bool:
    """Print what lint finds in the files, read as one log. True: no finding is an error.

    Raises: UnreadableRequests, SettingsError for an unknown profile.
    """
    console = Console(soft_wrap=True)
    min_tokens = 0 if profile is None else min_tokens_of(profile)
    reader = Reader()
    sides: list[Side] = []
    for path in paths:
        sides += _told(reader.read(path), console).sides
    report = lint_log(sides, min_tokens=min_tokens)
    for line in summary_of(report):
        console.print(line, highlight=False, markup=False)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    return all(one.severity != "error" for one in report.findings)


def min_tokens_of(profile: str) -> int:
    """The shortest prefix that a hosted model caches. Raises: SettingsError that lists the profiles."""
    rules = profile_named(profile)
    return rules.anthropic.min_tokens or int(getattr(rules.openai, "min_tokens", 0))


def lines_of(found: Explanation) -> list[str]:
    """An explanation in words."""
    lines = [f"{found.where}: {found.says}" if found.where else found.says]
    if found.divergence is not None:
        lines += [_line("first ", found.divergence.first), _line("second", found.divergence.second)]
        before = found.divergence.first.text[: found.divergence.first.at]
        lines.append(" " * len(_line("first ", Excerpt(before, 0))[:-1]) + "^")
    lines.append(f"Reused: {found.num_reused:,} of {found.num_tokens:,} tokens.")
    if found.num_lost:
        lines.append(f"Lost: {found.num_lost:,} tokens behind it that both requests have.")
    return [*lines, *([f"What to do: {found.advice}"] if found.advice else [])]


def summary_of(report: LogReport) -> list[str]:
    """A report in words, what costs most first."""
    share = report.num_reused / report.num_tokens if report.num_tokens else 0.0
    better = (report.num_reused + report.num_lost) / report.num_tokens if report.num_tokens else 0.0
    head = f"{report.num_requests:,} requests, {report.num_tokens:,} tokens: {share:.0%} can be reused"
    head += f", {better:.0%} without the misses below." if report.num_lost else "."
    return [head, *(line for one in report.findings for line in _lines_of(one))]


def _lines_of(one: Finding) -> list[str]:
    cost = f", {one.num_tokens:,} tokens" if one.num_tokens else ""
    where = f"request {one.request_index + 1}" + (f" and {one.num_requests - 1} more" if one.num_requests > 1 else "")
    lines = [f"{one.severity} {one.rule} {one.path} ({where}{cost}): {one.says}"]
    return [*lines, *([f"    {one.advice}"] if one.advice else [])]


def _pair(first: Path, second: Path | None, console: Console) -> tuple[Side, Side]:
    reader = Reader()
    earlier = _told(reader.read(first), console).sides
    if second is not None:
        return earlier[-1], _told(reader.read(second), console).sides[-1]
    if len(earlier) == 1:
        raise UnreadableRequests(f"{first} has one request in it. Name a second file, or a log of two or more.")
    return earlier[-2], earlier[-1]


def _told(file: RequestFile, console: Console) -> RequestFile:
    """The file, after saying what was left out of it."""
    if file.problems:
        console.print(f"{len(file.problems):,} requests were left out.", highlight=False)
        for problem in file.problems[:MAX_PROBLEMS_SHOWN]:
            console.print(f"  {problem}", highlight=False, markup=False)
    return file


def _line(name: str, excerpt: Excerpt) -> str:
    """An excerpt on one line: line breaks and signs that a terminal would obey are written out."""
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in excerpt.text)
    return f'  {name}  "{shown}"'
