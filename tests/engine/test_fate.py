"""What an engine says became of a prompt that it had cached. Method: a pool that holds one prompt and a half."""

import numpy as np

from anaphora.engine.engine import Engine
from anaphora.engine.request import Tenant
from anaphora.engine.settings import EngineSettings
from anaphora.testing.random_models import random_model

RED, BLUE = Tenant("red"), Tenant("blue")


def test_an_evicted_prompt_says_when_and_for_whom() -> None:
    loaded = random_model("llama")
    settings = EngineSettings(kv_pool_bytes=300 * loaded.spec.kv_bytes_per_token(loaded.dtype), num_threads=1)
    rng = np.random.default_rng(0)
    mine, others = (rng.integers(0, 256, 200).astype(np.int32) for _ in range(2))
    with Engine(loaded, settings) as engine:
        engine.generate(mine.tolist(), tenant=RED, max_tokens=1)
        assert engine.fate(mine, 0, tenant=RED, age_s=60) is None
        engine.generate(others.tolist(), tenant=BLUE, max_tokens=1)
        receipt = engine.generate(mine.tolist(), tenant=RED, max_tokens=1).receipt
        assert receipt.num_reused_tokens < 199
        found = engine.fate(mine, receipt.num_reused_tokens, tenant=RED, age_s=60)
        assert found is not None
        assert (found.kind, found.for_others, found.is_exact) == ("evicted", True, True)
        assert 0 <= found.ago_s < 60
        assert engine.fate(mine, receipt.num_reused_tokens, tenant=RED, age_s=-1) is None
