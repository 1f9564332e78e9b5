"""Show what a load run found: a table, JSON with every request, a plot."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from anaphora.bench.lines import Line
from anaphora.bench.load.calls import RUN, Answered, Failed, WaveResult
from anaphora.bench.load.drive import Results
from anaphora.bench.load.figures import Spread, Summary, summary_of
from anaphora.bench.machine import Machine
from anaphora.bench.report import new_figure


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a run found."""

    title: str
    options: Mapping[str, Any]  # as the run took them, defaults filled in
    results: Results
    lines: Sequence[Line]
    machine: Machine

    def summaries(self) -> dict[tuple[str, str], Summary]:
        """Give what each server did in each wave, by (server, wave)."""
        return {key: summary_of(rounds) for key, rounds in self.results.waves.items()}


def tables_of(report: Report) -> list[Table]:
    """Lay out a table for each wave, with a column for each server."""
    summaries = report.summaries()
    return [_wave_table(report, wave, summaries) for wave in report.results.wave_names()]


def _wave_table(report: Report, wave: str, summaries: Mapping[tuple[str, str], Summary]) -> Table:
    title = report.title if wave == RUN else wave
    table = Table(title=title, caption=report.machine.stamp, title_justify="left", caption_justify="left")
    table.add_column("")
    columns = []
    for server in report.results.targets:
        table.add_column(server.name, justify="right", overflow="fold")
        columns.append(_column(summaries[server.name, wave]))
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _column(found: Summary) -> dict[str, str]:
    """One server's figures, by their names in the table."""
    num_asked = found.num_answered + sum(found.errors.values()) + found.num_unasked
    return {
        "answered": f"{found.num_answered} of {num_asked}",
        "first token, ms: p50 / p90 / p99": _percentiles(found.first_token),
        "each token after it, ms": _percentiles(found.token),
        "pauses between pieces, ms": _percentiles(found.gap),
        "end to end, ms": _percentiles(found.total),
        "output tokens a second": f"{found.output_tokens_per_s:.1f}",
        "requests a second": f"{found.requests_per_s:.2f}",
        "tokens of prompts": f"{found.prompt_tokens:,}",
        "of them computed": "not told" if found.computed_tokens is None else f"{found.computed_tokens:,}",
        "of them cached": "not told" if found.cached_tokens is None else f"{found.cached_tokens:,}",
    }


def _percentiles(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return " / ".join(f"{value:,.0f}" for value in (spread.p50_ms, spread.p90_ms, spread.p99_ms))


def error_lines(results: Results) -> list[str]:
    """Tell failures by server and kind, with what the server said the first time."""
    told: dict[tuple[str, str], list[str]] = {}
    for (server, _), rounds in results.waves.items():
        for one in (failed for result in rounds for failed in result.failed):
            told.setdefault((server, one.problem), []).append(one.message)
    return [
        f"{server}: {len(messages)} x {problem}{f' ({messages[0]})' if messages[0] else ''}"
        for (server, problem), messages in told.items()
    ]


def as_json(report: Report) -> str:
    """Everything in the table, every request with its times, and the machine's facts, for programs."""
    rounds, summaries = report.results.waves, report.summaries()
    found = {
        "title": report.title,
        "options": report.options,
        "machine": asdict(report.machine),
        "servers": [
            {"name": server.name, "url": server.url, "model": server.model, "is_ours": server.is_ours}
            for server in report.results.targets
        ],
        "waves": [
            {
                "server": server,
                "wave": wave,
                "summary": asdict(summary) | {"computed_tokens": summary.computed_tokens},
                "rounds": [_round(result) for result in rounds[server, wave]],
            }
            for (server, wave), summary in summaries.items()
        ],
        "lines": [
            asdict(line)
            | {"value": _number(line.value), "verdict": line.verdict}
            | {"parts": {name: _number(value) for name, value in line.parts.items()}}
            for line in report.lines
        ],
    }
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


def _number(value: float) -> float | None:
    """JSON has no word for what is not a number."""
    return None if math.isnan(value) else value


def _round(result: WaveResult) -> dict[str, Any]:
    requests: list[Answered | Failed] = sorted((*result.answered, *result.failed), key=lambda one: one.due_s)
    return {"wall_s": result.wall_s, "num_unasked": result.num_unasked, "requests": [asdict(one) for one in requests]}


def write_files(report: Report, folder: Path, *, name: str) -> list[Path]:
    """Write NAME.json and NAME.png into `folder`; answer their paths. Raises SettingsError without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    data, picture = folder / f"{name}.json", folder / f"{name}.png"
    data.write_text(as_json(report), encoding="utf-8")
    _plot(report, picture)
    return [data, picture]


def _plot(report: Report, path: Path) -> None:
    """Draw how many requests had their first token, and their end, by when; and whose tokens were computed."""
    figure = new_figure(14, 4.5)
    first, total, tokens = figure.subplots(1, 3)
    for index, ((server, wave), rounds) in enumerate(report.results.waves.items()):
        name = server if wave == RUN else f"{server}, {wave}"
        answered = [one for result in rounds for one in result.answered]
        if answered:
            _draw_shares(first, [one.first_s for one in answered], name)
            _draw_shares(total, [one.total_s for one in answered], name)
        _draw_tokens(tokens, index, name, answered)
    for axes, what in ((first, "first token"), (total, "end of the answer")):
        axes.set_xlabel(f"{what}, ms after the request was due")
        axes.set_ylabel("requests, %")
        axes.set_xscale("log")
        axes.grid(alpha=0.3)
    first.legend(frameon=False, fontsize=8)
    tokens.set_yticks(range(len(report.results.waves)), [label.get_text() for label in tokens.texts], fontsize=8)
    for label in list(tokens.texts):
        label.remove()
    tokens.invert_yaxis()
    tokens.set_xlabel("prompt tokens: computed (dark), cached (light), not told (grey)")
    figure.suptitle(f"{report.title}\n{report.machine.stamp}", fontsize=8)
    figure.savefig(path, dpi=130)


def _draw_shares(axes: Any, seconds: Sequence[float], name: str) -> None:
    times = np.sort(np.array(seconds)) * 1e3
    axes.step(times, np.arange(1, len(times) + 1) * 100 / len(times), where="post", label=name)


def _draw_tokens(axes: Any, place: int, name: str, answered: Sequence[Answered]) -> None:
    told = [one for one in answered if one.cached_tokens is not None]
    computed, cached = sum(one.computed_tokens or 0 for one in told), sum(one.cached_tokens or 0 for one in told)
    hidden = sum(one.prompt_tokens for one in answered) - computed - cached
    axes.barh(place, computed, color="tab:blue")
    axes.barh(place, cached, left=computed, color="lightsteelblue")
    axes.barh(place, hidden, left=computed + cached, color="lightgrey")
    axes.text(0, place, name)
