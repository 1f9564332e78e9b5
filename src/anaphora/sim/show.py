"""Study traces as the command line asks for it, and print what was found. What `anaphora simulate` calls."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from anaphora.core.policy import POLICIES
from anaphora.sim.formats import Tokenizer
from anaphora.sim.history import history_of, reuse_distances
from anaphora.sim.load import load_trace
from anaphora.sim.replay import Plan, replay
from anaphora.sim.report import Study, as_json, optima, plot, table_of
from anaphora.sim.routing import Router, routers
from anaphora.sim.trace import Trace, TraceError

MAX_PROBLEMS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Wishes:
    """What to replay and how, as it was typed."""

    policies: str = "all"
    sizes: str = "1%,5%,10%,30%"
    num_replicas: int = 1
    routing: str = "affinity"
    seed: int = 0
    format_name: str | None = None
    tokenizer: Path | None = None
    session_gap_s: float = 0.0
    is_strict: bool = False
    holds_leases: bool = False


def show_studies(paths: Sequence[Path], wishes: Wishes, *, json_file: Path | None, plots: Path | None) -> None:
    """Study each trace, print a table for each, and write the files that were asked for.

    Raises TraceError for what can't be read or replayed, before anything is replayed where that is possible.
    """
    console = Console()
    policies = parse_policies(wishes.policies)
    parse_sizes(wishes.sizes, 1)
    _router(wishes)
    _check_outputs(json_file, plots)
    tokenizer = None if wishes.tokenizer is None else load_tokenizer(wishes.tokenizer)
    studies: list[Study] = []
    drawn: set[Path] = set()
    for path in paths:
        trace = load_trace(
            path,
            format_name=wishes.format_name,
            is_strict=wishes.is_strict,
            tokenizer=tokenizer,
            session_gap_s=wishes.session_gap_s,
        )
        _print_problems(trace, console)
        study = study_of(trace, policies, wishes, console=console)
        console.print(table_of(study))
        studies.append(study)
        if plots is not None:
            picture = _picture_for(path, plots, drawn)
            plot(study, picture)
            console.print(f"Wrote {picture}")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(as_json(studies), encoding="utf-8")
        console.print(f"Wrote {json_file}")


def study_of(trace: Trace, policies: Sequence[str], wishes: Wishes, *, console: Console) -> Study:
    """Replay a trace for each policy and size, with a progress bar on a terminal."""
    router = _router(wishes)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(f"{trace.name}: segments", total=len(trace.requests))
        history = history_of(trace.requests, progress=lambda: bar.advance(task))
        sizes = parse_sizes(wishes.sizes, history.working_set)
        bar.reset(task, total=len(trace.requests) * len(sizes) * len(policies))
        results = []
        start = time.perf_counter()
        for size in sizes:
            for policy in policies:
                bar.update(task, description=f"{trace.name}: {policy}, {size:,} tokens")
                plan = Plan(policy, size, wishes.num_replicas, router=router, holds_leases=wishes.holds_leases)
                results.append(replay(trace, plan, progress=lambda: bar.advance(task)))
        took_s = time.perf_counter() - start
    num_replayed = len(trace.requests) * len(results)
    console.print(
        f"{trace.name}: {num_replayed:,} requests replayed, {60 * num_replayed / took_s:,.0f} a minute.",
        highlight=False,
    )
    return Study(
        trace,
        history,
        reuse_distances(history),
        tuple(results),
        optima(history, sizes) if wishes.num_replicas == 1 else {},
    )


def parse_policies(text: str) -> list[str]:
    """Turn names with commas between into a list; `all` is every policy. Raises TraceError for an unknown one."""
    if text == "all":
        return list(POLICIES)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise TraceError(f"--policy: {name!r} is unknown. Choose from: {', '.join(POLICIES)}, or all.")
    return names


def parse_sizes(text: str, working_set: int) -> list[int]:
    """Turn `2000,10%` into sizes in tokens. Raises TraceError for what is no size, or none above zero."""
    sizes = []
    for part in text.split(","):
        number = part.strip().removesuffix("%").replace("_", "")
        try:
            value = float(number) * working_set / 100 if part.strip().endswith("%") else int(number)
        except ValueError:
            raise TraceError(f"--size: {part.strip()!r} is no number of tokens and no percentage.") from None
        if not 0 < value < float("inf"):
            raise TraceError(f"--size: a cache of {part.strip()} holds nothing. The size must be above zero.")
        sizes.append(max(int(value), 1))
    return sizes


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json. Raises TraceError if it can't be read."""
    from tokenizers import Tokenizer as FileTokenizer

    if not path.is_file():
        raise TraceError(f"--tokenizer: {path}: there is no such file.")
    try:
        is_tokenizer = "model" in json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError):
        is_tokenizer = False
    if not is_tokenizer:
        raise TraceError(f"--tokenizer: {path} is no tokenizer.json.")
    tokenizer = FileTokenizer.from_file(str(path))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _router(wishes: Wishes) -> Callable[[int], Router] | None:
    if wishes.num_replicas < 1:
        raise TraceError(f"--replicas: {wishes.num_replicas} replicas serve nothing. There must be 1 or more.")
    known = routers(wishes.seed)
    if wishes.routing not in known:
        raise TraceError(f"--routing: {wishes.routing!r} is unknown. Choose one of: {', '.join(known)}.")
    return known[wishes.routing] if wishes.num_replicas > 1 else None


def _check_outputs(json_file: Path | None, plots: Path | None) -> None:
    """See to it that results can be written, before they take minutes to find. Raises TraceError where they can't."""
    try:
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.open("a", encoding="utf-8").close()
    except OSError as error:
        raise TraceError(f"--json: {json_file} can't be written: {error.strerror}.") from None
    try:
        if plots is not None:
            plots.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"--plot: {plots} can't be a folder: {error.strerror}.") from None


def _picture_for(trace: Path, plots: Path, drawn: set[Path]) -> Path:
    """Name a trace's picture, apart from those that are drawn already."""
    picture, number = plots / f"{trace.stem}.png", 1
    while picture in drawn:
        number += 1
        picture = plots / f"{trace.stem}-{number}.png"
    drawn.add(picture)
    return picture


def _print_problems(trace: Trace, console: Console) -> None:
    if not trace.problems:
        return
    console.print(f"{trace.name}: {len(trace.problems):,} malformed lines were left out.", highlight=False)
    for problem in trace.problems[:MAX_PROBLEMS_SHOWN]:
        console.print(f"  {problem}", highlight=False)
