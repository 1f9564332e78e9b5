"""The disk tier: a folder of record files and their index. Outlives the process, however that ends.

    <folder>/v2/index.sqlite   what is there              changed, and files named or removed, under its write lock only
    <folder>/v2/records/       a file per record
    <folder>/v2/*.lock         who uses the folder

Several processes may use one folder. Whatever moment one is killed in, the folder holds whole records, files that
the index does not know (adopted or removed by the next sweep) and rows without a file (a miss, then removed).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from anaphora.core.namespace import Namespace
from anaphora.tiers.base import Entry, Known, Origin, Outcome, Tier
from anaphora.tiers.choice import nearest_of, of_model, with_parents_first
from anaphora.tiers.disk_index import INDEX_ERRORS, DiskIndex, is_damage
from anaphora.tiers.folder_lock import FolderLock
from anaphora.tiers.keys import START, RecordKey, Tokens, record_key
from anaphora.tiers.memory import Memory
from anaphora.tiers.no_tier import NoTier
from anaphora.tiers.record import Miss, MissReason, Record, pieces, read_record
from anaphora.tiers.record_files import RecordFiles

_log = logging.getLogger(__name__)
_REFUSED = (OSError, *INDEX_ERRORS)
_Answer = TypeVar("_Answer")


def open_disk_tier(folder: Path, *, cap_bytes: int) -> Tier:
    """Open the folder as a tier; one that keeps nothing, with a warning, if the folder can't be used."""
    try:
        return DiskTier(folder, cap_bytes=cap_bytes)
    except _REFUSED as error:
        _log.warning("The cache folder %s can't be used: %s. Nothing is kept there.", folder, error)
        return NoTier()


class DiskTier:
    """Records in a folder. `files` replaces the disk in tests.

    Raises OSError or INDEX_ERRORS if the folder can't be used at all; after that no method raises for the disk.
    """

    def __init__(self, folder: Path, *, cap_bytes: int, files: RecordFiles | None = None) -> None:
        home = folder / "v2"
        records = home / "records"
        records.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder, self._cap_bytes = folder, cap_bytes
        self._files = files or RecordFiles(records)
        self._guard = threading.Lock()  # the index as it is changed; a change waits for the disk
        self._reading = threading.Lock()  # the index as it is read
        self._noting = threading.Lock()  # what follows here
        self._used: dict[RecordKey, None] = {}  # loaded since the last change of the index, in this order
        self._unusable: set[RecordKey] = set()  # records that failed and could not be removed
        self._num_failures = 0
        self._users = FolderLock(home)
        try:
            with self._users.entering() as alone:
                self._start(home / "index.sqlite", alone=alone)
        except BaseException:
            self._users.close()
            raise

    @property
    def cap_bytes(self) -> int:
        return self._cap_bytes

    @property
    def size_bytes(self) -> int:
        return self._ask(self._lookups.size_bytes, otherwise=0)

    @property
    def num_failures(self) -> int:
        return self._num_failures

    def __len__(self) -> int:
        return self._ask(self._lookups.num_records, otherwise=0)

    def has(self, key: RecordKey) -> bool:
        return self._size_of(key) is not None

    def find(self, keys: Sequence[RecordKey]) -> int:
        for num_found, key in enumerate(keys):
            if not self.has(key):
                return num_found
        return len(keys)

    def following(self, namespace: Namespace, parent: RecordKey) -> list[Entry]:
        entries: list[Entry] = self._ask(lambda: self._lookups.following(namespace, parent), otherwise=[])
        return [
            entry
            for entry in entries
            if entry.key not in self._unusable and record_key(namespace, parent, entry.tokens) == entry.key
        ]

    def nearest(self, namespace: Namespace, parent: RecordKey, tokens: Tokens) -> Entry | None:
        near: list[Entry] = self._ask(lambda: self._lookups.neighbours(namespace, parent, tokens), otherwise=[])
        return nearest_of((entry for entry in near if entry.key not in self._unusable), tokens)

    def use(self, keys: Iterable[RecordKey]) -> None:
        with self._noting:
            for key in keys:
                self._used.pop(key, None)
                self._used[key] = None

    def introduce(self, namespace: Namespace, origin: Origin) -> None:
        self._change(lambda: self._index.introduce(namespace, origin))

    def recent(self, model_digest: bytes, *, max_bytes: int) -> list[Known]:
        """List what was used last. Cost: O(records)."""
        return with_parents_first(of_model(self.all(), model_digest), max_bytes=max_bytes)

    def all(self) -> list[Known]:
        """List all records, the one used last first. Cost: O(records)."""
        known: list[Known] = self._ask(self._lookups.known, otherwise=[])
        return [one for one in known if one.key not in self._unusable]

    def pin(self, key: RecordKey) -> bool:
        """Never evict a record, nor what is in front of it. False if the index could not be written."""
        return self._change(lambda: self._index.pin(key))

    def unpin(self, key: RecordKey) -> bool:
        """Let a record be evicted again. False if the index could not be written."""
        return self._change(lambda: self._index.unpin(key))

    def store(self, record: Record) -> Outcome:
        """Keep a record. Cost: one write of its bytes, waited for; hashing them once."""
        key, size = record.key, record.size_bytes
        if size > self._cap_bytes:
            return Outcome.TOO_LARGE
        if self.has(key):
            self.use([key])
            return Outcome.ALREADY_STORED
        try:
            with self._guard, self._index.changing():
                if not self._make_room(size, keep=record.parent):
                    return Outcome.NO_ROOM
            part = self._files.write_part(pieces(record))
            try:
                return self._enter(part, record, Entry(key, record.tokens, size))
            finally:
                self._files.remove_part(part)
        except _REFUSED as error:
            self._refused(error)
            return Outcome.FAILED

    def load(self, key: RecordKey, *, memory: Memory | None = None) -> Record | Miss:
        """Give a record back, verified. Cost: one read of its bytes; hashing them once."""
        size = self._size_of(key)
        if size is None:
            return Miss(MissReason.ABSENT)
        try:
            data = self._files.read(key, max_bytes=size + 1, memory=memory or Memory())
        except FileNotFoundError:
            found: Record | Miss = Miss(MissReason.ABSENT)
        except OSError as error:
            self._refused(error)
            found = Miss(MissReason.UNREADABLE)
        else:
            found = read_record(data, key)
        if isinstance(found, Miss):
            self._give_up(key)
        else:
            self.use([key])
        return found

    def delete(self, key: RecordKey) -> bool:
        try:
            with self._guard, self._index.changing():
                if self._index.size_of(key) is None or self._index.is_pinned(key):
                    return False
                self._drop(key)
        except _REFUSED as error:
            self._refused(error)
            return False
        return True

    def close(self) -> None:
        """Write down what was used last, and let go of the folder."""
        try:
            with self._guard, self._index.changing():
                self._write_uses()
        except _REFUSED as error:
            self._refused(error)
        self._index.close()
        with self._reading:
            self._lookups.close()
        self._users.close()

    def check(self) -> None:
        """Assert that index and files agree. Only while no process is storing or deleting."""
        with self._guard:
            known, there = self._index.sizes(), self._files.sizes()
            assert known == there, f"{len(known)} records known, {len(there)} there"
            assert sum(there.values()) <= self._cap_bytes, "more bytes than the cap"
            assert self._files.leftovers() == []

    def _start(self, path: Path, *, alone: bool) -> None:
        """Open the index and put the folder in order; with a new index if it is damaged and nobody else has it open."""
        try:
            self._put_in_order(path, alone=alone)
            return
        except INDEX_ERRORS as error:
            if not alone or not is_damage(error):
                raise
            _log.warning("The index %s is damaged (%s). It is made anew from the records.", path, error)
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        self._put_in_order(path, alone=True)

    def _put_in_order(self, path: Path, *, alone: bool) -> None:
        self._index = DiskIndex(path)
        try:
            self._index.prepare()
            with self._index.changing():
                if alone:
                    self._sweep()
                self._make_room(0, keep=START)
            self._lookups = DiskIndex(path)
        except BaseException:
            self._index.close()
            raise

    def _enter(self, part: Path, record: Record, entry: Entry) -> Outcome:
        """Name a written file and enter it, together. If that fails the file goes: nothing would count it."""
        named = False
        try:
            with self._guard, self._index.changing():
                if not self._make_room(entry.size_bytes, keep=record.parent):
                    return Outcome.NO_ROOM  # another process filled it meanwhile
                named = True
                self._files.make_whole(part, entry.key)
                self._index.add(entry, namespace=record.namespace, parent=record.parent)
                self._unusable.discard(entry.key)
        except _REFUSED:
            if named:
                self._files.remove(entry.key)
            raise
        return Outcome.STORED

    def _make_room(self, size_bytes: int, *, keep: RecordKey) -> bool:
        """Evict until that many bytes fit, but never `keep`. Within `changing`."""
        self._write_uses()
        excess = self._index.size_bytes() + size_bytes - self._cap_bytes
        while excess > 0:
            key = self._index.oldest_end(keep=keep)
            if key is None:
                return False
            excess -= self._index.size_of(key) or 0
            self._drop(key)
        return True

    def _drop(self, key: RecordKey) -> None:
        """Remove a record, file first: a row without a file is a miss, a file without a row would be adopted."""
        self._files.remove(key)
        self._index.remove(key)

    def _give_up(self, key: RecordKey) -> None:
        """Remove a record that can't be loaded; where that fails, at least find it no more."""
        try:
            with self._guard, self._index.changing():
                self._drop(key)
        except _REFUSED as error:
            self._unusable.add(key)
            self._refused(error)

    def _sweep(self) -> None:
        """Make files and index agree, while nobody else uses the folder.

        Cost: a look at each file, a read of those that the index does not know.
        """
        for path in self._files.leftovers():
            try:
                self._files.remove_part(path)
            except OSError as error:
                self._refused(error)
        known, there = self._index.sizes(), self._files.sizes()
        for key in known.keys() - there.keys():
            self._index.remove(key)
        for key, size in there.items():
            if known.get(key) != size:
                try:
                    self._adopt(key, size)
                except OSError as error:
                    self._unusable.add(key)
                    self._refused(error)

    def _adopt(self, key: RecordKey, size_bytes: int) -> None:
        """Enter a file that the index does not know if it is a whole record; else remove it."""
        record = read_record(self._files.read(key, max_bytes=size_bytes, memory=Memory()), key)
        if isinstance(record, Miss):
            self._drop(key)
        else:
            entry = Entry(key, record.tokens, size_bytes)
            self._index.add(entry, namespace=record.namespace, parent=record.parent)

    def _size_of(self, key: RecordKey) -> int | None:
        if key in self._unusable:
            return None
        return self._ask(lambda: self._lookups.size_of(key), otherwise=None)

    def _write_uses(self) -> None:
        """Uses are written with the next change, so that a load writes nothing. A kill loses them, no more."""
        with self._noting:
            used, self._used = self._used, {}
        self._index.use(used)

    def _ask(self, question: Callable[[], _Answer], *, otherwise: _Answer) -> _Answer:
        """Read the index. Never waits for who writes, in this process or another."""
        try:
            with self._reading:
                return question()
        except INDEX_ERRORS as error:
            self._refused(error)
            return otherwise

    def _change(self, change: Callable[[], None]) -> bool:
        try:
            with self._guard, self._index.changing():
                change()
        except _REFUSED as error:
            self._refused(error)
            return False
        return True

    def _refused(self, error: Exception) -> None:
        """Count a failure; warn of the first."""
        with self._noting:
            self._num_failures += 1
            first = self._num_failures == 1
        if first:
            _log.warning(
                "The cache folder %s refused: %s. Answers go on without it; this is said once, then only counted.",
                self._folder,
                error,
            )
