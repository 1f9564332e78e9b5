"""Processes that are killed, folders that are damaged, disks that refuse: no answer is wrong, none is missing, and the
next start goes well. Method: real processes and real folders; calls of the file layer that fail one after another."""

import errno
import json
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from durable_world import GREEDY8, cold_judge, engine_at, records_in
from engine_world import Cold, check_receipt, random_tokens

from anaphora.engine.engine import Engine
from anaphora.tiers import disk
from anaphora.tiers.disk_index import DiskIndex
from anaphora.tiers.record_files import RecordFiles

WORKER = Path(__file__).with_name("kill_worker.py")
RNG = np.random.default_rng(7)
PROMPTS = [random_tokens(RNG, length) for length in (300, 300, 520)]


@pytest.fixture(scope="module")
def cold() -> Cold:
    return cold_judge()


def answer_all(engine: Engine, cold: Cold) -> int:
    """Ask everything and judge it; answer how many tokens came from disk."""
    num_loaded = 0
    for prompt in PROMPTS:
        answer = engine.generate(prompt, GREEDY8)
        cold.check_answer(prompt, answer.completions[0].token_ids)
        check_receipt(answer)
        num_loaded += answer.receipt.num_loaded_tokens
    return num_loaded


@pytest.mark.parametrize("num_kills", [6, pytest.param(200, marks=pytest.mark.torture)])
def test_a_kill_at_any_moment_costs_no_answer_and_no_start(tmp_path: Path, num_kills: int):
    world = {**os.environ, "PYTHONPATH": f"{WORKER.parent}:{WORKER.parents[1]}"}
    command = [sys.executable, str(WORKER), str(tmp_path), str(num_kills)]
    done = subprocess.run(command, env=world, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["num_failed"] == 0, "a record was there and could not be used"
    assert found["num_from_disk"] + found["num_loaded"] > 0
    assert found["num_records"] > 0


@pytest.mark.parametrize("num_damages", [20, pytest.param(1000, marks=pytest.mark.torture)])
def test_a_flipped_bit_or_a_cut_in_any_file_is_a_miss(
    tmp_path: Path, cold: Cold, num_damages: int, caplog: pytest.LogCaptureFixture
):
    """Between two engines one file is damaged, a record or one of the index. The next engine mends the folder."""
    rng = np.random.default_rng(num_damages)
    num_loaded = 0
    with caplog.at_level(logging.CRITICAL):
        for _ in range(num_damages):
            with engine_at(tmp_path) as engine:
                num_loaded += answer_all(engine, cold)
                assert engine.stats().num_failed == 0
            files = sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size)
            damage(files[rng.integers(len(files))], rng)
    assert num_loaded > 200 * num_damages


def damage(path: Path, rng: np.random.Generator) -> None:
    """Flip one bit, or cut the file anywhere."""
    content = bytearray(path.read_bytes())
    at = int(rng.integers(len(content)))
    if rng.random() < 0.3:
        del content[at:]
    else:
        content[at] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def refusing(owner: type, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Make every call of a method fail; answer how to count them."""
    calls = 0

    def refuse(*_: Any, **__: Any) -> None:
        nonlocal calls
        calls += 1
        raise error

    monkeypatch.setattr(owner, name, refuse)
    return lambda: calls


FULL, FORBIDDEN = OSError(errno.ENOSPC, "No space left"), OSError(errno.EACCES, "Permission denied")
REFUSALS = [
    (RecordFiles, "write_part", FULL),
    (RecordFiles, "write_part", FORBIDDEN),
    (RecordFiles, "make_whole", FULL),
    (RecordFiles, "make_whole", FORBIDDEN),
    (DiskIndex, "add", sqlite3.OperationalError("database or disk is full")),
    (DiskIndex, "introduce", sqlite3.OperationalError("database or disk is full")),
    (DiskIndex, "changing", sqlite3.OperationalError("attempt to write a readonly database")),
]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_disk_that_refuses_every_write_costs_no_answer(
    tmp_path: Path,
    cold: Cold,
    refusal: tuple[type, str, Exception],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    owner, name, error = refusal
    with engine_at(tmp_path) as engine:
        calls = refusing(owner, name, error, monkeypatch)
        assert answer_all(engine, cold) == 0
        assert engine.flush()
        stats = engine.stats()
        assert calls() > 0
        assert (stats.num_failed, stats.lower.num_disk_failures > 0) == (0, True)
        if name != "introduce":
            assert (stats.lower.num_stored_tokens, records_in(tmp_path)) == (0, [])
        monkeypatch.undo()
    warnings = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warnings) == 1
    with engine_at(tmp_path) as engine:
        answer_all(engine, cold)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), FORBIDDEN])
def test_records_that_can_not_be_read_are_computed(
    tmp_path: Path, cold: Cold, error: OSError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with engine_at(tmp_path) as engine:
        answer_all(engine, cold)
    with engine_at(tmp_path) as engine:
        calls = refusing(RecordFiles, "read", error, monkeypatch)
        assert answer_all(engine, cold) == 0
        assert engine.flush()
        # A look at the index while a write holds it is a miss: not every prompt has to come to a load.
        assert 1 <= calls() == engine.stats().lower.num_failed_loads <= len(PROMPTS)
        monkeypatch.undo()
    assert sum(one.levelno >= logging.WARNING for one in caplog.records) == 1


def test_a_folder_that_can_not_be_used_at_all_is_told_and_nothing_is_kept(
    tmp_path: Path, cold: Cold, caplog: pytest.LogCaptureFixture
):
    folder = tmp_path / "file"
    folder.write_bytes(b"in the way")
    with engine_at(folder) as engine:
        assert answer_all(engine, cold) == 0
        assert engine.flush()
        assert "can't be used" in engine.start_up_lines[-1]
        assert engine.stats().num_failed == 0
    assert sum(one.levelno >= logging.WARNING for one in caplog.records) == 1


def test_what_does_not_fit_the_cap_is_not_stored(tmp_path: Path, cold: Cold):
    with engine_at(tmp_path, cap_bytes=50_000) as engine:  # a record of 256 tokens takes 66 KB
        assert answer_all(engine, cold) == 0
        assert engine.flush()
        lower = engine.stats().lower
        assert lower.num_refused_tokens > 0
        assert lower.disk_bytes <= 50_000
        assert lower.num_disk_failures == 0
    assert disk.DiskTier(tmp_path, cap_bytes=50_000).num_failures == 0
