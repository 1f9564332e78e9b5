"""How much memory this machine has to give."""

from pathlib import Path

import torch

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def available_bytes(device: torch.device) -> int:
    """Estimate the bytes that can be allocated on a device without pushing anything else out."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return min([_available_of_machine(), *_limits_of_cgroup()])


def _available_of_machine() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable: set kv_pool_bytes")


def _limits_of_cgroup() -> list[int]:
    texts = [Path(path).read_text(encoding="ascii").strip() for path in _CGROUP_LIMITS if Path(path).is_file()]
    return [int(text) for text in texts if text.isdigit()]
