"""Record files in one folder, a file per record, named by its key. Whole or not there.

    written as   <random>.part   ->  fsync  ->  renamed to   <key in hex>.kv   ->  fsync of the folder

Everything here may raise OSError; the tier above decides what that means.
"""

import errno
import fcntl
import mmap
import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from anaphora.tiers.keys import KEY_BYTES, RecordKey
from anaphora.tiers.memory import Memory

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # neither a link nor a pipe is waited for
_PART, _WHOLE = ".part", ".kv"

PORTION_BYTES = 2**20
"""Written at a time past the page cache. A write through it takes the processor several times as long, and takes memory
from others; what is read again soon is in the pool anyway."""


class RecordFiles:
    """The files of one folder. Holds no state but its path: several processes may use the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_part(self, pieces: Iterable[bytes | memoryview]) -> Path:
        """Write a file that is not a record yet, and wait until it is on the disk. Leaves nothing if it fails."""
        part = self._folder / f"{uuid.uuid4().hex}{_PART}"
        descriptor = os.open(part, _WRITE, 0o600)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                _write_all(file.fileno(), pieces)
                os.fsync(file.fileno())
        except BaseException:
            self.remove_part(part)
            raise
        return part

    def make_whole(self, part: Path, key: RecordKey) -> None:
        """Give a written file its name. In one moment it is there, in place of an earlier one."""
        part.rename(self._path(key))
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, key: RecordKey, *, max_bytes: int, memory: Memory) -> memoryview:
        """Read a whole file into the memory given; no more than `max_bytes`.

        Not memory-mapped: bytes that were verified have to be the bytes that are used, and a mapped file that
        someone cuts ends the process.
        """
        descriptor = os.open(self._path(key), _READ)
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{self._path(key)} is not a file")
            data = memory.take(min(status.st_size, max_bytes))
            at = 0
            while at < len(data) and (num_read := file.readinto(data[at:])):
                at += num_read
        return data[:at]

    def remove(self, key: RecordKey) -> None:
        """Remove a record's file; nothing happens if there is none."""
        self._path(key).unlink(missing_ok=True)

    def remove_part(self, part: Path) -> None:
        part.unlink(missing_ok=True)

    def sizes(self) -> dict[RecordKey, int]:
        """Bytes of every record's file, by key. Cost: one look at each file."""
        return {key: path.stat().st_size for path, key in self._listed() if key is not None}

    def leftovers(self) -> list[Path]:
        """Files that are no records: parts of what was being written, and what others put here."""
        return [path for path, key in self._listed() if key is None]

    def _listed(self) -> Iterator[tuple[Path, RecordKey | None]]:
        for path in self._folder.iterdir():
            yield path, _key_of(path)

    def _path(self, key: RecordKey) -> Path:
        return self._folder / f"{key.hex()}{_WHOLE}"


def _key_of(path: Path) -> RecordKey | None:
    if path.suffix != _WHOLE or path.is_symlink() or not path.is_file():
        return None
    try:
        key = bytes.fromhex(path.stem)
    except ValueError:
        return None
    return RecordKey(key) if len(key) == KEY_BYTES and path.stem == key.hex() else None


def _write_all(descriptor: int, pieces: Iterable[bytes | memoryview]) -> None:
    """Write pieces one after another, whole portions of them past the page cache where the file system can."""
    portion = np.frombuffer(mmap.mmap(-1, PORTION_BYTES), dtype=np.uint8)  # page-aligned, as the disk wants it
    at = 0
    for piece in pieces:
        left = np.frombuffer(piece, dtype=np.uint8)
        while left.size:
            taken = min(left.size, PORTION_BYTES - at)
            np.copyto(portion[at : at + taken], left[:taken])
            at, left = at + taken, left[taken:]
            if at == PORTION_BYTES:
                _write_past_the_cache(descriptor, portion.data)
                at = 0
    _write(descriptor, portion.data[:at])


def _write_past_the_cache(descriptor: int, data: memoryview) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        num_written = os.write(descriptor, data)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        num_written = 0  # this file system has no such way
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    _write(descriptor, data[num_written:])


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
