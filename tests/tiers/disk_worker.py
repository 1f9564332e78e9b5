"""A process that works on a folder of records until it is told to stop, or killed. Run by the tests beside it.

    python disk_worker.py FOLDER SEED NUM_STEPS

Prints `ready`, then the letters of every record whose store was confirmed, those with a `-` that it is about to
delete, and at the end `done`. Exits with an error if a load ever gives anything but the record or a miss.
"""

import random
import sys
from pathlib import Path

from records_world import make_record, same

from anaphora.tiers.disk import DiskTier
from anaphora.tiers.record import LayerShape, Layout, Record

LAYOUT = Layout("float32", (LayerShape(2, 16, 16),))
CAP_BYTES = 40_000  # some eight records: it evicts all the time


def record_of(text: str) -> Record:
    return make_record(text, layout=LAYOUT)


def text_of(rng: random.Random) -> str:
    return rng.choice("abcdefghijklmnopqrstuvwxyz") * rng.randint(1, 40)


def work(folder: Path, *, seed: int, num_steps: int) -> None:
    rng = random.Random(seed)
    tier = DiskTier(folder, cap_bytes=CAP_BYTES)
    print("ready", flush=True)
    for _ in range(num_steps):
        text = text_of(rng)
        record, doing = record_of(text), rng.random()
        if doing < 0.6:
            if tier.store(record).value in ("stored", "already stored"):
                print(text, flush=True)
        elif doing < 0.7:
            print("-" + text, flush=True)
            tier.delete(record.key)
        else:
            loaded = tier.load(record.key)
            assert not isinstance(loaded, Record) or same(loaded, record), "a wrong answer"
    assert tier.num_failures == 0
    tier.close()
    print("done", flush=True)


if __name__ == "__main__":
    work(Path(sys.argv[1]), seed=int(sys.argv[2]), num_steps=int(sys.argv[3]))
