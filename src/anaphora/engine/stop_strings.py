"""Find stop strings in streamed text without ever showing a piece of one. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scanned:
    text: str  # safe to show
    stop_string: str | None  # the one that was met; nothing follows it


class StopScanner:
    """Holds back text that may be the beginning of a stop string.

    Of several that match, the one that begins first wins, then the longest.
    Cost: O(text * number of stop strings), with at most the longest one's length held back.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> Scanned:
        """Take the next piece of text; answer what may be shown."""
        if not self._stops:
            return Scanned(text, None)
        held = self._held + text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            at, _, stop = min(found)
            self._held = ""
            return Scanned(held[:at], stop)
        num_held = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - num_held :]
        return Scanned(held[: len(held) - num_held], None)

    def flush(self) -> str:
        """Answer what was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Count the characters at the end of `text` that begin `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
