"""Open the folder that an engine keeps keys and values in, within what the disk can spare."""

import shutil
from pathlib import Path

from anaphora.tiers.base import Tier
from anaphora.tiers.disk import open_disk_tier

FREE_SHARE = 2
"""At most one in so many of the bytes that are free, those that are used already for this included."""


def open_tier(folder: Path, *, cap_bytes: int) -> Tier:
    """Open a folder as a disk tier of at most `cap_bytes`, and less where the disk is nearly full.

    Where it can't be used at all there is a warning, and the tier keeps nothing.
    """
    return open_disk_tier(folder, cap_bytes=min(cap_bytes, _spare_bytes(folder)))


def describe(tier: Tier, folder: Path) -> str:
    """Say what is kept there, for the operator: a sentence."""
    if not tier.cap_bytes:
        return f"Disk: none; {folder} can't be used."
    used, cap = tier.size_bytes / 2**20, tier.cap_bytes / 2**20
    return f"Disk: keys and values outlive the server in {folder}, {used:,.0f} of {cap:,.0f} MiB now."


def _spare_bytes(folder: Path) -> int:
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        used = sum(path.stat().st_size for path in folder.rglob("*.kv"))
        return (shutil.disk_usage(there).free + used) // FREE_SHARE
    except OSError:
        return 0
