"""Real texts that workloads are made of: an agent's tools, policies and conversations, worked examples, dialogues.

NOTICE says whose they are.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from anaphora.bench.load.calls import Message, Tool

_QUESTION = re.compile(r"^Q: (.*?)\nA: ", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Desk:
    """What an agent works with, and recorded conversations of one."""

    policy: str
    tools: tuple[Tool, ...]
    conversations: tuple[tuple[Message, ...], ...]


@dataclass(frozen=True, slots=True)
class Material:
    airline: Desk
    retail: Desk
    examples: Mapping[str, str]  # subject -> five questions with worked answers
    dialogues: tuple[tuple[str, ...], ...]  # what users said, turn by turn

    def questions_beside(self, subject: str | None) -> list[str]:
        """Give the questions of every other subject, with their choices."""
        others = [text for name, text in self.examples.items() if name != subject]
        return [question for text in others for question in _QUESTION.findall(text)]

    def paragraphs(self) -> list[str]:
        """Give everything that is prose, cut where it has empty lines."""
        texts = (self.airline.policy, self.retail.policy, *self.examples.values())
        return [paragraph for text in texts for paragraph in text.strip().split("\n\n")]


def load_material() -> Material:
    """Read the files that come with the package.

    Cost: 240 kB of JSON.
    """
    desks = _data("agents")
    return Material(
        airline=_desk(desks["airline"]),
        retail=_desk(desks["retail"]),
        examples=_data("examples"),
        dialogues=tuple(tuple(turns) for turns in _data("dialogues")),
    )


def _desk(found: Mapping[str, Any]) -> Desk:
    return Desk(found["policy"], tuple(found["tools"]), tuple(tuple(talk) for talk in found["conversations"]))


def _data(name: str) -> Any:
    return json.loads((files("anaphora.bench.load") / "data" / f"{name}.json").read_text(encoding="utf-8"))
