"""One small real engine for all tests of the HTTP side, and builders for what the engine hands out."""

from collections.abc import Iterator

import pytest
import torch

from anaphora.engine.engine import Engine
from anaphora.engine.settings import EngineSettings
from anaphora.testing.random_models import random_model


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A tiny random Llama with a chat template: real in everything but sense."""
    before = torch.get_num_threads()
    with Engine(random_model("llama"), EngineSettings(kv_pool_bytes=8 * 2**20, num_threads=1)) as small:
        yield small
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def roomy() -> Iterator[Engine]:
    """An engine with room for long prompts, whose cache no other file has filled."""
    settings = EngineSettings(kv_pool_bytes=128 * 2**20, num_threads=1)
    with Engine(random_model("llama", max_context=4096), settings) as engine:
        yield engine
