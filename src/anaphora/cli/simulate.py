"""`anaphora simulate`: replay recorded workloads through the cache core, without a model."""

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    traces: Annotated[list[Path], typer.Argument(help="Trace files, or folders of files that ran side by side.")],
    *,
    policy: Annotated[str, typer.Option(help="Policies, with commas between, or all.")] = "all",
    size: Annotated[
        str, typer.Option(help="Sizes of one replica, with commas between: tokens, or percent of the distinct tokens.")
    ] = "1%,5%,10%,30%",
    replicas: Annotated[int, typer.Option(help="Number of caches.")] = 1,
    routing: Annotated[str, typer.Option(help="round-robin, random, affinity or affinity-cap.")] = "affinity",
    seed: Annotated[int, typer.Option(help="Seed of random routing.")] = 0,
    format_: Annotated[
        str | None, typer.Option("--format", help="mooncake, bailian, agent, tokens, bodies or azure; else told.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json for request bodies; else a byte is a token.")
    ] = None,
    session_gap: Annotated[float, typer.Option(help="Seconds from one file of a folder to the next.")] = 0.0,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first malformed line.")] = False,
    hold: Annotated[bool, typer.Option("--hold", help="Hold leases for as long as the recorded calls took.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write everything to this file.")] = None,
    plots: Annotated[Path | None, typer.Option("--plot", help="Also draw the hit rates, into this folder.")] = None,
) -> None:
    """Replay traces through the cache and report what each policy would hit, beside the offline optimum."""
    from anaphora.sim.show import Wishes, show_studies

    wishes = Wishes(
        policies=policy,
        sizes=size,
        num_replicas=replicas,
        routing=routing,
        seed=seed,
        format_name=format_,
        tokenizer=tokenizer,
        session_gap_s=session_gap,
        is_strict=strict,
        holds_leases=hold,
    )
    show_studies(traces, wishes, json_file=json_file, plots=plots)
