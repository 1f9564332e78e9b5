"""Engines on one folder, each a process of its own, killed under load. Run by the tests beside it.

    python kill_worker.py FOLDER NUM_KILLS

Forks a process that starts an engine and asks it one prompt after another, and kills it at a random moment: again and
again. Each answer is compared with the cold model's. At the end an engine that nobody kills answers all prompts, and
the folder is looked over. Prints what happened as JSON.
"""

import json
import logging
import os
import random
import select
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from durable_world import GREEDY8, MAX_CONTEXT, LoadingIsFaster, cold_judge

from anaphora.core.namespace import namespace_of
from anaphora.engine.engine import Engine
from anaphora.engine.request import DEFAULT_TENANT
from anaphora.engine.settings import EngineSettings
from anaphora.testing.random_models import random_model
from anaphora.tiers.disk import DiskTier

RECORD_BYTES = 256 * 256
CAP_BYTES = 12 * RECORD_BYTES
WRONG, NO_START = 3, 4


def prompts_of(rng: np.random.Generator) -> list[np.ndarray]:
    """Make prompts that share openings, more than pool and folder hold."""
    trunks = [rng.integers(0, 256, 600).astype(np.int32) for _ in range(4)]
    ends = [(trunk, length) for trunk in trunks for length in (40, 256, 300, 520, 600)]
    return [np.concatenate([trunk[:length], rng.integers(0, 256, 9).astype(np.int32)]) for trunk, length in ends]


def engine_on(folder: Path) -> Engine:
    loaded = random_model("llama", max_context=MAX_CONTEXT)
    size_bytes = 900 * loaded.spec.kv_bytes_per_token(loaded.dtype)
    settings = EngineSettings(
        kv_pool_bytes=size_bytes, num_threads=1, disk_cache_bytes=CAP_BYTES, disk_cache_dir=folder
    )
    engine = Engine(loaded, settings)
    assert engine._durable is not None
    engine._durable._rates = LoadingIsFaster()
    engine.preload()
    return engine


def work(folder: Path, prompts: list[np.ndarray], *, seed: int, pipe: int) -> None:
    """Ask until killed. Tells of the start, and of each answer that came from disk."""
    judge = cold_judge()
    try:
        engine = engine_on(folder)
    except BaseException:
        logging.exception("no start")
        os._exit(NO_START)
    os.write(pipe, b"s")
    rng = random.Random(seed)
    while True:
        prompt = rng.choice(prompts)
        answer = engine.generate(prompt, GREEDY8)
        try:
            judge.check(prompt, answer, max_tokens=8)
        except AssertionError:
            logging.exception("wrong")
            os._exit(WRONG)
        os.write(pipe, b"d" if answer.receipt.num_loaded_tokens else b"c")


def killed_once(folder: Path, prompts: list[np.ndarray], rng: random.Random) -> str:
    """Start a process and kill it; answer what it told. Exits if it ended by itself."""
    seed, (reader, writer) = rng.randrange(2**32), os.pipe()
    pid = os.fork()
    if not pid:
        work(folder, prompts, seed=seed, pipe=writer)
    os.close(writer)
    told, num_wanted = b"", rng.randint(0, 25)
    while len(told) < num_wanted and (piece := os.read(reader, 1)):
        told += piece
    select.select([], [], [], rng.uniform(0, 0.03))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(reader)
    if not os.WIFSIGNALED(status):
        sys.exit(f"a process ended by itself with {os.waitstatus_to_exitcode(status)}")
    return told.decode()


def last_look(folder: Path, prompts: list[np.ndarray]) -> dict[str, int]:
    """Answer everything once more; then see that the folder holds whole records, their rows, and nothing else."""
    judge = cold_judge()
    with engine_on(folder) as engine:
        for prompt in prompts:
            judge.check(prompt, engine.generate(prompt, GREEDY8), max_tokens=8)
        lower = engine.stats().lower
    tier = DiskTier(folder, cap_bytes=CAP_BYTES)
    tier.check()
    space = namespace_of(model_digest=engine.spec.digest, tenant=DEFAULT_TENANT)
    num_records = sum(one.namespace == space for one in tier.all())
    tier.close()
    return {"num_loaded": lower.num_loaded_tokens, "num_failed": lower.num_failed_loads, "num_records": num_records}


def main(folder: Path, num_kills: int) -> None:
    torch.set_num_threads(1)
    rng, prompts = random.Random(num_kills), prompts_of(np.random.default_rng(num_kills))
    told = [killed_once(folder, prompts, rng) for _ in range(num_kills)]
    found = last_look(folder, prompts)
    answers = "".join(told)
    found |= {"num_computed": answers.count("c"), "num_from_disk": answers.count("d"), "num_starts": answers.count("s")}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
