"""Show what was measured: a table, a JSON file, a plot."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from anaphora.bench.lines import Line
from anaphora.bench.machine import Machine
from anaphora.errors import SettingsError

_COLOURS = {"PASS": "green", "FAIL": "bold red", "": "dim"}


def table_of(lines: Sequence[Line], machine: Machine, *, title: str = "Ratios of medians from one run") -> Table:
    """Lay the lines out: value, target, verdict, and the numbers behind each."""
    table = Table(title=title, caption=machine.stamp, title_justify="left")
    table.add_column("what", overflow="fold")
    for heading in ("value", "target", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("from", overflow="fold")
    for line in lines:
        verdict = f"[{_COLOURS[line.verdict]}]{line.verdict}[/]"
        made_of = ", ".join(f"{name} {_number(value)}" for name, value in line.parts.items())
        table.add_row(line.name, f"{line.value:.4g} {line.unit}", str(line.target or ""), verdict, made_of)
    return table


def _number(value: float) -> str:
    """Three digits or more, and never an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_json(lines: Sequence[Line], machine: Machine) -> str:
    """Everything in the table and the machine's facts, for programs."""
    results = [asdict(line) | {"verdict": line.verdict, "parts": dict(line.parts)} for line in lines]
    return json.dumps({"machine": asdict(machine), "lines": results}, indent=2) + "\n"


def write_files(lines: Sequence[Line], machine: Machine, folder: Path, *, name: str) -> list[Path]:
    """Write NAME.json and NAME.png into `folder`; answer their paths. Raises SettingsError without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    data, picture = folder / f"{name}.json", folder / f"{name}.png"
    data.write_text(as_json(lines, machine), encoding="utf-8")
    _plot(lines, machine, picture)
    return [data, picture]


def new_figure(width: float, height: float) -> Any:
    """Give an empty figure of so many inches that needs no screen. Raises SettingsError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError("The plot needs matplotlib: pip install 'anaphora[bench]'.") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plot(lines: Sequence[Line], machine: Machine, path: Path) -> None:
    """Draw the milliseconds behind every ratio as pairs of bars, on a logarithmic axis."""
    timed = [(line, {n: v for n, v in line.parts.items() if "_ms" in n}) for line in lines]
    timed = [(line, parts) for line, parts in timed if parts]
    num_bars = sum(len(parts) for _, parts in timed)
    figure = new_figure(10, 1.2 + 0.32 * num_bars + 0.2 * len(timed))
    axes = figure.add_subplot()
    place, ticks = 0.0, []
    for line, parts in timed:
        for index, (name, value) in enumerate(parts.items()):
            axes.barh(place, value, height=0.85, color=("tab:blue", "tab:gray")[index % 2])
            axes.annotate(f" {_number(value)}", (value, place), va="center", fontsize=8)
            ticks.append((place, f"{name.replace('_', ' ')}  [{line.name}: {line.value:.3g} {line.unit}]"))
            place += 1
        place += 0.6
    axes.set_yticks([tick for tick, _ in ticks], [label for _, label in ticks], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds, median")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(machine.stamp, fontsize=6)
    figure.savefig(path, dpi=150)
