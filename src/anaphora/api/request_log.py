"""One JSON line for each answered request: who, which model, what it used, why it missed. Of what was said, nothing,
unless bodies are asked for.

`anaphora cost` reads it; with bodies, `anaphora explain` and `anaphora lint` do. A full file is set aside: FILE.1 is
the newest of the older ones. What can't be written is told in the server's log and costs nobody an answer.
"""

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anaphora.errors import SettingsError

logger = logging.getLogger("anaphora.api")

MAX_BYTES = 64 * 2**20
NUM_OLDER = 5


class RequestLog:
    """A file that lines are appended to. Belongs to the event loop."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, with_bodies: bool = False) -> None:
        self.with_bodies = with_bodies
        self._max_bytes = max_bytes
        try:
            self._path = path.expanduser()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise SettingsError(f"request_log = {str(path)!r} can't be written: {error.strerror or error}.") from None

    def write(self, entry: dict[str, Any], body: Mapping[str, Any] | None = None) -> None:
        """Append one line, with the time now and, where that is asked for, the body as it was sent."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}
        if self.with_bodies and body is not None:
            line["body"] = body
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"
        try:
            if self._num_bytes and self._num_bytes + len(text) > self._max_bytes:
                self._set_aside()
            self._num_bytes += self._file.write(text)
        except (OSError, ValueError) as error:
            logger.error("request log: %s", error)

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        number = os.open(self._path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)  # what is new is its owner's alone
        self._file = os.fdopen(number, "a", encoding="utf-8", buffering=1)
        self._num_bytes = self._path.stat().st_size

    def _set_aside(self) -> None:
        """Rename what is full, the oldest going, and begin anew. Goes on with the full file where that fails."""
        older = [self._path.with_name(f"{self._path.name}.{number}") for number in range(1, NUM_OLDER + 1)]
        self._file.close()
        try:
            for one, next_one in zip(older[-2::-1], older[:0:-1], strict=True):
                if one.exists():
                    one.replace(next_one)
            self._path.replace(older[0])
        finally:
            self._open()
