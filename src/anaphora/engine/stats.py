"""Counters of an engine, for `/metrics`, the dashboard and tests."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class DurableStats:
    """What went to the tiers below the pool and came back, since the start."""

    num_loaded_tokens: int = 0
    num_failed_loads: int = 0  # records that were damaged, gone or another's; each was a miss
    num_stored_tokens: int = 0
    num_dropped_tokens: int = 0  # not stored: too much was waiting, or their slots were needed
    num_refused_tokens: int = 0  # not stored: the disk refused, or had no room
    disk_bytes: int = 0
    disk_cap_bytes: int = 0
    num_disk_failures: int = 0


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
    lower: DurableStats = DurableStats()

    def copy(self) -> "EngineStats":
        return replace(self)
