"""Slots that a thread beside the engine's works on, until it is done or the engine takes them back."""

import threading
from collections.abc import Callable


class Claim:
    """Work on slots, in small portions. Whoever withdraws it waits for one portion at most."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._is_withdrawn = False

    @property
    def is_withdrawn(self) -> bool:
        return self._is_withdrawn

    def withdraw(self) -> None:
        """Take the slots back: no portion runs when this returns, and none starts any more."""
        with self._busy:
            self._is_withdrawn = True

    def do(self, portion: Callable[[], None]) -> bool:
        """Do a portion of the work. False, and nothing done, if the slots were taken back."""
        with self._busy:
            if not self._is_withdrawn:
                portion()
            return not self._is_withdrawn
