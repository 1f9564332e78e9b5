"""One JSON line for each answered request: who, which model, what it used. Never what was said.

`anaphora cost` reads it. A line that can't be written is told in the server's log and costs nobody an answer.
"""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anaphora.errors import SettingsError

logger = logging.getLogger("anaphora.api")


class RequestLog:
    """A file that lines are appended to. Belongs to the event loop."""

    def __init__(self, path: Path) -> None:
        try:
            path = path.expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise SettingsError(f"request_log = {str(path)!r} can't be written: {error.strerror or error}.") from None

    def write(self, entry: dict[str, Any]) -> None:
        """Append one line, with the time now."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        except OSError as error:
            logger.error("request log: %s", error)

    def close(self) -> None:
        self._file.close()
