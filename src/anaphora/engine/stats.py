"""Counters of an engine, for `/metrics`, the dashboard and tests."""

from dataclasses import dataclass, replace


@dataclass(slots=True)
class EngineStats:
    """State now and totals since the start. `Engine.stats()` answers a copy."""

    num_waiting: int = 0  # sequences not yet started
    num_running: int = 0
    num_slots: int = 0  # = free + evictable + leased + retained
    num_free_slots: int = 0
    num_evictable_slots: int = 0
    num_leased_slots: int = 0
    num_retained_slots: int = 0  # promised to stay for a time, or pinned; part of neither of the two above
    kv_pool_bytes: int = 0
    num_requests: int = 0  # accepted
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0  # by a failed step or a passed time limit
    num_refused: int = 0  # queue full
    num_prompt_tokens: int = 0
    num_reused_tokens: int = 0
    num_computed_tokens: int = 0
    num_written_tokens: int = 0
    num_generated_tokens: int = 0
    num_evicted_tokens: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_joined: int = 0  # sequences that waited for another which computed the same tokens
    num_failed_checks: int = 0  # integrity checks of the cache that failed and emptied it

    def copy(self) -> "EngineStats":
        return replace(self)
