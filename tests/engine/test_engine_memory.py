"""Memory: the pool's bytes are fixed, and the process does not grow with the number of requests."""

import gc
from pathlib import Path

import numpy as np
import pytest
from engine_world import check_is_idle, random_tokens, request_for, small_engine

from anaphora.engine.kv_pool import KvPool
from anaphora.engine.request import Sampling
from anaphora.testing.random_models import random_model

SLACK_BYTES = 8 << 20
"""What the allocator may keep: a leak of 8 KB per request would show over 1,000 requests."""


def resident_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux")
@pytest.mark.parametrize("cache", [True, pytest.param(False, marks=pytest.mark.torture)])
def test_resident_memory_is_flat_over_a_thousand_requests(cache: bool) -> None:
    rng = np.random.default_rng(0)
    trunk = random_tokens(rng, 60)
    sampling = Sampling(seed=1, max_tokens=4, num_logprobs=2, num_prompt_logprobs=1, stop=("never",))

    def serve(num_requests: int) -> None:
        for _ in range(num_requests // 10):
            prompts = [np.concatenate([trunk[: rng.integers(1, 60)], random_tokens(rng, 6)]) for _ in range(10)]
            streams = [engine.submit(request_for(prompt, sampling)) for prompt in prompts]
            streams.pop().abort()
            for stream in streams:
                stream.result()
        gc.collect()

    with small_engine("llama", num_slots=512, cache=cache) as engine:
        pool_bytes = engine.stats().kv_pool_bytes
        serve(300)
        before = resident_bytes()
        serve(1000)
        assert resident_bytes() - before < SLACK_BYTES
        check_is_idle(engine)
        assert engine.stats().kv_pool_bytes == pool_bytes
        assert pool_bytes == 512 * engine.spec.kv_bytes_per_token(engine._stepper._loaded.dtype)


def test_pool_has_exactly_the_bytes_it_was_given() -> None:
    loaded = random_model("gemma3")
    pool = KvPool(loaded.spec, num_slots=300, dtype=loaded.dtype, device=loaded.device)
    assert pool.size_bytes == 300 * loaded.spec.kv_bytes_per_token(loaded.dtype)
