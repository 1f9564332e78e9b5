"""The index of a folder of records: SQLite with a write-ahead log. It tells what is there without reading a record.

It decides nothing that could be wrong: a record is verified by its own bytes when it is loaded, so that an index
that lies costs a miss.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from anaphora.core.namespace import Namespace
from anaphora.tiers.base import Entry
from anaphora.tiers.keys import KEY_BYTES, RecordKey, token_bytes, tokens_from

BUSY_TIMEOUT_S = 10.0
"""How long a change waits for another process's. Each takes milliseconds: a rename and some rows."""

INDEX_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""The second: SQLite's message quotes what is damaged, and Python can't read the message."""

_NOT_DAMAGE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}

_SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
    key BLOB PRIMARY KEY, namespace BLOB NOT NULL, parent BLOB NOT NULL, tokens BLOB NOT NULL,
    size_bytes INTEGER NOT NULL, used INTEGER NOT NULL  -- order of use: the higher, the later
);
CREATE INDEX IF NOT EXISTS by_parent ON record (parent);
CREATE INDEX IF NOT EXISTS by_use ON record (used, size_bytes);
"""

_OLDEST_END = """
SELECT key FROM record AS one
WHERE key <> ? AND NOT EXISTS (SELECT 1 FROM record AS other WHERE other.parent = one.key)
ORDER BY used LIMIT 1
"""


class DiskIndex:
    """One connection to the index. Not safe for several threads at once. Everything may raise INDEX_ERRORS."""

    def __init__(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite's own files follow its mode
        self._database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(_SCHEMA)
            if self._one("PRAGMA integrity_check(1)") != "ok":
                raise sqlite3.DatabaseError(f"{path} is damaged")
            self.sizes()
        except BaseException:
            self._database.close()
            raise

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the one right to change the folder, among all processes, and make the changes all or nothing."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def num_records(self) -> int:
        return _size(self._one("SELECT count(*) FROM record"))

    def size_bytes(self) -> int:
        """Cost: O(records)."""
        return _size(self._one("SELECT coalesce(sum(size_bytes), 0) FROM record"))

    def size_of(self, key: RecordKey) -> int | None:
        """Bytes of a record; None if it is not there."""
        size = self._one("SELECT size_bytes FROM record WHERE key = ?", key)
        return None if size is None else _size(size)

    def sizes(self) -> dict[RecordKey, int]:
        return {_key(key): _size(size) for key, size in self._rows("SELECT key, size_bytes FROM record")}

    def following(self, namespace: Namespace, parent: RecordKey) -> list[Entry]:
        rows = self._rows(
            "SELECT key, tokens, size_bytes FROM record WHERE parent = ? AND namespace = ? ORDER BY used DESC",
            parent,
            namespace,
        )
        return [
            Entry(_key(key), tokens_from(tokens), _size(size))
            for key, tokens, size in rows
            if isinstance(tokens, bytes) and len(tokens) % 4 == 0
        ]

    def oldest_end(self, *, keep: RecordKey) -> RecordKey | None:
        """Choose what was not used for longest among the records that none follows, other than `keep`."""
        key = self._one(_OLDEST_END, keep)
        return None if key is None else _key(key)

    def add(self, entry: Entry, *, namespace: Namespace, parent: RecordKey) -> None:
        """Enter a record as the one used last; in place of an earlier one of its key."""
        self._database.execute(
            "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?, ?)",
            (entry.key, namespace, parent, token_bytes(entry.tokens), entry.size_bytes, self._next_use()),
        )

    def use(self, keys: Iterable[RecordKey]) -> None:
        """Count records as used, in this order. What is not there is passed over."""
        for key in keys:
            self._database.execute("UPDATE record SET used = ? WHERE key = ?", (self._next_use(), key))

    def remove(self, key: RecordKey) -> None:
        self._database.execute("DELETE FROM record WHERE key = ?", (key,))

    def close(self) -> None:
        self._database.close()

    def _next_use(self) -> int:
        return _size(self._one("SELECT coalesce(max(used), 0) + 1 FROM record"))

    def _one(self, query: str, *values: object) -> Any:
        row = next(iter(self._rows(query, *values)), None)
        return None if row is None else row[0]

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(self._database.execute(query, values)) as cursor:
            return cursor.fetchall()


def is_damage(error: Exception) -> bool:
    """Tell whether the index itself is broken, rather than the place it lies in or the moment."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _NOT_DAMAGE


def _key(value: object) -> RecordKey:
    """Damage may have changed even the type of what SQLite gives back."""
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise sqlite3.DatabaseError(f"no key: {value!r}")
    return RecordKey(value)


def _size(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise sqlite3.DatabaseError(f"no size: {value!r}")
    return value
