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
SLOW = ("test_cache_properties.py", "test_pressure.py")
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
    Mutant("extent.py", "if extent.start == stop:", "if extent.start >= stop > -1:", "coalesce joins over gaps"),
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
        "return next(iter(self._readmitted or self._entries))",
        "return next(reversed(self._readmitted or self._entries))",
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
        "        position += num_within\n        break\n",
        "        position += num_within\n",
        "a walk goes on below a node that matched in part",
    ),
    Mutant("index.py", "size * position", "position", "a walk compares tokens at the wrong place"),
    Mutant(
        "index.py",
        "goes_on and position < len(tokens)",
        "position < len(tokens)",
        "the end of cached text counts as divergence",
    ),
    Mutant(
        "index.py",
        "num_within < node.num_tokens or bool(node.children)",
        "bool(node.children)",
        "divergence inside a node is not seen",
    ),
    Mutant("index.py", "reversed(pieces)", "pieces", "a path's slots come tail first"),
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
        "num_free + self._unleased.num_evictable - num_shared - num_own",
        "num_free + self._unleased.num_evictable",
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
        "cache.py",
        'if num_needed > num_available:\n            return Refusal("pool_full"',
        'if num_needed >= num_available:\n            return Refusal("pool_full"',
        "the last slot can't be had",
    ),
    Mutant("forest.py", "root = self.roots[home] = new_root(home)", "root = new_root(home)", "a new tree is forgotten"),
    Mutant("cache.py", "min(num_missing, victim.num_tokens)", "victim.num_tokens", "whole leaves are evicted"),
    Mutant(
        "cache.py",
        "            self._unleased.shrink(victim, num_evicted)\n",
        "",
        "evicted slots go on counting as evictable",
    ),
    Mutant("cache.py", "            self._drop_if_empty(parent)\n", "", "empty trees are kept after eviction"),
    Mutant("cache.py", "        self._give_back(lease.owner, duplicates)\n", "", "duplicates leak"),
    Mutant(
        "cache.py",
        "        self._give_back(lease.owner, duplicates)\n        lease.has_moved()",
        "        self._give_back(lease.owner, duplicates)",
        "adoption does not tell the lease",
    ),
    Mutant(
        "cache.py",
        "node.is_leaf and node.num_leases == 1 and",
        "node.is_leaf and",
        "a node is extended under another lease",
    ),
    Mutant(
        "cache.py",
        "not node.is_root and node.is_leaf and node.num_leases == 1",
        "not node.is_root and node.num_leases == 1",
        "an inner node is extended",
    ),
    Mutant(
        "cache.py",
        "if _ends_here_alone(node) and",
        "if False and",
        "chunks become a chain of nodes",
    ),
    Mutant("cache.py", "if found.num_within == tail.num_tokens:", "if True:", "a match inside a node pins all of it"),
    Mutant(
        "cache.py",
        "            self._unleased.split(head, tail)\n",
        "            self._unleased.split(head, tail)\n            policy = self._unleased._rank_of(tail).policy\n"
        "            policy.withdraw(tail)\n            policy.admit(tail)\n",
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
        "        self._give_back(lease.owner, lease.private)\n        released",
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
        "        and len(above.children) == 1\n",
        "",
        "a parent of two absorbs a child",
    ),
    Mutant("cache.py", "<= MERGE_LIMIT", "<= 0", "nodes are never joined"),
    Mutant(
        "cache.py",
        "        and above.num_tokens + node.num_tokens <= MERGE_LIMIT\n",
        "",
        "nodes of any length are joined",
    ),
    Mutant(
        "cache.py",
        "            if node.is_cleared:\n                self._drop(node)",
        "            if False:\n                self._drop(node)",
        "a cleared node becomes evictable",
    ),
    Mutant(
        "cache.py",
        "            if node.num_held or node.parent is None:",
        "            if node.parent is None:",
        "clear frees leased slots",
    ),
    Mutant(
        "cache.py", "if not fresh.size or lease.node.is_cleared:", "if not fresh.size:", "a cleared lease says it wrote"
    ),
    Mutant(
        "cache.py",
        "self._listener(Evicted(victim.namespace, num_evicted, ",
        "self._listener(Evicted(victim.namespace, victim.num_tokens, ",
        "an eviction tells what is left",
    ),
    Mutant(
        "cache.py",
        "place_in(victim, victim.num_tokens - num_evicted)",
        "place_in(victim, 0)",
        "an eviction is placed at the start of the node",
    ),
    Mutant("fates.py", "event.asker != event.namespace", "False", "all room goes to one's own"),
    Mutant("fates.py", "found.num_tokens > num_reused - position", "True", "an eviction reaches further than it did"),
    Mutant(
        "index.py",
        "before = above.tokens[-num_missing:].tobytes() + before",
        "before = above.tokens[:num_missing].tobytes() + before",
        "a place ends at a node",
    ),
    Mutant(
        "cache.py",
        "fresh = fresh[found.num_tokens :]",
        "fresh = fresh[found.num_within :]",
        "publish skips as much as the last node matched",
    ),
    Mutant("cache.py", "while not pool.has_run(num_slots) and", "while False and", "only what is needed is evicted"),
    Mutant(
        "cache.py",
        "while not pool.has_run(num_slots) and",
        "while True and",
        "more is evicted although there is a run",
    ),
    Mutant("cache.py", "num_slots + self._num_slack", "pool.num_slots", "everything is evicted for a long run"),
    Mutant("cache.py", "spare[1], EVICT_STEP)", "spare[1])", "a long leaf is not evicted in steps"),
    Mutant(
        "cache.py",
        "        node.num_leases -= 1  # num_held stays",
        "        # num_held stays",
        "a lease that moved down still counts above",
    ),
    # lifetimes
    Mutant(
        "index.py", "head.num_kept = 1 if self.num_kept else 0", "head.num_kept = 0", "a split drops the head's promise"
    ),
    Mutant(
        "index.py",
        "head.num_kept = 1 if self.num_kept else 0",
        "head.num_kept = self.num_kept",
        "a split counts promises of the tail for the head",
    ),
    Mutant(
        "promise.py", "self.until = now + self.lifetime_s", "self.until = self.until or now", "reading renews nothing"
    ),
    Mutant(
        "retention.py", "max(promise.lifetime_s, lifetime_s)", "lifetime_s", "a shorter promise replaces a longer one"
    ),
    Mutant(
        "retention.py",
        "while above is not None and not above.num_kept:",
        "while above is not None:",
        "kept twice, paid twice",
    ),
    Mutant("retention.py", "if num_new > num_left:", "if num_new >= num_left:", "the budget's last slot can't be had"),
    Mutant("retention.py", "if num_new > num_left:", "if False:", "promises have no budget"),
    Mutant("retention.py", "owner.quota - owner.num_kept:", "owner.quota:", "what a tenant was promised is forgotten"),
    Mutant("retention.py", "0 if node.is_cleared else ", "", "what was cleared is kept"),
    Mutant("retention.py", "self._due[0][0] <= now", "self._due[0][0] < now", "a promise ends late"),
    Mutant(
        "retention.py",
        "            if promise.until > now:\n                self._watch(promise)",
        "            if promise.until > now:\n                pass",
        "a renewed promise never ends",
    ),
    Mutant("retention.py", "if promise.until > now:", "if False:", "a renewed promise ends at its first time"),
    Mutant("retention.py", "or promise.is_pinned:", "and promise.is_pinned:", "a pin ends with the lifetime under it"),
    Mutant(
        "retention.py",
        "        self._watch(node.promise)\n        return self.expire(now)",
        "        return self.expire(now)",
        "what is unpinned stays for ever",
    ),
    Mutant(
        "retention.py",
        "self._unleased.lapse(lapsed)",
        "self._unleased.lapse(reversed(lapsed))",
        "paths lapse head first",
    ),
    Mutant(
        "retention.py",
        "            if not above.num_held and above.parent",
        "            if above.parent",
        "leased nodes lapse",
    ),
    Mutant(
        "eviction.py", "            if not victim.num_kept:\n", "            if True:\n", "promised nodes are evicted"
    ),
    Mutant(
        "eviction.py",
        "        if tail in self._aside:\n            self._aside.add(head)",
        "        if tail in self._aside:\n            pass",
        "the head of a split is not set aside",
    ),
    Mutant("cache.py", " and node.promise is None", "", "a promised node is extended"),
    Mutant("cache.py", "        and not above.num_kept\n", "", "a kept node absorbs what is not kept"),
    Mutant(
        "cache.py",
        "        for node in nodes:\n            self._retention.end(node)\n",
        "",
        "promises outlive what is cleared",
    ),
    Mutant(
        "policy.py",
        "        self._readmitted[entry] = None",
        "        self._entries[entry] = None",
        "what lapsed counts as used",
    ),
    # priorities
    Mutant(
        "owner.py",
        "self.ranks = dict(sorted([*self.ranks.items(), (priority, rank)]))",
        "self.ranks[priority] = rank",
        "the priority met first goes first",
    ),
    Mutant("cache.py", "        and above.priority == node.priority\n", "", "nodes of two priorities are joined"),
    Mutant("cache.py", " and node.priority == lease.priority:", ":", "low tokens become normal"),
    Mutant("cache.py", "        lease.node.priority = lease.priority\n", "", "new nodes are all normal"),
    Mutant("cache.py", "        self._raise(node, priority)\n", "", "what is reused keeps its low priority"),
    Mutant(
        "cache.py",
        "            self._raise(graft, lease.priority)\n",
        "",
        "a graft ranks below what is published in it",
    ),
    Mutant("cache.py", "        self._raise(node, lease.priority)\n", "", "what is adopted keeps its low priority"),
    Mutant("cache.py", "node.priority < priority:", "node.priority != priority:", "a low use lowers"),
    Mutant("index.py", "self.used_at, self.priority\n", "self.used_at, 0\n", "a split head is normal"),
    # tenants
    Mutant("owner.py", "self._quotas.of(tenant)", "None", "nobody has a quota"),
    Mutant(
        "owner.py",
        "max(0, self._num_unnamed - owner.num_owned)",
        "max(0, self._num_unnamed)",
        "what is shared counts against the quotas",
    ),
    Mutant(
        "owner.py",
        "best, farthest = (owner, owner.num_borrowed), excess",
        "best, farthest = (owner, owner.num_evictable), excess",
        "a borrower loses more than it borrowed",
    ),
    Mutant("owner.py", "> farthest:", "> 0:", "any borrower loses first"),
    Mutant(
        "owner.py",
        "(excess := asker.num_owned + num_wanted - asker.quota) > 0",
        "(excess := asker.num_owned - asker.quota) > 0",
        "what the asker wants does not count",
    ),
    Mutant("owner.py", "max(others, key", "min(others, key", "who is far below its quota loses first"),
    Mutant("owner.py", "if owner is not self.shared]", "]", "what is shared does not go last"),
    Mutant(
        "cache.py", "if owner.num_running and owner.num_owned", "if owner.num_owned", "an idle tenant waits for itself"
    ),
    Mutant(
        "cache.py",
        "if owner.num_running and owner.num_owned + num_needed > owner.quota:",
        "if False:",
        "a tenant takes others' share while it runs",
    ),
    Mutant(
        "cache.py",
        "self._owners.num_borrowed - owner.num_borrowed",
        "self._owners.num_borrowed",
        "a tenant borrows from itself",
    ),
    Mutant("cache.py", "lease.is_running = num_private > 0", "lease.is_running = True", "a hold counts as running"),
    Mutant(
        "eviction.py", "if found is None and asker.num_evictable:", "if found is None:", "others pay for longer runs"
    ),
    Mutant(
        "region.py",
        "        return 0\n",
        "        return min((len(p) for p in self._prefixes), default=0)\n",
        "every prompt shares",
    ),
    Mutant(
        "region.py",
        "self._prefixes.sort(key=len, reverse=True)",
        "self._prefixes.sort(key=len)",
        "the shortest region counts",
    ),
    Mutant(
        "forest.py",
        "found.node.grafts.get(namespace)\n        if graft is None:\n            return found\n",
        "next(iter(found.node.grafts.values()), None)\n        if graft is None:\n            return found\n",
        "tenants read each other below a region",
    ),
    Mutant(
        "forest.py",
        "replace(beyond, num_tokens=num_shared + beyond.num_tokens)",
        "beyond",
        "the region does not count as matched",
    ),
    Mutant(
        "index.py",
        "num_tokens or bool(node.children)",
        "num_tokens or not node.is_leaf",
        "grafts of others show as divergence",
    ),
    Mutant(
        "cache.py",
        "        if lease.num_shared <= lease.num_published and lease",
        "        if lease",
        "a region is published as a tenant's own",
    ),
    Mutant("cache.py", "        and not above.grafts\n", "", "the end of a region absorbs what follows"),
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
        tests = sorted((root / "tests").rglob("test_*.py"), key=lambda path: (path.name in SLOW, path))
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
