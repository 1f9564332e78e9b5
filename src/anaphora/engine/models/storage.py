"""Files and folders that are either whole or absent: locks, hashes, crash-safe placement.

<cache_dir>/models/<sha256>/FILE          fetched files, named by content
<cache_dir>/dequantised/<key>/            weights and tokenizer made from a GGUF file
<cache_dir>/hashes/<sha256 of path>.json  the hash of the file with this size, time and inode
<cache_dir>/locks/<name>.lock             held while one of the above is made
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_READ_BYTES = 1 << 22  # large enough that the loop costs nothing beside the hash


@contextmanager
def exclusive(cache_dir: Path, name: str) -> Iterator[None]:
    """Hold a lock that one process at a time can hold. Waits for the other; freed if the holder dies."""
    folder = cache_dir / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Give an empty folder that becomes `target` if the block ends well and vanishes if it doesn't.

    Every file is flushed to the disk before the rename, so `target` is whole after a crash too.
    An older `target` is replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield staging
        for path in staging.rglob("*"):
            flush(path)
        flush(staging)
        if target.exists():
            shutil.rmtree(target)
        staging.chmod(0o755)
        staging.rename(target)
        flush(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, staging = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(staging).replace(path)
    finally:
        Path(staging).unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Return when the file's bytes, or the folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_disk_full(error: BaseException) -> bool:
    """Say whether an error means that no more bytes fit. Safetensors' writer tells it only in words."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"os error {errno.ENOSPC}" in str(error)


def sha256_of(path: Path) -> str:
    """Hash a file's content. Cost: one read of the file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def remembered_sha256(path: Path, *, cache_dir: Path) -> str:
    """Hash a file's content, or repeat what was found when the very same file was hashed before.

    The memory is a hint that skips work: it counts only for the same path with the same size, modification
    time in nanoseconds and inode. A file changed in place under all three would go unnoticed; no tool
    that writes model files does that.

    Cost: one read of the file the first time; a stat and a small read after that.
    """
    path = path.resolve()
    stat = path.stat()
    identity = {"path": str(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "inode": stat.st_ino}
    note = cache_dir / "hashes" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"
    remembered = _read_note(note)
    if remembered.get("identity") == identity and isinstance(remembered.get("sha256"), str):
        return str(remembered["sha256"])
    found = sha256_of(path)
    write_atomically(note, json.dumps({"identity": identity, "sha256": found}))
    return found


def _read_note(note: Path) -> dict[str, object]:
    try:
        content = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
