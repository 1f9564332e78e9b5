"""How an engine is set up. Frozen; validated where it is built (`anaphora.config`) and again by `Engine`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from anaphora.core.default_policy import DEFAULT_POLICY


@dataclass(frozen=True, slots=True)
class EngineSettings:
    cache: bool = True  # False: nothing is reused (the `NoReuse` variant of the cache)
    policy: str = DEFAULT_POLICY  # eviction policy, by name
    kv_pool_bytes: int | None = None  # hard cap of keys and values; None: a quarter of free memory, see Engine
    retention_bytes: int | None = None  # of it may be promised to stay for a time; None: a quarter
    tenant_quotas: Mapping[str, int] = field(default_factory=dict)  # tenant -> bytes of it that are its own
    default_quota_bytes: int | None = None  # of each tenant that is not named there; None: it has none
    disk_cache_bytes: int = 0  # of them may stay on disk; 0: none
    disk_cache_dir: Path | None = None  # where; None: beside the models
    disk_preload_bytes: int | None = None  # of the pool may be filled from there by `preload`; None: half of it
    max_context: int | None = None  # tokens; None: the model's own limit
    max_step_tokens: int = 2048  # tokens of one step, prefill chunks and decode together
    max_sequences: int = 64  # sequences that run at once
    queue_length: int = 256  # requests that wait; one more is refused
    num_threads: int | None = None  # None: torch's own choice
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    weights: Literal["checkpoint", "bfloat16", "int8", "int4"] = "checkpoint"  # rounded at load
    device: str = "cpu"
    kernels: Literal["auto", "native", "torch"] = "auto"  # native: compiled here, where model and machine allow
