"""Run a benchmark and print what it found. What `anaphora bench` calls."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anaphora.bench import core_growth, core_index, transformers_door
from anaphora.bench.kernels import (
    Comparison,
    Heads,
    compare_cuts,
    compare_joining,
    compare_linears,
    compare_sharing,
    joined_shapes,
    linear_shapes,
)
from anaphora.bench.lines import Line
from anaphora.bench.machine import this_machine
from anaphora.bench.pair import plain_copy
from anaphora.bench.quality import measure_quality
from anaphora.bench.report import table_of, write_files
from anaphora.bench.restart import Plan, keeping_line, restart_lines
from anaphora.bench.steps import SharedPast, compare_shared_past, compare_steps
from anaphora.bench.suite import FULL, QUICK, run_suite
from anaphora.engine.decoder_weights import why_not_native
from anaphora.engine.models.fetch import default_cache_dir
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.native.build import NotBuilt
from anaphora.engine.native.library import Kernels, load_kernels


def show_suite(model: str, *, quick: bool, with_floor: bool, output: Path, cache_dir: Path | None) -> bool:
    """Run the main benchmark, print the table, write the files; answer whether every target was met."""
    console = Console()
    plan = dataclasses.replace(QUICK if quick else FULL, with_floor=with_floor)
    lines: list[Line] = []
    with console.status("") as status:
        for line in run_suite(
            model, plan, cache_dir=cache_dir, progress=lambda doing: status.update(f"Measuring: {doing}")
        ):
            console.print(f"{line.name}: {line.value:.4g} {line.unit}  {line.verdict}", highlight=False)
            lines.append(line)
    machine = this_machine()
    console.print(table_of(lines, machine))
    for path in write_files(lines, machine, output, name="quick" if quick else "bench"):
        console.print(f"Wrote {path}")
    return all(line.verdict != "FAIL" for line in lines)


def show_restart(model: str, *, output: Path, cache_dir: Path | None) -> bool:
    """Print what a restart costs and what keeping costs, write the files; answer whether every target was met."""
    console = Console()
    lines: list[Line] = []
    with console.status("Starting servers again and again"):
        for line in restart_lines(model, Plan(), cache_dir=cache_dir):
            console.print(f"{line.name}: {line.value:.4g} {line.unit}  {line.verdict}", highlight=False)
            lines.append(line)
        lines.append(keeping_line(model, Plan(), cache_dir=cache_dir))
    machine = this_machine()
    console.print(table_of(lines, machine))
    for path in write_files(lines, machine, output, name="restart"):
        console.print(f"Wrote {path}")
    return all(line.verdict != "FAIL" for line in lines)


def show_linears(model: str, *, cache_dir: Path | None) -> None:
    """Print packed against plain linear layers, and joined against packed ones."""
    plain = plain_copy(model, cache_dir).model
    shapes, groups = linear_shapes(plain), joined_shapes(plain)
    _print("Packed linear layers against torch.nn.functional.linear", ("packed", "F.linear"), compare_linears(shapes))
    _print("Layers that read one input, as one product or apart", ("joined", "apart"), compare_joining(groups))


def show_attention(model: str, *, cache_dir: Path | None) -> None:
    """Print halves against whole reads, and shared against separate reads."""
    spec = plain_copy(model, cache_dir).spec
    heads = Heads(spec.num_kv_heads, spec.num_heads // spec.num_kv_heads, spec.head_dim)
    _print("Reading the past in halves, or whole", ("halves", "whole"), compare_cuts(heads))
    _print("One row each of several sequences", ("together", "apart"), compare_sharing(heads))


def show_steps(model: str, *, cache_dir: Path | None) -> bool:
    """Print whole steps in each way that they can run; False where the native kernels can't run the model."""
    loaded = plain_copy(model, cache_dir)
    kernels = _usable_kernels(loaded, cache_dir)
    if kernels is None:
        return False
    table = Table(title="A step over 2,000 cached tokens", caption=this_machine().stamp, title_justify="left")
    for heading in (
        "sequences",
        "new rows",
        "one call, ms",
        "by layer, ms",
        "torch, ms",
        "one call / by layer",
        "one call / torch",
    ):
        table.add_column(heading, justify="right")
    for step in compare_steps(loaded, kernels):
        table.add_row(
            f"{step.num_sequences}",
            f"{step.num_rows:,}",
            *(f"{value:,.1f}" for value in (step.one_call_ms, step.by_layer_ms, step.torch_ms)),
            f"{step.one_call_ms / step.by_layer_ms:.2f}",
            f"{step.one_call_ms / step.torch_ms:.2f}",
        )
    Console().print(table)
    _print_shared_past(compare_shared_past(loaded, kernels))
    return True


def _print_shared_past(found: SharedPast) -> None:
    title = f"Attention of a decode step: {found.num_sequences} sequences, the same {found.num_past:,} tokens"
    table = Table(title=title, caption=this_machine().stamp, title_justify="left")
    for heading in ("the past", "ms", "/ read once"):
        table.add_column(heading, justify="right")
    for what, took_ms in (
        ("there once, read once", found.together_ms),
        ("there once, read by each", found.apart_ms),
        ("each has its own", found.copies_ms),
    ):
        table.add_row(what, f"{took_ms:.1f}", f"{took_ms / found.together_ms:.2f}")
    Console().print(table)


def show_quality(model: str, *, cache_dir: Path | None) -> bool:
    """Print what rounding weights costs and gains; False where the native kernels can't run the model."""
    kernels = _usable_kernels(plain_copy(model, cache_dir), cache_dir)
    if kernels is None:
        return False
    table = Table(title="Weights rounded at load", caption=this_machine().stamp, title_justify="left")
    for heading in (
        "weights",
        "kept as",
        "perplexity",
        "native",
        "native = plain",
        "= checkpoint",
        "step, ms",
    ):
        table.add_column(heading, justify="right")
    for one in measure_quality(model, kernels, cache_dir=cache_dir or default_cache_dir()):
        table.add_row(
            one.rounding,
            one.formats.removeprefix("matrices: "),
            f"{one.plain_perplexity:.4f}",
            f"{one.native_perplexity:.4f}",
            f"{one.native_agrees:.2%}",
            f"{one.checkpoint_agrees:.2%}",
            f"{one.step_ms:.1f}",
        )
    Console().print(table)
    return True


def show_core() -> None:
    """Print the index's numbers."""
    _print_values("Index", dataclasses.asdict(core_index.measure()))


def show_growth(*, largest: int, output: Path) -> bool:
    """Print how the index's costs grow, write the files; answer whether every target was met."""
    console = Console()
    sizes = [size for size in core_growth.SIZES if size < largest] + [largest]
    with console.status("") as status:
        numbers = core_growth.measure_growth(sizes=sizes, progress=lambda doing: status.update(f"Measuring: {doing}"))
    machine, lines = this_machine(), list(numbers.lines())
    console.print(table_of(lines, machine))
    for path in core_growth.write_growth(numbers, machine, output):
        console.print(f"Wrote {path}")
    return all(line.verdict != "FAIL" for line in lines)


def show_transformers(model: str, *, cache_dir: Path | None) -> None:
    """Print what a PromptCache does for `model.generate`."""
    _print_values("PromptCache", transformers_door.measure(plain_copy(model, cache_dir).model))


def _usable_kernels(loaded: LoadedModel, cache_dir: Path | None) -> Kernels | None:
    """Load the native kernels for a model; say why not if they can't run it."""
    kernels = load_kernels(cache_dir or default_cache_dir())
    reason = kernels.reason if isinstance(kernels, NotBuilt) else why_not_native(loaded)
    if isinstance(kernels, NotBuilt) or reason is not None:
        Console().print(f"Nothing to compare: the native kernels are not used, {reason}.")
        return None
    return kernels


def _print_values(title: str, values: Mapping[str, float]) -> None:
    table = Table(title=title, caption=this_machine().stamp, title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in values.items():
        table.add_row(name.replace("_", " "), f"{value:,.4g}")
    Console().print(table)


def _print(title: str, names: tuple[str, str], found: Sequence[Comparison]) -> None:
    table = Table(title=title, caption=this_machine().stamp, title_justify="left")
    table.add_column("what")
    for heading in (*(f"{name}, us" for name in names), "times as fast"):
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(one.what, f"{one.ours_us:,.0f}", f"{one.other_us:,.0f}", f"{one.gain:.2f}")
    Console().print(table)
