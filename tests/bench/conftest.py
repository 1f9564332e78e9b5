"""One thread for tiny models, and a tiny model as a folder on the disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from anaphora.bench.pair import Pair, pair_from
from anaphora.engine.models.spec import LoadedModel
from anaphora.testing.random_models import random_model


@pytest.fixture(autouse=True, scope="session")
def single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny() -> LoadedModel:
    return random_model("llama", max_context=4096)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with pair_from(tiny(), tiny().model, num_slots=1024) as made:
        yield made


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    loaded = tiny()
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder
