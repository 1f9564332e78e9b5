"""What the scheduler and the stepper ask of the tiers below the pool. Pure: no torch, no I/O.

All of it is called by the engine's thread, and none of it waits for a disk.
"""

from typing import Protocol

from anaphora.engine.sequence import Sequence


class LowerTiers(Protocol):
    """Where prompts stay when the pool lets them go. Variants: `NoLowerTiers`, and `durable.Durable`."""

    def promote(self, sequence: Sequence) -> bool:
        """See whether more of a waiting sequence is stored than stands in the pool, and load it if that is faster.

        True: it is being loaded; the sequence waits, with `is_loading` set until then.
        """

    def keep(self, sequence: Sequence) -> None:
        """Store what a sequence has published, later. Called while it has its lease."""

    def forget(self, sequence: Sequence) -> None:
        """Note that a sequence does not wait for a load any more."""

    def drop_background(self) -> bool:
        """Give up something that no request waits for, and free its slots. False: there is nothing of the kind.

        What is to be stored goes first, then what is loaded before anybody asks.
        """

    def drop_load(self) -> bool:
        """Give up loading what a request waits for, and free its slots. False: nothing is being loaded."""

    def computed(self, num_rows: int, took_s: float) -> None:
        """Note how long a step took."""


class NoLowerTiers:
    """No tiers below: what the pool lets go is gone."""

    def promote(self, sequence: Sequence) -> bool:
        return False

    def keep(self, sequence: Sequence) -> None:
        """Nowhere to keep it."""

    def forget(self, sequence: Sequence) -> None:
        """It did not wait."""

    def drop_background(self) -> bool:
        return False

    def drop_load(self) -> bool:
        return False

    def computed(self, num_rows: int, took_s: float) -> None:
        """Nothing is decided by it."""
