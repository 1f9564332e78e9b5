"""What the cache tells its listener: facts after they happened, for metrics and for lower tiers."""

from dataclasses import dataclass

from anaphora.core.namespace import Namespace


@dataclass(frozen=True, slots=True)
class Stored:
    """Tokens became readable by later requests."""

    namespace: Namespace
    num_tokens: int
    when: float  # the cache's clock


@dataclass(frozen=True, slots=True)
class Evicted:
    """Tokens made room for others."""

    namespace: Namespace
    num_tokens: int
    when: float
    place: int  # a number for where they stood; see `index.place_of`
    asker: Namespace  # who needed the room


@dataclass(frozen=True, slots=True)
class Cleared:
    """Tokens were forgotten on demand."""

    namespace: Namespace
    num_tokens: int
    when: float


Event = Stored | Evicted | Cleared
