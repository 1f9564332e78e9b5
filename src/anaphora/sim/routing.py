"""Which replica serves a request. A router sees what a gateway sees: hashes of the prompt's openings, and its length.

Routers are pure: what they know of replicas is what they sent there.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np

from anaphora.sim.trace import Blocks, TraceRequest

STRIDE = 512
"""Tokens from one hashed opening to the next."""

MAX_OPENINGS = 200_000
"""Openings remembered for each replica; the one not seen for longest goes first."""

HALF_LIFE_S = 60.0
"""After this time the load of a request that was sent counts half."""

LOAD_CAP = 1.25
"""A replica with more than this times the average load gets nothing by affinity."""


class Router(Protocol):
    """Chooses a replica for each request."""

    name: str

    def route(self, openings: Sequence[int], num_tokens: int, time_s: float) -> int:
        """Choose a replica, given hashes of longer and longer openings of the prompt."""


class RoundRobin:
    """Send requests to one replica after the other."""

    name = "round-robin"

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self._next = -1

    def route(self, openings: Sequence[int], num_tokens: int, time_s: float) -> int:
        """Choose the next one."""
        self._next = (self._next + 1) % self._num_replicas
        return self._next


class Random:
    """Send requests anywhere. The same seed gives the same choices."""

    name = "random"

    def __init__(self, num_replicas: int, *, seed: int = 0) -> None:
        self._num_replicas = num_replicas
        self._rng = random.Random(seed)

    def route(self, openings: Sequence[int], num_tokens: int, time_s: float) -> int:
        """Draw one."""
        return self._rng.randrange(self._num_replicas)


class PrefixAffinity:
    """Send a request where the longest opening of it was sent before; what is new, where the load is lowest.

    With a cap, a replica whose load is above `cap` times the average is passed over for the next best.
    Source: Preble, Srivatsa et al. 2024, arXiv:2407.00023, section 3 (longest prefix against load).
    """

    def __init__(self, num_replicas: int, *, cap: float | None = None) -> None:
        self.name = "affinity" if cap is None else "affinity-cap"
        self._cap = cap
        self._sent: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(num_replicas)]
        self._loads = [0.0] * num_replicas  # tokens sent, fading
        self._time_s = 0.0

    def route(self, openings: Sequence[int], num_tokens: int, time_s: float) -> int:
        """Choose by the longest opening known, then by load, then by number."""
        self._fade(time_s)
        limit = float("inf") if self._cap is None else self._cap * (sum(self._loads) + num_tokens) / len(self._loads)
        free = [index for index, load in enumerate(self._loads) if load <= limit] or list(range(len(self._loads)))
        best = max(free, key=lambda index: (self._num_known(index, openings), -self._loads[index], -index))
        sent = self._sent[best]
        for opening in reversed(openings):
            sent[opening] = None
            sent.move_to_end(opening)
        while len(sent) > MAX_OPENINGS:
            sent.popitem(last=False)
        self._loads[best] += num_tokens
        return best

    def _num_known(self, index: int, openings: Sequence[int]) -> int:
        sent = self._sent[index]
        for num_known, opening in enumerate(openings):
            if opening not in sent:
                return num_known
        return len(openings)

    def _fade(self, time_s: float) -> None:
        factor = 0.5 ** (max(time_s - self._time_s, 0.0) / HALF_LIFE_S)
        self._loads = [load * factor for load in self._loads]
        self._time_s = time_s


def routers(seed: int) -> Mapping[str, Callable[[int], Router]]:
    """Give every routing by name, as a function of the number of replicas."""
    return MappingProxyType(
        {
            "round-robin": RoundRobin,
            "random": lambda num_replicas: Random(num_replicas, seed=seed),
            "affinity": PrefixAffinity,
            "affinity-cap": lambda num_replicas: PrefixAffinity(num_replicas, cap=LOAD_CAP),
        }
    )


def prefix_hashes(request: TraceRequest) -> list[int]:
    """Hash the openings of a prompt at every 512 tokens (or block of the trace, if that is longer).

    The opening shorter than that has none. Tenants never share one.
    """
    prompt = request.prompt
    if isinstance(prompt, Blocks):
        step = max(STRIDE // prompt.block_tokens, 1)
        units, num_whole = prompt.ids, prompt.num_tokens // prompt.block_tokens
    else:
        step, units, num_whole = STRIDE, prompt, len(prompt)
    hashes: list[int] = []
    value = hash(request.tenant)
    for start in range(0, num_whole - step + 1, step):
        value = hash((value, np.ascontiguousarray(units[start : start + step]).tobytes()))
        hashes.append(value)
    return hashes
