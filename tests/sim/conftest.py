"""Where recorded workloads lie: a folder beside the checkout. Tests that need one are skipped where it is absent."""

from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture
def data():
    def folder(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"no {name} beside the checkout")
        return DATA / name

    return folder
