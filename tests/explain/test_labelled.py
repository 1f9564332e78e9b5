"""Complaints of the wild as pairs of requests, each with its one reason and its place.

Method: `labelled.json` says for each pair what was complained of (`about`: which of a list of complaints), the reason,
the part, and the byte of the part where both first differ (null: in what the template writes in front of it; -1: not
said). Pairs are explained as files are; those that need times, rules of a host or an engine that lost something are
rehearsed. Every place must be right, and nearly every reason.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from anaphora.api.recorded import RecordedReader
from anaphora.api.rehearsal import Gone, Rehearsal, Rehearsed
from anaphora.core.fates import Fate
from anaphora.explain.reasons import Explanation, Reason, explain
from anaphora.explain.why import MissReason

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("labelled.json").read_text(encoding="utf-8"))
PAIRS = [case for case in CASES if not case.get("rehearsed")]
REHEARSED = [case for case in CASES if case.get("rehearsed")]
MIN_RIGHT = 0.95
NEVER_HERE = {"retokenised", "text_grew", "text_cut", "part_added", "part_removed"}
"""Causes with tests of their own: they need a model's tokens, or are no complaint."""


def explained(case: Mapping[str, Any]) -> Explanation:
    reader = RecordedReader()
    first, second = (next(iter(reader.read(case[side]))).side for side in ("first", "second"))
    return explain(first, second)


def rehearsed(case: Mapping[str, Any]) -> Rehearsed:
    gone = case.get("gone")
    if gone is not None:
        fate = None if "fate" not in gone else Fate(*gone["fate"])
        gone = Gone(**{**gone, "fate": fate})
    rehearsal = Rehearsal(case.get("profile", "local"))
    times = case.get("at", [0.0, 1.0])
    is_first_late = case.get("overlaps", False)
    rehearsal.send(case["first"], at_s=times[0], overlaps=is_first_late, answer=case.get("answer", ""))
    return rehearsal.send(case["second"], at_s=times[1], gone=gone)


def test_the_set_is_large_and_has_every_class() -> None:
    assert len(CASES) >= 60
    assert len({case["name"] for case in CASES}) == len(CASES)
    missing = set(get_args(MissReason)) - {case["reason"] for case in REHEARSED}
    assert missing == {"not_written", "prompt_logprobs"}, "they have tests of their own"
    causes = {case["reason"] for case in PAIRS} | {case["cause"] for case in CASES if "cause" in case}
    assert set(get_args(Reason)) - causes == NEVER_HERE


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: str(case["name"]))
def test_every_place_is_right(case: Mapping[str, Any]) -> None:
    found = explained(case)
    assert found.where == case["where"]
    if case["byte"] != -1:
        assert (None if found.divergence is None else found.divergence.byte_index) == case["byte"]


def test_nearly_every_reason_is_right() -> None:
    wrong = [
        (case["name"], case["reason"], found.reason)
        for case in PAIRS
        if (found := explained(case)).reason != case["reason"]
    ]
    assert len(wrong) <= (1 - MIN_RIGHT) * len(PAIRS), wrong


@pytest.mark.parametrize("case", REHEARSED, ids=lambda case: str(case["name"]))
def test_what_happened_to_an_entry_is_told(case: Mapping[str, Any]) -> None:
    miss = rehearsed(case).miss
    assert (miss.reason, miss.level) == (case["reason"], case.get("level", "engine"))
    assert miss.where == case["where"]
    assert "cause" not in case or miss.cause == case["cause"]
    if case["byte"] is not None:
        assert miss.byte_index == case["byte"]


@pytest.mark.parametrize(
    "case", [one for one in PAIRS if one["reason"] not in ("none", "scope_changed")], ids=lambda case: str(case["name"])
)
def test_a_server_that_saw_the_first_names_the_same_cause(case: Mapping[str, Any]) -> None:
    (miss,) = rehearsed(case).account.misses
    found = explained(case)
    assert miss.reason in ("diverged", "none", "first_seen")
    if miss.reason == "diverged":
        assert (miss.cause, miss.where) == (found.reason, found.where)
        assert miss.num_lost == found.num_lost
