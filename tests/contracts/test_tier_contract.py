"""Every lower tier that ships, against the tier contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anaphora.testing.tier_contract import TierContract
from anaphora.tiers.base import Tier
from anaphora.tiers.disk import DiskTier
from anaphora.tiers.host import HostTier


class TestHostTier(TierContract):
    def make_tier(self, cap_bytes: int) -> Tier:
        return HostTier(cap_bytes=cap_bytes)


class TestDiskTier(TierContract):
    @pytest.fixture(autouse=True)
    def _choose_folder(self, tmp_path: Path) -> Iterator[None]:
        self.folder, self.opened = tmp_path, []
        yield
        for tier in self.opened:
            tier.close()

    def make_tier(self, cap_bytes: int) -> Tier:
        self.opened.append(DiskTier(self.folder, cap_bytes=cap_bytes))
        return self.opened[-1]
