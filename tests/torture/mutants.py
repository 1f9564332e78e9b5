"""Put deliberate bugs into the core, one at a time, and see that the core's tests find each of them.

    python tests/torture/mutants.py             all of them; exit status 1 if one survives
    python tests/torture/mutants.py trim evict   those whose description has one of the words

Each bug goes into a copy of the code in a temporary folder. A survivor is a test that is missing: write it, under a
name that says what it protects, and keep the mutant.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = Path("src/anaphora/core")
TIME_LIMIT_S = 180  # a test run takes about ten seconds; a bug that makes it hang is found too


@dataclass(frozen=True, slots=True)
class Mutant:
    """One line of code, and the wrong one to put in its place."""

    file: str
    right: str
    wrong: str
    what: str

    def apply(self, root: Path) -> None:
        """Write the bug into a copy of the code. Raises ValueError if the line is not there exactly once."""
        path = root / CORE / self.file
        source = path.read_text()
        if source.count(self.right) != 1:
            raise ValueError(f"{self.what}: {source.count(self.right)} places in {self.file} read {self.right!r}")
        path.write_text(source.replace(self.right, self.wrong))


MUTANTS = (
    # extents
    Mutant(
        "extent.py", "joined[-1].stop == extent.start", "joined[-1].stop <= extent.start", "coalesce joins over gaps"
    ),
    Mutant(
        "extent.py",
        "Extent(extent.start + num_slots, extent.length - num_slots)",
        "Extent(extent.start, extent.length - num_slots)",
        "cut gives the front's slots to the back",
    ),
    Mutant("extent.py", "(rest, *extents[index + 1 :])", "(rest,)", "cut loses the extents behind"),
    # namespaces
    Mutant(
        "namespace.py",
        'digest.update(len(value).to_bytes(8, "little") + value)',
        "digest.update(value)",
        "namespace fields are only concatenated",
    ),
    Mutant("namespace.py", '        b"salt": salt,\n', "", "the salt is left out"),
    Mutant("namespace.py", '        b"adapter": adapter_digest,\n', "", "the adapter is left out"),
    # pool
    Mutant(
        "pool.py",
        "self._remove(before)\n                start = before",
        "start = start",
        "a freed run is not joined with the one before",
    ),
    Mutant(
        "pool.py",
        "self._remove(stop)\n                stop += length_behind",
        "stop = stop",
        "a freed run is not joined with the one behind",
    ),
    Mutant(
        "pool.py",
        "index = bisect_left(self._lengths, num_slots)",
        "index = len(self._lengths) - 1",
        "the pool takes from the longest run",
    ),
    Mutant("pool.py", "min((length - num_slots) // 8, MAX_GAP)", "0", "no room is left to grow in"),
    Mutant("pool.py", "// 8, MAX_GAP)", "// 8, length)", "the room to grow in has no limit"),
    Mutant("pool.py", "if start else 0", "", "the first slots are left unused"),
    Mutant("pool.py", "(length := self._length_at.get(after)) is not None", "(length := 0)", "nothing grows in place"),
    Mutant(
        "pool.py",
        "length = self._lengths[-1]\n",
        "length = self._lengths[0]\n",
        "a fragmented pool gives its shortest runs",
    ),
    Mutant("pool.py", "longest >= min(num_slots, LONG_RUN)", "longest >= num_slots", "a long run is not enough"),
    Mutant("pool.py", "longest >= min(num_slots, LONG_RUN)", "longest >= LONG_RUN", "a run that fits is not enough"),
    Mutant("pool.py", "            self._add(run, start - run)", "            pass", "the gap in front is lost"),
    # policy
    Mutant(
        "policy.py",
        "return next(iter(self._entries))",
        "return next(reversed(self._entries))",
        "the most recent is evicted",
    ),
    Mutant(
        "policy.py",
        "        self._entries[entry] = None\n",
        "        self._entries[entry] = None\n        self._entries.move_to_end(entry, last=False)\n",
        "a used entry is evicted first",
    ),
    # index
    Mutant("index.py", "self.tokens = tokens.copy()", "self.tokens = tokens", "nodes keep the caller's buffer"),
    Mutant(
        "index.py", "head.num_held = 1 if self.num_held else 0", "head.num_held = 0", "a split drops the head's lease"
    ),
    Mutant(
        "index.py",
        "head.num_held = 1 if self.num_held else 0",
        "head.num_held = self.num_held",
        "a split counts leases of the tail for the head",
    ),
    Mutant(
        "index.py",
        "self.tokens, self.extents = self.tokens[num_tokens:].copy(), back",
        "self.tokens, self.extents = self.tokens[num_tokens:], back",
        "a split tail keeps the head's memory",
    ),
    Mutant(
        "index.py", "num_kept = self.num_tokens - num_tokens", "num_kept = num_tokens", "trim keeps what it should drop"
    ),
    Mutant("index.py", "if 2 * num_kept < memory.size:", "if False:", "a trimmed leaf keeps all its memory"),
    Mutant("index.py", "if 2 * num_kept < memory.size:", "if True:", "a trimmed leaf is copied for each token"),
    Mutant("index.py", "return first if differs[first] else length", "return length", "tokens are not compared"),
    Mutant(
        "index.py",
        "        if num_within < child.num_tokens:\n            break\n",
        "",
        "a walk goes on below a node that matched in part",
    ),
    Mutant(
        "index.py",
        "goes_on and position < len(tokens)",
        "position < len(tokens)",
        "the end of cached text counts as divergence",
    ),
    Mutant(
        "index.py",
        "num_within < node.num_tokens or not node.is_leaf",
        "not node.is_leaf",
        "divergence inside a node is not seen",
    ),
    Mutant("index.py", "for piece in reversed(pieces)", "for piece in pieces", "a path's slots come tail first"),
    Mutant(
        "index.py", "            self.is_cleared = parent.is_cleared\n", "", "nodes below a cleared one are not cleared"
    ),
    Mutant(
        "index.py",
        "coalesce((*self.extents, *extents))",
        "(*self.extents, *extents)",
        "an extended node's extents stay apart",
    ),
    # lease
    Mutant("lease.py", "        self.version += 1\n", "", "moved slots do not show in the version"),
    Mutant(
        "lease.py",
        "        self._extents = None\n\n    def check",
        "\n    def check",
        "a lease goes on naming its old slots",
    ),
    Mutant(
        "lease.py",
        "self.num_slots += count_slots(extents)",
        "self.num_slots += len(extents)",
        "a lease counts extents for slots",
    ),
    # cache
    Mutant("cache.py", "[:max_reuse]", "[:]", "max_reuse is ignored"),
    Mutant(
        "cache.py",
        "self._pool.num_free + self._num_evictable - _count_unleased(found)",
        "self._pool.num_free + self._num_evictable",
        "a match counts as room for its own lease",
    ),
    Mutant(
        "cache.py",
        "if num_owned + num_needed > self._pool.num_slots:",
        "if num_owned + num_needed >= self._pool.num_slots:",
        "a lease can't have the whole pool",
    ),
    Mutant(
        "cache.py",
        "if num_owned + num_needed > self._pool.num_slots:",
        "if num_needed > self._pool.num_slots:",
        "what a lease has already is not counted against the pool",
    ),
    Mutant(
        "cache.py", "if num_needed > num_available:", "if num_needed >= num_available:", "the last slot can't be had"
    ),
    Mutant(
        "cache.py", "        self._roots[namespace] = root\n        node", "        node", "a new tree is forgotten"
    ),
    Mutant("cache.py", "min(num_missing, victim.num_tokens)", "victim.num_tokens", "whole leaves are evicted"),
    Mutant("cache.py", "        self._num_evictable -= num_evicted\n", "", "evicted slots go on counting as evictable"),
    Mutant("cache.py", "            self._drop_if_empty(parent)\n", "", "empty trees are kept after eviction"),
    Mutant("cache.py", "        self._pool.give_back(duplicates)\n", "", "duplicates leak"),
    Mutant(
        "cache.py",
        "        self._pool.give_back(duplicates)\n        lease.has_moved()",
        "        self._pool.give_back(duplicates)",
        "adoption does not tell the lease",
    ),
    Mutant(
        "cache.py", "node.is_leaf and node.num_leases == 1:", "node.is_leaf:", "a node is extended under another lease"
    ),
    Mutant(
        "cache.py",
        "node.parent is not None and node.is_leaf and node.num_leases == 1:",
        "node.parent is not None and node.num_leases == 1:",
        "an inner node is extended",
    ),
    Mutant(
        "cache.py",
        "node.parent is not None and node.is_leaf and node.num_leases == 1:",
        "False:",
        "chunks become a chain of nodes",
    ),
    Mutant("cache.py", "if found.num_within == tail.num_tokens:", "if True:", "a match inside a node pins all of it"),
    Mutant(
        "cache.py",
        "            self._policy.split(head, tail)\n",
        "            self._policy.withdraw(tail)\n            self._policy.admit(tail)\n"
        "            self._policy.split(head, tail)\n",
        "the unused tail of a split is refreshed",
    ),
    Mutant(
        "cache.py",
        "while node.num_held == 1 and node.parent is not None:",
        "if node.num_held == 1 and node.parent is not None:",
        "only the last node of a path is leased",
    ),
    Mutant(
        "cache.py",
        "        self._pool.give_back(lease.private)\n        released",
        "        released",
        "unpublished slots leak",
    ),
    Mutant(
        "cache.py",
        "for node, above in zip_longest(released, released[1:]):",
        "for node, above in zip_longest(released[::-1], released[::-1][1:]):",
        "paths are released head first",
    ),
    Mutant(
        "cache.py",
        "return len(above.children) == 1 and node.is_leaf and above",
        "return node.is_leaf and above",
        "a parent of two absorbs a child",
    ),
    Mutant("cache.py", "<= MERGE_LIMIT", "<= 0", "nodes are never joined"),
    Mutant(
        "cache.py",
        "node.is_leaf and above.num_tokens + node.num_tokens <= MERGE_LIMIT",
        "node.is_leaf",
        "nodes of any length are joined",
    ),
    Mutant(
        "cache.py",
        "            if node.is_cleared:\n                node.detach()",
        "            if False:\n                node.detach()",
        "a cleared node becomes evictable",
    ),
    Mutant(
        "cache.py",
        "            if node.num_held or node is root:",
        "            if node is root:",
        "clear frees leased slots",
    ),
    Mutant(
        "cache.py", "if not fresh.size or lease.node.is_cleared:", "if not fresh.size:", "a cleared lease says it wrote"
    ),
    Mutant(
        "cache.py",
        "self._tell(Evicted, victim.namespace, num_evicted)",
        "self._tell(Evicted, victim.namespace, victim.num_tokens)",
        "an eviction tells what is left",
    ),
    Mutant(
        "cache.py",
        "fresh = fresh[found.num_tokens :]",
        "fresh = fresh[found.num_within :]",
        "publish skips as much as the last node matched",
    ),
    Mutant(
        "cache.py",
        "while self._num_evictable and not pool.has_run(num_slots):",
        "while False:",
        "only what is needed is evicted",
    ),
    Mutant(
        "cache.py",
        "while self._num_evictable and not pool.has_run(num_slots):",
        "while not pool.has_run(num_slots):",
        "slots are wanted where nothing is evictable",
    ),
    Mutant(
        "cache.py",
        "while self._num_evictable and not pool.has_run(num_slots):",
        "while self._num_evictable:",
        "more is evicted although there is a run",
    ),
    Mutant("cache.py", "num_slots + self._num_slack", "pool.num_slots", "everything is evicted for a long run"),
    Mutant("cache.py", "min(num_missing, EVICT_STEP)", "num_missing", "a long leaf is not evicted in steps"),
    Mutant(
        "cache.py",
        "        node.num_leases -= 1  # num_held stays",
        "        # num_held stays",
        "a lease that moved down still counts above",
    ),
    # no reuse
    Mutant("no_reuse.py", "        self._pool.give_back(lease.private)\n", "", "the variant without a cache leaks"),
    Mutant(
        "no_reuse.py",
        "if lease.num_slots + num_slots > self._pool.num_slots:",
        "if num_slots > self._pool.num_slots:",
        "the variant without a cache forgets what a lease has",
    ),
)


def main(words: list[str]) -> int:
    """Run the mutants, print one line for each, and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder)  # so that the working tree may change meanwhile
        for part in ("src", "docs", "tests/core", "tests/contracts"):
            shutil.copytree(ROOT / part, snapshot / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", snapshot)
        return _run([m for m in MUTANTS if not words or any(word in m.what for word in words)], snapshot)


def _run(mutants: list[Mutant], snapshot: Path) -> int:
    if not _tests_pass(None, snapshot):
        print("the tests fail without any mutant")
        return 1
    survivors: list[Mutant] = []
    for number, mutant in enumerate(mutants, 1):
        has_survived = _tests_pass(mutant, snapshot)
        print(f"{number:3}/{len(mutants)} {'SURVIVED' if has_survived else 'found'}  {mutant.what}", flush=True)
        if has_survived:
            survivors.append(mutant)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} found")
    return 1 if survivors else 0


def _tests_pass(mutant: Mutant | None, snapshot: Path) -> bool:
    """Run the core's tests on a copy of the code with one bug in it; the quick ones first."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        shutil.copytree(snapshot, root)
        if mutant is not None:
            mutant.apply(root)
        tests = sorted((root / "tests").rglob("test_*.py"), key=lambda path: ("properties" in path.name, path))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *map(str, tests)]
        environment = os.environ | {"PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            result = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, timeout=TIME_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        if result.returncode not in (0, 1):  # 1: a test failed; more: pytest could not run them
            print(result.stdout.decode())
        return result.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
