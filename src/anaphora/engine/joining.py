"""Who computes for whom: prompts in flight that open alike are computed once. Pure.

    leader     SYSTEM PROMPT, one long document | question 1
    follower   SYSTEM PROMPT, one long document | another question
               0 ............ num_computed ..... meeting place

The leader publishes each chunk when it is computed, and its chunks end at meeting places. A follower waits in the
queue until the leader gets there, then leases what is published and computes the rest itself. It holds nothing of the
leader's: if that ends early, the first of those who waited leads, from where it got to.
"""

from collections.abc import Iterable

from anaphora.core.index import common_length
from anaphora.engine.sequence import Sequence

MIN_JOINED = 16
"""To begin to wait for less costs more: a step of its own takes as long as some 16 further rows of another."""


def meeting_place(follower: Sequence, leader: Sequence) -> int:
    """Count the tokens that a waiting sequence can lease once a running one has computed them.

    All but its last, which every sequence computes itself. Tenants meet in a shared region, if in anything.
    Cost: one comparison of the tokens; O(1) where those that the leader computes next differ.
    """
    assert leader.lease is not None
    if not leader.lease.is_findable:
        return 0
    limit = min(follower.num_tokens - 1, leader.num_tokens)
    if follower.namespace != leader.namespace:
        limit = min(limit, leader.lease.num_shared)
    last = leader.num_computed + _least(follower, leader) - 1
    if limit <= last or follower.tokens[last] != leader.tokens[last]:
        return 0
    place = common_length(follower.tokens[:limit], leader.tokens[:limit])
    if follower.namespace != leader.namespace and place < leader.lease.num_shared:
        return 0
    return place


def leader_of(follower: Sequence, running: Iterable[Sequence], *, num_cached: int) -> Sequence | None:
    """Find a running sequence that is about to compute what a waiting one needs and is not cached. None: don't wait."""
    for leader in running:
        place = meeting_place(follower, leader)
        if place - max(leader.num_computed, num_cached) >= _least(follower, leader):
            return leader
    return None


def next_meeting_place(leader: Sequence, waiting: Iterable[Sequence]) -> int | None:
    """Find where the first of those who wait for a running sequence leaves its way.

    None: nobody waits for it, or only up to where it is at its end too.
    """
    places = [meeting_place(follower, leader) for follower in waiting]
    earliest = min((place for place in places if place - leader.num_computed >= MIN_JOINED), default=None)
    return None if earliest is None or leader.num_tokens - earliest < MIN_JOINED else earliest


def _least(follower: Sequence, leader: Sequence) -> int:
    """How many tokens are worth waiting for: any, once it waits."""
    return 1 if follower.leader is leader else MIN_JOINED
