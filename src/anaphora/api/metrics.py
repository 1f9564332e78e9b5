"""What Prometheus is told. A registry per server, so that two servers in one process don't mix."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from anaphora.api.account import Account
from anaphora.engine.stats import EngineStats

_TTFT_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)

_COUNTERS = {
    "num_requests": ("anaphora_engine_requests", "Requests the engine accepted."),
    "num_finished": ("anaphora_engine_finished", "Requests that ran to their end."),
    "num_aborted": ("anaphora_engine_aborted", "Requests whose client left."),
    "num_failed": ("anaphora_engine_failed", "Requests lost to a failed step or a passed time limit."),
    "num_refused": ("anaphora_engine_refused", "Requests refused because the queue was full."),
    "num_prompt_tokens": ("anaphora_prompt_tokens", "Prompt tokens of all requests."),
    "num_reused_tokens": ("anaphora_reused_tokens", "Prompt tokens read from the cache."),
    "num_computed_tokens": ("anaphora_computed_tokens", "Prompt tokens that went through the model."),
    "num_written_tokens": ("anaphora_written_tokens", "Tokens newly kept for later requests."),
    "num_generated_tokens": ("anaphora_generated_tokens", "Tokens generated."),
    "num_evicted_tokens": ("anaphora_evicted_tokens", "Tokens evicted from the pool."),
    "num_steps": ("anaphora_steps", "Passes of the model."),
    "num_preemptions": ("anaphora_preemptions", "Sequences put back to make room."),
    "num_joined": ("anaphora_joined", "Sequences that waited for another which computed the same tokens."),
    "num_failed_checks": ("anaphora_failed_checks", "Integrity checks of the cache that failed and emptied it."),
}
_GAUGES = {
    "num_waiting": ("anaphora_waiting", "Sequences that wait."),
    "num_running": ("anaphora_running", "Sequences that run."),
    "kv_pool_bytes": ("anaphora_pool_bytes", "Size of the pool of keys and values."),
}
_LOWER_COUNTERS = {
    "num_loaded_tokens": ("anaphora_loaded_tokens", "Tokens loaded from disk instead of computed."),
    "num_failed_loads": ("anaphora_failed_loads", "Records on disk that could not be used; each was a miss."),
    "num_stored_tokens": ("anaphora_stored_tokens", "Tokens whose keys and values went to disk."),
    "num_dropped_tokens": ("anaphora_store_dropped_tokens", "Tokens not stored, because storing was behind."),
    "num_refused_tokens": ("anaphora_store_refused_tokens", "Tokens not stored, because the disk refused or is full."),
    "num_disk_failures": ("anaphora_disk_failures", "Reads and writes that the disk refused."),
}
_LOWER_GAUGES = {
    "disk_bytes": ("anaphora_disk_bytes", "Bytes of keys and values on disk."),
    "disk_cap_bytes": ("anaphora_disk_cap_bytes", "The most that may be there; 0: none are kept."),
}
_SLOTS = ("free", "evictable", "leased", "retained")


class StatsSource(Protocol):
    """Whoever can say what the engine did so far."""

    def stats(self) -> EngineStats: ...


class Metrics:
    """Counters of the HTTP side, and the engine's read at every scrape."""

    def __init__(self, engine: StatsSource) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine))
        self._requests = Counter(
            "anaphora_http_requests", "HTTP requests answered.", ["endpoint", "status"], registry=self._registry
        )
        self._stream_errors = Counter(
            "anaphora_stream_errors",
            "Streams that ended with an error event after status 200.",
            ["endpoint"],
            registry=self._registry,
        )
        self._first_token = Histogram(
            "anaphora_time_to_first_token_seconds",
            "From submission to the first token.",
            ["endpoint", "reuse"],
            buckets=_TTFT_BUCKETS_S,
            registry=self._registry,
        )

        self._misses = Counter(
            "anaphora_misses",
            "Requests answered, by why they reused no more; `cause` is what differs where they diverged.",
            ["reason", "cause"],
            registry=self._registry,
        )
        self._lost = Counter(
            "anaphora_lost_tokens",
            "Prompt tokens computed again that were sent before, by why.",
            ["reason", "cause"],
            registry=self._registry,
        )

    def count_request(self, endpoint: str, status: int) -> None:
        self._requests.labels(endpoint, str(status)).inc()

    def count_stream_error(self, endpoint: str) -> None:
        self._stream_errors.labels(endpoint).inc()

    def observe(self, endpoint: str, account: Account) -> None:
        """Take in a finished request. `reuse` says whether at least half of the prompt was cached."""
        for miss in account.misses:
            cause = miss.cause or "" if miss.reason == "diverged" else ""
            self._misses.labels(miss.reason, cause).inc()
            self._lost.labels(miss.reason, cause).inc(miss.num_lost)
        for receipt in account.receipts:
            reuse = "hit" if 2 * receipt.num_reused_tokens >= receipt.num_prompt_tokens else "cold"
            if receipt.time_to_first_token_s > 0:
                self._first_token.labels(endpoint, reuse).observe(receipt.time_to_first_token_s)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineCollector:
    def __init__(self, engine: StatsSource) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=getattr(stats, field))
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=getattr(stats, field))
        for field, (name, text) in _LOWER_COUNTERS.items():
            yield CounterMetricFamily(name, text, value=getattr(stats.lower, field))
        for field, (name, text) in _LOWER_GAUGES.items():
            yield GaugeMetricFamily(name, text, value=getattr(stats.lower, field))
        slots = GaugeMetricFamily("anaphora_pool_slots", "Slots of the pool by state.", labels=["state"])
        for state in _SLOTS:
            slots.add_metric([state], getattr(stats, f"num_{state}_slots"))
        yield slots
