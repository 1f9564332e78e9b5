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
from anaphora.tiers.base import Entry, Known, Origin
from anaphora.tiers.keys import KEY_BYTES, RecordKey, Tokens, token_bytes, tokens_from

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
    size_bytes INTEGER NOT NULL, used INTEGER NOT NULL,  -- order of use: the higher, the later
    is_pinned INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS space (
    namespace BLOB PRIMARY KEY, model_digest BLOB NOT NULL, model TEXT NOT NULL, tenant TEXT
);
CREATE INDEX IF NOT EXISTS by_parent ON record (parent, namespace, tokens);
CREATE INDEX IF NOT EXISTS by_use ON record (used, size_bytes);
"""

_BEHIND = "SELECT key, tokens, size_bytes FROM record WHERE parent = ? AND namespace = ?"

_OLDEST_END = """
SELECT key FROM record AS one
WHERE key <> ? AND NOT is_pinned AND NOT EXISTS (SELECT 1 FROM record AS other WHERE other.parent = one.key)
ORDER BY used LIMIT 1
"""


class DiskIndex:
    """One connection to the index. Not safe for several threads at once. Everything may raise INDEX_ERRORS.

    Readers don't wait for who writes, nor the other way round: one connection for each is worth having.
    """

    def __init__(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite's own files follow its mode
        self._database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)

    def prepare(self) -> None:
        """Make the tables if they are not there. Raises one of INDEX_ERRORS if the index is damaged.

        Cost: one read of the index.
        """
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(_SCHEMA)
        if self._one("PRAGMA integrity_check(1)") != "ok":
            raise sqlite3.DatabaseError("the index is damaged")
        self.sizes()

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
        return _entries(self._rows(f"{_BEHIND} ORDER BY used DESC", parent, namespace))

    def neighbours(self, namespace: Namespace, parent: RecordKey, tokens: Tokens) -> list[Entry]:
        """Find the records behind `parent` whose tokens, as bytes, come right before and right after these.

        One of the two shares as many of the first tokens as any record does. Cost: O(log records).
        """
        given = token_bytes(tokens)
        before = self._rows(f"{_BEHIND} AND tokens <= ? ORDER BY tokens DESC LIMIT 1", parent, namespace, given)
        after = self._rows(f"{_BEHIND} AND tokens > ? ORDER BY tokens LIMIT 1", parent, namespace, given)
        return _entries([*before, *after])

    def known(self) -> list[Known]:
        """List all records, the one used last first."""
        rows = self._rows(
            "SELECT key, record.namespace, parent, tokens, size_bytes, is_pinned, model_digest, model, tenant "
            "FROM record LEFT JOIN space ON record.namespace = space.namespace ORDER BY used DESC"
        )
        return [_known(row) for row in rows if _are_tokens(row[3])]

    def oldest_end(self, *, keep: RecordKey) -> RecordKey | None:
        """Choose what was not used for longest among the records that none follows, other than `keep`."""
        key = self._one(_OLDEST_END, keep)
        return None if key is None else _key(key)

    def add(self, entry: Entry, *, namespace: Namespace, parent: RecordKey) -> None:
        """Enter a record as the one used last; in place of an earlier one of its key."""
        self._database.execute(
            "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?, ?, 0)",
            (entry.key, namespace, parent, token_bytes(entry.tokens), entry.size_bytes, self._next_use()),
        )

    def use(self, keys: Iterable[RecordKey]) -> None:
        """Count records as used, in this order. What is not there is passed over."""
        for key in keys:
            self._database.execute("UPDATE record SET used = ? WHERE key = ?", (self._next_use(), key))

    def pin(self, key: RecordKey) -> None:
        """Never evict a record."""
        self._database.execute("UPDATE record SET is_pinned = 1 WHERE key = ?", (key,))

    def unpin(self, key: RecordKey) -> None:
        self._database.execute("UPDATE record SET is_pinned = 0 WHERE key = ?", (key,))

    def is_pinned(self, key: RecordKey) -> bool:
        return bool(self._one("SELECT is_pinned FROM record WHERE key = ?", key))

    def introduce(self, namespace: Namespace, origin: Origin) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO space VALUES (?, ?, ?, ?)",
            (namespace, origin.model_digest, origin.model, origin.tenant),
        )

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


def _entries(rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
    return [Entry(_key(key), tokens_from(tokens), _size(size)) for key, tokens, size in rows if _are_tokens(tokens)]


def _known(row: tuple[Any, ...]) -> Known:
    key, namespace, parent, tokens, size, is_pinned, model_digest, model, tenant = row
    is_told = isinstance(model_digest, bytes) and isinstance(model, str) and isinstance(tenant, str | None)
    origin = Origin(model_digest, model, tenant) if is_told else None
    return Known(
        _key(key),
        Namespace(_key(namespace)),
        _key(parent),
        tokens_from(tokens),
        _size(size),
        origin,
        is_pinned=bool(is_pinned),
    )


def _are_tokens(value: object) -> bool:
    return isinstance(value, bytes) and len(value) % 4 == 0


def _key(value: object) -> RecordKey:
    """Damage may have changed even the type of what SQLite gives back."""
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise sqlite3.DatabaseError(f"no key: {value!r}")
    return RecordKey(value)


def _size(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise sqlite3.DatabaseError(f"no size: {value!r}")
    return value
