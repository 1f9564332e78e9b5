"""Every policy on every trace at four sizes, as a table: `python -m anaphora.sim.experiment FOLDER [POLICY ...]`.

FOLDER holds mooncake/, weka-claude-code/, tau-bench/, bfcl/ and mmlu-cot/ as their publishers lay them out.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from anaphora.core.policy import POLICIES
from anaphora.sim import corpora
from anaphora.sim.history import history_of
from anaphora.sim.load import load_trace
from anaphora.sim.replay import replay_all
from anaphora.sim.report import optima
from anaphora.sim.trace import Trace

PARTS = (0.01, 0.05, 0.1, 0.3)
"""Sizes as parts of the distinct tokens of a trace."""


def traces_in(folder: Path) -> Iterator[Trace]:
    """Load one trace after the other."""
    yield load_trace(folder / "mooncake")
    yield load_trace(folder / "weka-claude-code")
    yield corpora.tau_bench(folder / "tau-bench")
    yield corpora.bfcl(folder / "bfcl")
    yield corpora.mmlu_cot(folder / "mmlu-cot")
    yield corpora.scan_mix()


def rows_of(trace: Trace, policies: Sequence[str], parts: Sequence[float] = PARTS) -> Iterator[str]:
    """Give a line of a Markdown table for each size: tokens hit in percent, the optimum last."""
    history = history_of(trace.requests)
    sizes = [max(int(history.working_set * part), 1) for part in parts]
    results = replay_all(trace, policies, sizes)
    bounds = optima(history, sizes)
    for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        found = results[index * len(policies) : (index + 1) * len(policies)]
        cells = [f"{100 * rate:.2f}" for rate in (*(one.hit_rate for one in found), bounds[size])]
        yield f"| {trace.name} | {part:.0%} | {' | '.join(cells)} |"


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    folder, *policies = arguments
    names = policies or list(POLICIES)
    print(f"| trace | size | {' | '.join(names)} | optimum |")
    print("|---|---|" + "---|" * (len(names) + 1))
    for trace in traces_in(Path(folder)):
        for row in rows_of(trace, names):
            print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
