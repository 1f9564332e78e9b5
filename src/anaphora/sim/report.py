"""Show what replays found: a table, JSON, and a plot of hit rate against size."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from anaphora.errors import SettingsError
from anaphora.sim.history import History, ReuseDistances
from anaphora.sim.optimum import optimal_hits
from anaphora.sim.replay import Result
from anaphora.sim.trace import Trace

OPTIMUM = "optimum"

HEADINGS = ("policy", "size,\ntokens", "of\ndistinct", "tokens\nhit", "in whole\nblocks", "evicted", "refused")
"""In two lines each, so that the numbers of a trace of a hundred million tokens stand in 80 columns unbroken."""


@dataclass(frozen=True, slots=True)
class Study:
    """All results on one trace, with what the trace itself allows."""

    trace: Trace
    history: History
    distances: ReuseDistances
    results: tuple[Result, ...]
    optimum: Mapping[int, float]  # size -> hit rate; empty for more than one replica

    @property
    def limit(self) -> float:
        """Tokens hit, of all tokens, by a cache that is never full."""
        return 1.0 - self.history.working_set / self.history.num_tokens


def optima(history: History, sizes: Sequence[int]) -> dict[int, float]:
    """Give the optimal hit rate for each size."""
    return {size: sum(optimal_hits(history, size)) / history.num_tokens for size in sizes}


def table_of(study: Study) -> Table:
    """Lay out one row for each result, and the optimum of each size."""
    trace, history = study.trace, study.history
    title = (
        f"{trace.name}: {len(trace.requests):,} requests, {history.num_tokens:,} tokens, "
        f"{history.working_set:,} of them distinct"
    )
    caption = f"An endless cache hits {study.limit:.2%}."
    if trace.reuse == "unknown":
        caption = "This trace tells lengths only: reuse can't be judged, and every prompt was taken for new."
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "policy" else "right", overflow="fold")
    for result in study.results:
        table.add_row(
            result.policy if result.num_replicas == 1 else f"{result.policy}, {result.num_replicas} x {result.routing}",
            f"{result.size:,}",
            f"{result.size / history.working_set:.1%}",
            f"{result.hit_rate:.2%}",
            f"{result.whole_hit_rate:.2%}",
            f"{result.num_evicted:,}",
            f"{result.total.num_refused:,}",
        )
    for size, rate in study.optimum.items():
        table.add_row(OPTIMUM, f"{size:,}", f"{size / history.working_set:.1%}", f"{rate:.2%}", "", "", "", style="dim")
    return table


def as_json(studies: Sequence[Study]) -> str:
    """Everything in the tables, and what each tenant, session and replica got, for programs."""
    return json.dumps([_plain(study) for study in studies], indent=1) + "\n"


def plot(study: Study, path: Path) -> None:
    """Draw hit rate against size, a line for each policy. Raises SettingsError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError("The plot needs matplotlib: pip install 'anaphora[bench]'.") from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lines: dict[str, list[tuple[int, float]]] = {}
    for result in study.results:
        lines.setdefault(result.policy, []).append((result.size, result.hit_rate))
    if study.optimum:
        lines[OPTIMUM] = list(study.optimum.items())
    for name, points in lines.items():
        sizes, rates = zip(*sorted(points), strict=True)
        style = "k--" if name == OPTIMUM else "-"
        axes.plot(sizes, [100 * rate for rate in rates], style, marker="o", markersize=4, label=name)
    axes.axhline(100 * study.limit, color="grey", linewidth=0.8, label="endless cache")
    axes.set_xscale("log")
    axes.set_xlabel("size of the cache, tokens")
    axes.set_ylabel("tokens hit, %")
    axes.set_title(study.trace.name)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _plain(study: Study) -> dict[str, Any]:
    trace = study.trace
    return {
        "trace": trace.name,
        "num_requests": len(trace.requests),
        "num_tokens": study.history.num_tokens,
        "working_set_tokens": study.history.working_set,
        "reuse": trace.reuse,
        "endless_hit_rate": study.limit,
        "problems": [asdict(problem) for problem in trace.problems],
        "reuse_distances": asdict(study.distances),
        "optimum": [{"size": size, "hit_rate": rate} for size, rate in study.optimum.items()],
        "results": [
            asdict(result) | {"hit_rate": result.hit_rate, "whole_hit_rate": result.whole_hit_rate}
            for result in study.results
        ],
    }
