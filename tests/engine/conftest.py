"""One thread per tiny model: two threads that wait for each other cost more than the work itself.

Hypothesis sets no time limit here: a busy machine is not a failure.
"""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from anaphora.engine.models.fetch import default_cache_dir
from anaphora.engine.native.build import NotBuilt
from anaphora.engine.native.library import Kernels, load_kernels

settings.register_profile("engine", deadline=None)
settings.load_profile("engine")


@pytest.fixture(autouse=True, scope="session")
def single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    """The native kernels; a test that needs them is skipped where they can't be built."""
    found = load_kernels(default_cache_dir())
    if isinstance(found, NotBuilt):
        pytest.skip(f"native kernels can't be had here: {found.reason}")
    return found
