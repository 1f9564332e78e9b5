"""One thread per tiny model: two threads that wait for each other cost more than the work itself.

Hypothesis sets no time limit here: a busy machine is not a failure.
"""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("engine", deadline=None)
settings.load_profile("engine")


@pytest.fixture(autouse=True, scope="session")
def single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
