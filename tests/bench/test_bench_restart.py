"""The bench of restarts runs from end to end on a tiny model: real servers, and only the numbers are of no interest."""

from pathlib import Path

import pytest

from anaphora.bench.restart import WAYS, Plan, keeping_line, restart_lines

PLAN = Plan(sizes=(300,), ways=WAYS[:1], num_restarts=1, num_hits=2, num_waves=1, wave=(2, 300, 4))


def test_restarts_are_compared_with_hits_in_memory(model_folder: Path, tmp_path: Path) -> None:
    (line,) = restart_lines(str(model_folder), PLAN, cache_dir=None, flags=("--num-threads", "1"))
    assert line.value == pytest.approx(line.parts["restarted_ms"] / line.parts["memory_ms"])
    assert line.target is not None


def test_keeping_is_compared_with_not_keeping(model_folder: Path) -> None:
    line = keeping_line(str(model_folder), PLAN, cache_dir=None, kv_pool_bytes=4 * 2**20)
    assert line.value == pytest.approx(line.parts["on_tokens_per_s"] / line.parts["off_tokens_per_s"])
    assert line.parts["stored_tokens"] == 2 * 2 * 303  # a wave to warm up, and one that counts
