"""Who uses a folder: any number of processes at once; the first of them may sweep it.

    gate    held by whoever is just opening the folder     one after the other
    users   shared by all that have it open                whoever gets it alone is the first

Both are locks of the kernel: they end with the process, however it ends.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class FolderLock:
    """A share in the use of a folder, until `close`."""

    def __init__(self, folder: Path) -> None:
        self._gate_path = folder / "gate.lock"
        self._users = os.open(folder / "users.lock", _FLAGS, 0o600)

    @contextmanager
    def entering(self) -> Iterator[bool]:
        """Take a share. Inside, nobody else enters; the value tells whether nobody else is in."""
        gate = os.open(self._gate_path, _FLAGS, 0o600)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = True
            except BlockingIOError:
                alone = False
            yield alone
            fcntl.flock(self._users, fcntl.LOCK_SH)
        finally:
            os.close(gate)

    def close(self) -> None:
        os.close(self._users)
