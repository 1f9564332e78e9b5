"""The file that tells after a restart which openings were seen before: digests, end to end, newest last."""

import logging
import os
from pathlib import Path

from anaphora.explain.seen import DIGEST_BYTES, MAX_DIGESTS, Seen

logger = logging.getLogger("anaphora.api")

MAX_BYTES = DIGEST_BYTES * MAX_DIGESTS


class SeenFile:
    """A file that digests are appended to. Whatever goes wrong with it is told once and costs nobody an answer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.earlier: tuple[bytes, ...] = ()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.earlier = _read(path)
            self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        except OSError as error:
            logger.warning("what was seen before a restart is not remembered: %s", error)

    def append(self, digests: bytes) -> None:
        """Add digests at the end, before this returns: they outlive a process that is killed."""
        if self._file is None:
            return
        try:
            os.write(self._file, digests)
        except OSError as error:
            logger.warning("what was seen is no longer written to %s: %s", self._path, error)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def open_seen(path: Path, *, model_digest: bytes) -> tuple[Seen, SeenFile]:
    """What earlier processes that served a model have seen, and the file that goes on with it."""
    file = SeenFile(path)
    return Seen(file.earlier, model_digest=model_digest, keep=file.append), file


def _read(path: Path) -> tuple[bytes, ...]:
    """The newest digests of the file. One twice as long as can be used is cut first."""
    data = path.read_bytes() if path.exists() else b""
    data = data[: len(data) - len(data) % DIGEST_BYTES]
    kept = data[-MAX_BYTES:]
    if len(data) > 2 * MAX_BYTES:
        shorter = path.with_suffix(".new")
        shorter.write_bytes(kept)
        shorter.replace(path)
    return tuple(kept[start : start + DIGEST_BYTES] for start in range(0, len(kept), DIGEST_BYTES))
