"""A disk that refuses costs nobody an answer. Method: each call of the file layer is made to fail in turn, and a real
limit of the kernel stands in for a full disk."""

import errno
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from records_world import make_record, same

from anaphora.tiers.base import Outcome
from anaphora.tiers.disk import DiskTier, open_disk_tier
from anaphora.tiers.disk_index import DiskIndex
from anaphora.tiers.keys import RecordKey
from anaphora.tiers.memory import Memory
from anaphora.tiers.record import Miss, MissReason, Record
from anaphora.tiers.record_files import RecordFiles

SIZE = make_record("abcde").size_bytes
WORLD = Path(__file__).parent

Changing = Callable[[DiskIndex], AbstractContextManager[None]]


class RefusingFiles(RecordFiles):
    """Files whose named operation raises, before or after it is done, while `refuses` says so."""

    def __init__(self, folder: Path, *, operation: str, error: int) -> None:
        super().__init__(folder)
        self.operation, self.error, self.refuses = operation, error, True

    def _maybe(self, operation: str) -> None:
        if self.refuses and operation == self.operation:
            raise OSError(self.error, "refused")

    def write_part(self, pieces: Iterable[bytes | memoryview]) -> Path:
        self._maybe("open")

        def cut() -> Iterator[bytes | memoryview]:
            for piece in pieces:
                yield piece
                self._maybe("write")

        return super().write_part(cut())

    def make_whole(self, part: Path, key: RecordKey) -> None:
        self._maybe("rename")
        super().make_whole(part, key)
        self._maybe("fsync")

    def read(self, key: RecordKey, *, max_bytes: int, memory: Memory) -> memoryview:
        self._maybe("read")
        return super().read(key, max_bytes=max_bytes, memory=memory)

    def remove(self, key: RecordKey) -> None:
        self._maybe("remove")
        super().remove(key)


def refusing_tier(folder: Path, *, operation: str, error: int = errno.ENOSPC) -> tuple[DiskTier, RefusingFiles]:
    records = folder / "v2" / "records"
    records.mkdir(parents=True)
    files = RefusingFiles(records, operation=operation, error=error)
    return DiskTier(folder, cap_bytes=2 * SIZE, files=files), files


def warnings_in(caplog: pytest.LogCaptureFixture) -> int:
    return sum(one.levelno >= logging.WARNING for one in caplog.records)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("operation", ["open", "write", "rename", "fsync"])
def test_a_store_that_fails_leaves_nothing_and_warns_once(
    tmp_path: Path, operation: str, error: int, caplog: pytest.LogCaptureFixture
):
    tier, files = refusing_tier(tmp_path, operation=operation, error=error)
    records = [make_record(text) for text in ("abcde", "fghij", "klmno")]
    assert [tier.store(record) for record in records] == [Outcome.FAILED] * 3
    assert (tier.num_failures, warnings_in(caplog)) == (3, 1)
    assert [tier.load(record.key) for record in records] == [Miss(MissReason.ABSENT)] * 3
    tier.check()
    files.refuses = False
    assert [tier.store(record) for record in records] == [Outcome.STORED] * 3
    tier.check()
    tier.close()


def test_a_record_that_can_not_be_read_is_a_miss_and_not_found_again(tmp_path: Path):
    tier, files = refusing_tier(tmp_path, operation="read", error=errno.EIO)
    record = make_record("abcde")
    tier.store(record)
    assert tier.load(record.key) == Miss(MissReason.UNREADABLE)
    files.refuses = False
    assert not tier.has(record.key)
    assert tier.store(record) is Outcome.STORED
    assert isinstance(tier.load(record.key), Record)
    tier.close()


def test_a_damaged_record_that_can_not_be_removed_is_still_not_found_again(tmp_path: Path):
    tier, _ = refusing_tier(tmp_path, operation="remove", error=errno.EACCES)
    record = make_record("abcde")
    tier.store(record)
    path = tmp_path / "v2" / "records" / f"{record.key.hex()}.kv"
    path.write_bytes(b"damaged")
    assert tier.load(record.key) == Miss(MissReason.TRUNCATED)
    assert not tier.has(record.key)
    assert tier.following(record.namespace, record.parent) == []
    assert path.exists()
    assert tier.store(record) is Outcome.STORED
    loaded = tier.load(record.key)
    assert isinstance(loaded, Record)
    assert same(loaded, record)
    tier.close()


def test_what_can_not_be_removed_still_counts_under_the_cap(tmp_path: Path):
    tier, _ = refusing_tier(tmp_path, operation="remove", error=errno.EACCES)
    records = [make_record(text) for text in ("abcde", "fghij", "klmno")]
    assert [tier.store(record) for record in records] == [Outcome.STORED, Outcome.STORED, Outcome.FAILED]
    assert not tier.delete(records[0].key)
    assert tier.size_bytes == 2 * SIZE
    tier.check()
    tier.close()


@pytest.mark.parametrize("refused", ["add", "remove", "use", "size_bytes"])
def test_an_index_that_refuses_a_change_fails_the_store_and_nothing_else(
    tmp_path: Path, refused: str, monkeypatch: pytest.MonkeyPatch
):
    tier = DiskTier(tmp_path, cap_bytes=2 * SIZE)
    kept = [make_record("abcde"), make_record("fghij")]
    for record in kept:
        tier.store(record)
    with monkeypatch.context() as patched:
        patched.setattr(DiskIndex, refused, _full)
        assert tier.store(make_record("klmno")) is Outcome.FAILED
        assert tier.num_failures >= 1
    for record in kept:
        loaded = tier.load(record.key)
        assert isinstance(loaded, Miss) or same(loaded, record)
    tier.close()
    tier = DiskTier(tmp_path, cap_bytes=2 * SIZE)
    tier.check()
    tier.close()


def test_a_change_that_fails_at_its_end_leaves_no_file_without_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tier, record = DiskTier(tmp_path, cap_bytes=2 * SIZE), make_record("abcde")
    with monkeypatch.context() as patched:
        patched.setattr(DiskIndex, "changing", _changing_that_fails_at_the_end(DiskIndex.changing))
        assert tier.store(record) is Outcome.FAILED
    assert tier.load(record.key) == Miss(MissReason.ABSENT)
    tier.check()
    assert tier.store(record) is Outcome.STORED
    tier.close()


def test_a_folder_that_can_not_be_used_is_no_tier_and_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").write_text("in the way")
    tier, record = open_disk_tier(tmp_path / "file", cap_bytes=2 * SIZE), make_record("abcde")
    assert [tier.store(record), tier.store(record)] == [Outcome.FAILED] * 2
    assert (tier.num_failures, warnings_in(caplog)) == (2, 1)
    assert tier.load(record.key) == Miss(MissReason.ABSENT)
    assert not tier.has(record.key)
    assert not tier.delete(record.key)
    assert tier.find([record.key]) == len(tier) == tier.size_bytes == tier.cap_bytes == 0
    assert tier.following(record.namespace, record.parent) == []
    tier.check()
    tier.close()


def test_a_folder_that_can_be_used_is_a_disk_tier(tmp_path: Path):
    tier = open_disk_tier(tmp_path, cap_bytes=2 * SIZE)
    assert tier.store(make_record("abcde")) is Outcome.STORED
    tier.close()


def _full(*_: object, **__: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def _changing_that_fails_at_the_end(changing: Changing) -> Changing:
    @contextmanager
    def failing(index: DiskIndex) -> Iterator[None]:
        with changing(index):
            before = index.num_records()
            yield
            if index.num_records() > before:
                _full()

    return failing


FILES_OF_A_LIMITED_SIZE = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {world!r})
from records_world import make_record, same
from anaphora.tiers.disk import DiskTier
from anaphora.tiers.record import Record
tier = DiskTier(Path({folder!r}), cap_bytes=10**9)
kept = make_record("abcde")
print(tier.store(kept).value)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
print(sorted({{tier.store(make_record(text * 200)).value for text in "fghij"}}), tier.num_failures)
loaded = tier.load(kept.key)
print(isinstance(loaded, Record) and same(loaded, kept))
tier.close()
"""


@pytest.mark.parametrize("limit", [0, 5000])
def test_a_kernel_that_refuses_to_write_any_more_is_survived(tmp_path: Path, limit: int):
    """At 0 not even SQLite can write; at 5,000 bytes a record's file is cut in its middle."""
    code = FILES_OF_A_LIMITED_SIZE.format(world=str(WORLD), folder=str(tmp_path), limit=limit)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "stored"
    assert done.stdout.splitlines()[1].startswith("['failed'] ")
    assert done.stderr.count("this is said once") == 1, done.stderr
    tier = DiskTier(tmp_path, cap_bytes=10**9)
    tier.check()
    assert isinstance(tier.load(make_record("abcde").key), Record)
    tier.close()
