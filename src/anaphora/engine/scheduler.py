"""Decide what the next step computes. Pure: it knows tokens, leases and budgets, no tensors and no clock.

Order within a step's token budget: decodes first (one token each, so that running answers never stall behind a long
prompt), then prefill chunks of running sequences in order of arrival, then admission of waiting ones in order of
arrival. First come, first served, but for three kinds that are passed by:

    followers        wait for a running sequence that computes what they need too (`joining.py`)
    loading          wait for a lower tier that has more of them than the pool (`lower_tiers.py`)
    beyond a quota   wait for sequences of their own tenant, and so do those of that tenant behind them

None waits for ever. Who passes a follower does not share what it waits for, or would wait for the same leader; so a
follower waits only for prefills of sequences that came before it. A load ends by itself. Who is beyond its quota waits
for what its own tenant has running. Where there is no room, nobody is passed by.

What a waiting sequence finds cached when it arrives is held for it, so that those in front of it don't evict it. Holds
give way, last come first, before a running sequence is preempted, and where nothing runs that could end. What is held
to be written to lower tiers, or loaded before anybody asks, gives way before anybody waits for room; what a request
waits for, before anybody is preempted.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from anaphora.core.cache import Cache
from anaphora.core.lease import Lease, Refusal
from anaphora.engine.joining import leader_of, next_meeting_place
from anaphora.engine.lower_tiers import LowerTiers, NoLowerTiers
from anaphora.engine.request import Tenant
from anaphora.engine.sequence import Sequence

GROWTH = 128
"""Slots reserved at a time for tokens to come, beside the sequence's own, so that a reply ends as one extent."""

SCORED_CHUNK = 256
"""Most rows of one step for a prompt whose tokens are scored: 50 MB of logits at a vocabulary of 49,152."""


@dataclass(frozen=True, slots=True)
class Share:
    """The next `num_rows` tokens of a sequence run in this step."""

    sequence: Sequence
    num_rows: int


class Scheduler:
    """Waiting and running sequences over one cache."""

    def __init__(
        self,
        cache: Cache,
        *,
        max_step_tokens: int,
        max_sequences: int,
        min_first_chunk: int = 1,
        reuse_limit: Callable[[Sequence], int] = lambda sequence: sequence.num_tokens - 1,
    ) -> None:
        """`reuse_limit` bounds what a sequence may reuse; a forward pass needs one token, hence the default.

        A sequence starts only in a step that has room for `min_first_chunk` of its tokens, or for all of them: a value
        that no prompt exceeds keeps every prompt in one piece.
        """
        self.lower: LowerTiers = NoLowerTiers()
        self._cache = cache
        self._reuse_limit = reuse_limit
        self._max_step_tokens = max_step_tokens
        self._max_sequences = max_sequences
        self._min_first_chunk = min_first_chunk
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_joined = 0  # sequences that waited for another

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, and hold what is cached of it."""
        self.waiting.append(sequence)
        self.hold(sequence)

    def hold(self, sequence: Sequence) -> None:
        """Hold what is cached of a waiting sequence now, in place of what was held."""
        if sequence.is_scored:
            return  # it computes again what is cached without scores
        hold = self._acquire(sequence, sequence.num_tokens - 1, 0)
        self._drop_hold(sequence)
        if isinstance(hold, Lease):
            sequence.hold = hold
            if not hold.num_reused:
                self._drop_hold(sequence)

    def admit_fork(self, sequence: Sequence) -> bool:
        """Start a further answer to a prompt that is published whole: lease it and compute nothing.

        False if there is no room now; the sequence then has to be queued like any other.
        """
        if len(self.running) >= self._max_sequences:
            return False
        lease = self._lease(sequence, max_reuse=sequence.num_tokens)
        if isinstance(lease, Refusal):
            return False
        if lease.num_reused < sequence.num_tokens:
            self._cache.release(lease)
            return False
        self._start(sequence, lease)
        return True

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished or aborted sequence and give its slots back at once."""
        self._drop_hold(sequence)
        if sequence.is_loading:
            self.lower.forget(sequence)
        if sequence.lease is not None:
            self.running.remove(sequence)
            self._cache.release(sequence.lease)
            sequence.lease = None
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> list[Share]:
        """Choose the next step's work; empty if there is none. Admits, preempts and grows leases as needed."""
        budget = self._max_step_tokens
        shares: list[Share] = []
        for sequence in [s for s in self.running if s.is_decoding]:
            if sequence.lease is not None and budget > 0 and self._has_room(sequence):
                shares.append(Share(sequence, 1))
                budget -= 1
        shares = [share for share in shares if share.sequence.lease is not None]  # one may have been preempted
        for sequence in [s for s in self.running if not s.is_decoding]:
            num_rows = min(budget, self._chunk(sequence))
            if num_rows > 0:
                shares.append(Share(sequence, num_rows))
                budget -= num_rows
        return shares + self._admit(budget)

    def _admit(self, budget: int) -> list[Share]:
        """Start waiting sequences as far as budget, seats and slots allow."""
        shares: list[Share] = []
        beyond_quota: set[Tenant] = set()
        for sequence in list(self.waiting):
            if budget <= 0 or len(self.running) >= self._max_sequences:
                break
            if budget < min(self._min_first_chunk, sequence.num_tokens):
                break
            if sequence.request.tenant in beyond_quota or self._follows(sequence) or self.lower.promote(sequence):
                continue
            lease = self._lease(sequence, max_reuse=self._reuse_limit(sequence))
            if isinstance(lease, Refusal):
                is_loading = any(other.is_loading for other in self.waiting)
                assert self.running or is_loading, "a sequence that fits the pool was refused by an empty one"
                if lease.reason != "quota_full":
                    break
                beyond_quota.add(sequence.request.tenant)
                continue
            self.waiting.remove(sequence)
            self._start(sequence, lease)
            num_rows = min(budget, self._chunk(sequence))
            shares.append(Share(sequence, num_rows))
            budget -= num_rows
        return shares

    def _follows(self, sequence: Sequence) -> bool:
        """Whether a sequence has to wait for another that computes what it needs too."""
        leaders = [s for s in self.running if not s.is_decoding]
        if sequence.is_scored or leader_of(sequence, leaders, num_cached=0) is None:
            return False
        num_cached = self._cache.peek(sequence.namespace, sequence.tokens).num_tokens
        leader = leader_of(sequence, leaders, num_cached=num_cached)
        if leader is None:
            return False
        self.num_joined += sequence.leader is None
        sequence.leader = leader
        return True

    def _chunk(self, sequence: Sequence) -> int:
        """Bound the rows of a sequence in one step.

        Scores of every row take vocab_size floats each. And who waits for a part should have it as soon as it is there.
        """
        if sequence.is_scored and not sequence.num_generated:
            return min(sequence.num_to_compute, max(SCORED_CHUNK, self._min_first_chunk))
        place = next_meeting_place(sequence, islice(self.waiting, self._max_sequences))
        return sequence.num_to_compute if place is None else place - sequence.num_computed

    def _lease(self, sequence: Sequence, *, max_reuse: int) -> Lease | Refusal:
        cached = self._cache.peek(sequence.namespace, sequence.tokens).num_tokens
        num_new = sequence.num_tokens - min(cached, max_reuse)
        room = min(GROWTH, sequence.num_left)
        least = num_new + min(1, room)
        lease = self._acquire(sequence, max_reuse, num_new + room)
        while isinstance(lease, Refusal):
            lease = self._acquire(sequence, max_reuse, least)
            if isinstance(lease, Lease) or self.lower.drop_background():
                continue
            if self.running or not self._drop_last_hold():
                break
        return lease

    def _acquire(self, sequence: Sequence, max_reuse: int, num_private: int) -> Lease | Refusal:
        return self._cache.acquire(
            sequence.namespace,
            sequence.tokens,
            max_reuse=max_reuse,
            num_private=num_private,
            priority=sequence.priority,
        )

    def _drop_last_hold(self) -> bool:
        """Give up what is held for the last that waits and has something held. False if nobody has."""
        for sequence in reversed(self.waiting):
            if sequence.hold is not None:
                self._drop_hold(sequence)
                return True
        return False

    def _drop_hold(self, sequence: Sequence) -> None:
        if sequence.hold is not None:
            self._cache.release(sequence.hold)
            sequence.hold = None

    def _start(self, sequence: Sequence, lease: Lease) -> None:
        self._drop_hold(sequence)
        sequence.lease = lease
        sequence.num_computed = lease.num_reused
        self.running.append(sequence)

    def _has_room(self, sequence: Sequence) -> bool:
        """See to it that the newest token has a slot, preempting the youngest sequence while there is none."""
        while sequence.lease is not None and sequence.lease.num_slots < sequence.num_tokens:
            for num_slots in (min(GROWTH, 1 + sequence.num_left), 1):
                if self._cache.grow(sequence.lease, num_slots) is None:
                    break
            else:
                if not (self.lower.drop_background() or self.lower.drop_load() or self._drop_last_hold()):
                    self._preempt(self.running[-1])
        return sequence.lease is not None

    def _preempt(self, sequence: Sequence) -> None:
        """Send a running sequence back to the head of the queue. Its published tokens stay cached while they can."""
        assert sequence.lease is not None
        sequence.num_written += self._cache.publish(sequence.lease, sequence.tokens, sequence.num_computed)
        self.remove(sequence)
        sequence.num_computed = 0
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1
