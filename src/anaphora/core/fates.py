"""What became of what was cached: a listener that remembers evictions for a while, so that a miss can say why.

    evicted    [R U L E S _ A]         place: behind "RULES _", in front of "A"
                             ^
    asked      [R U L E S _ A B]       reused up to that place: what is missing was evicted, then and for whom

It is told facts after they happened, and changes nothing. Bounded: the oldest evictions are forgotten first.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, TypeVar

from anaphora.core.events import Cleared, Event, Evicted
from anaphora.core.index import Tokens, place_of
from anaphora.core.namespace import Namespace

Key = TypeVar("Key")
Value = TypeVar("Value")

MAX_EVICTIONS = 8192
"""About 3 MB."""
MAX_NAMESPACES = 1024
MAX_STEPS_BACK = 256
"""An eviction may have begun in front of what is missing now: so many tokens in front of it are tried."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What happened to cached tokens that are cached no more."""

    kind: Literal["evicted", "cleared"]
    ago_s: float
    for_others: bool = False  # the room went to another namespace
    is_exact: bool = True  # False: tokens of the namespace were evicted since; these, or others


@dataclass(frozen=True, slots=True)
class _Eviction:
    when: float
    num_tokens: int
    for_others: bool


class Fates:
    """Evictions by place. One thread tells it; any may ask."""

    def __init__(self, *, shared: Namespace | None = None, max_evictions: int = MAX_EVICTIONS) -> None:
        """`shared`: the namespace of regions that others share."""
        self._shared = shared
        self._max_evictions = max_evictions
        self._evictions: OrderedDict[int, _Eviction] = OrderedDict()
        self._latest: OrderedDict[Namespace, _Eviction] = OrderedDict()
        self._cleared: OrderedDict[Namespace, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._evictions)

    def note(self, event: Event) -> None:
        """Take an event in. Cost: O(1)."""
        if isinstance(event, Evicted):
            eviction = _Eviction(event.when, event.num_tokens, event.asker != event.namespace)
            _put(self._evictions, event.place, eviction, limit=self._max_evictions)
            _put(self._latest, event.namespace, eviction, limit=MAX_NAMESPACES)
        elif isinstance(event, Cleared):
            _put(self._cleared, event.namespace, event.when, limit=MAX_NAMESPACES)

    def of(self, namespace: Namespace, tokens: Tokens, num_reused: int, *, age_s: float, now: float) -> Fate | None:
        """What became of the token behind the first `num_reused` ones, which was cached `age_s` ago. None: not known.

        Cost: a look-up for each of the last tokens in front of it, until one is found.
        """
        spaces = (namespace,) if self._shared is None else (namespace, self._shared)
        since = now - age_s
        cleared = [when for one in spaces if (when := self._cleared.get(one)) is not None and when >= since]
        if cleared:
            return Fate("cleared", now - max(cleared))
        for position in range(num_reused, max(num_reused - MAX_STEPS_BACK, 0) - 1, -1):
            for space in spaces:
                found = self._evictions.get(place_of(space, tokens, position))
                if found is not None and found.when >= since and found.num_tokens > num_reused - position:
                    return Fate("evicted", now - found.when, found.for_others)
        latest = [found for one in spaces if (found := self._latest.get(one)) is not None and found.when >= since]
        if not latest:
            return None
        last = max(latest, key=lambda eviction: eviction.when)
        return Fate("evicted", now - last.when, last.for_others, is_exact=False)


def _put(kept: OrderedDict[Key, Value], key: Key, value: Value, *, limit: int) -> None:
    """Put a value last, and drop the first beyond the limit."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > limit:
        kept.popitem(last=False)
