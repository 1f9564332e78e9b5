"""Real processes, killed with SIGKILL while they store, and several at once in one folder.

After each kill the folder is opened again: nothing wrong in it, nothing left over, under its cap.
"""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from disk_worker import CAP_BYTES, record_of
from records_world import same

from anaphora.tiers.disk import DiskTier
from anaphora.tiers.keys import RecordKey
from anaphora.tiers.record import Record

WORKER = Path(__file__).with_name("disk_worker.py")


def start(folder: Path, *, seed: int, num_steps: int = 1_000_000) -> subprocess.Popen[str]:
    command = [sys.executable, str(WORKER), str(folder), str(seed), str(num_steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def killed_at_a_random_moment(worker: subprocess.Popen[str], rng: random.Random) -> str:
    """Kill it some confirmed stores and some milliseconds after its start; answer the last line that it printed."""
    assert worker.stdout is not None
    lines = [worker.stdout.readline() for _ in range(rng.randint(1, 30))]
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(timeout=rng.uniform(0.0001, 0.02))
    worker.kill()
    lines += worker.stdout.readlines()
    worker.wait()
    worker.stdout.close()
    return lines[-1].strip()


def check_after_a_kill(folder: Path) -> set[str]:
    """Open the folder as a restart does; answer the letters of all records found in it, each of them exact."""
    tier = DiskTier(folder, cap_bytes=CAP_BYTES)
    tier.check()
    keys = [RecordKey(bytes.fromhex(path.stem)) for path in (folder / "v2" / "records").iterdir()]
    found = set()
    for key in keys:
        loaded = tier.load(key)
        assert isinstance(loaded, Record), f"{loaded} after a kill"
        text = "".join(map(chr, loaded.tokens))
        assert same(loaded, record_of(text))
        found.add(text)
    assert tier.num_failures == 0
    tier.close()
    return found


@pytest.mark.parametrize("num_kills", [10, pytest.param(200, marks=pytest.mark.torture)])
def test_a_kill_at_any_moment_leaves_whole_records_and_nothing_else(tmp_path: Path, num_kills: int):
    rng = random.Random(num_kills)
    num_kept = 0
    for seed in range(num_kills):
        last = killed_at_a_random_moment(start(tmp_path, seed=seed), rng)
        found = check_after_a_kill(tmp_path)
        if last.isalpha() and last != "ready":
            assert last in found, "what was stored last is not there"
            num_kept += 1
    assert num_kept > num_kills // 3, "most kills came before anything was stored"


def test_several_processes_in_one_folder_never_see_a_wrong_record(tmp_path: Path):
    workers = [start(tmp_path, seed=seed, num_steps=150) for seed in range(3)]
    printed = [worker.communicate()[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert [lines[-1] for lines in printed] == ["done"] * 3
    assert len(check_after_a_kill(tmp_path)) > 1


@pytest.mark.parametrize("num_kills", [3, pytest.param(50, marks=pytest.mark.torture)])
def test_a_kill_does_not_disturb_the_other_process(tmp_path: Path, num_kills: int):
    rng = random.Random(num_kills)
    for seed in range(num_kills):
        other = start(tmp_path, seed=1000 + seed, num_steps=60)
        killed_at_a_random_moment(start(tmp_path, seed=seed), rng)
        assert other.communicate()[0].endswith("done\n")
        assert other.returncode == 0
    check_after_a_kill(tmp_path)
