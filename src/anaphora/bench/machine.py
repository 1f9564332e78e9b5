"""What was measured on: facts that every result is stamped with."""

import datetime
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from anaphora import __version__


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    num_cores: int  # those this process may use
    num_threads: int  # those torch uses
    simd: str  # the widest instructions torch found
    python: str
    torch: str
    anaphora: str
    date: str  # UTC, ISO 8601

    @property
    def stamp(self) -> str:
        """One line for a table's foot."""
        return (
            f"{self.cpu}, {self.num_cores} cores, {self.simd}; torch {self.torch} with {self.num_threads} threads, "
            f"Python {self.python}, Anaphora {self.anaphora}; {self.date}"
        )


def this_machine() -> Machine:
    """Describe the machine, now."""
    return Machine(
        cpu=_cpu_name(),
        num_cores=len(os.sched_getaffinity(0)),
        num_threads=torch.get_num_threads(),
        simd=torch.backends.cpu.get_cpu_capability(),
        python=platform.python_version(),
        torch=torch.__version__,
        anaphora=__version__,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
