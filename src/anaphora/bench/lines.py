"""What a benchmark answers: lines, each one number with its target."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["PASS", "FAIL", ""]


@dataclass(frozen=True, slots=True)
class Target:
    """How large the value must be, or how small."""

    limit: float
    at_least: bool

    def met_by(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Line:
    """One result. `parts` are the numbers it was made of, named with their units last."""

    name: str
    value: float
    unit: str  # "x" for a ratio
    target: Target | None = None  # None: shown for information
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        if self.target is None:
            return ""
        return "PASS" if self.target.met_by(self.value) else "FAIL"


def at_most(limit: float) -> Target:
    return Target(limit, at_least=False)


def at_least(limit: float) -> Target:
    return Target(limit, at_least=True)
