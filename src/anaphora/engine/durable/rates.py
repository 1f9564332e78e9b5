"""Is loading faster than computing? Decided from what both took lately. Pure."""

LOAD_BYTES_PER_S = 5e8
PREFILL_TOKENS_PER_S = 500.0
"""Assumed until measured: a plain disk, a small model on two cores."""

WEIGHT = 0.3
"""Of a new measurement. Three of them outweigh what was thought before: disks and loads change quickly."""

FORGETTING = 0.02
"""A load that was not done measures nothing. So each refusal moves the estimate a little back to the assumed one."""

LOAD_OVERHEAD_S = 0.002
"""Two orders to the engine's thread and a thread to wake."""

MIN_MEASURED_ROWS = 64
"""Steps of fewer rows say how fast decoding is, not prefill."""


class Rates:
    """What loading and computing take on this machine. One thread at a time."""

    def __init__(self) -> None:
        self.load_bytes_per_s = LOAD_BYTES_PER_S
        self.prefill_tokens_per_s = PREFILL_TOKENS_PER_S

    def loaded(self, num_bytes: int, took_s: float) -> None:
        """Take in what a load took."""
        if num_bytes and took_s > 0:
            self.load_bytes_per_s += WEIGHT * (num_bytes / took_s - self.load_bytes_per_s)

    def computed(self, num_rows: int, took_s: float) -> None:
        """Take in what a step took."""
        if num_rows >= MIN_MEASURED_ROWS and took_s > 0:
            self.prefill_tokens_per_s += WEIGHT * (num_rows / took_s - self.prefill_tokens_per_s)

    def is_loading_faster(self, num_tokens: int, *, num_bytes: int) -> bool:
        """Say whether to load tokens, reading that many bytes for them, rather than compute them."""
        load_s = LOAD_OVERHEAD_S + num_bytes / self.load_bytes_per_s
        if load_s < num_tokens / self.prefill_tokens_per_s:
            return True
        self.load_bytes_per_s += FORGETTING * (LOAD_BYTES_PER_S - self.load_bytes_per_s)
        return False
