"""Decide what the next step computes. Pure: it knows tokens, leases and budgets, no tensors and no clock.

Order within a step's token budget: decodes first (one token each, so that running answers never stall behind a long
prompt), then prefill chunks of running sequences in order of arrival, then admission of waiting ones in order of
arrival. First come, first served; nothing overtakes a waiting sequence, so none waits for ever.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from anaphora.core.cache import Cache
from anaphora.core.lease import Lease, Refusal
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
        self._cache = cache
        self._reuse_limit = reuse_limit
        self._max_step_tokens = max_step_tokens
        self._max_sequences = max_sequences
        self._min_first_chunk = min_first_chunk
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def admit_fork(self, sequence: Sequence) -> bool:
        """Start a further answer to a prompt that is published whole: lease it and compute nothing.

        False if there is no room now; the sequence then has to be queued like any other.
        """
        if len(self.running) >= self._max_sequences:
            return False
        lease = self._lease(sequence, max_reuse=sequence.num_tokens)
        if lease is None:
            return False
        if lease.num_reused < sequence.num_tokens:
            self._cache.release(lease)
            return False
        self._start(sequence, lease)
        return True

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished or aborted sequence and give its slots back at once."""
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
        while budget > 0 and self.waiting and len(self.running) < self._max_sequences:
            sequence = self.waiting[0]
            if budget < min(self._min_first_chunk, sequence.num_tokens):
                break
            lease = self._lease(sequence, max_reuse=self._reuse_limit(sequence))
            if lease is None:
                assert self.running, "a sequence that fits the pool was refused by an empty one"
                break
            self.waiting.popleft()
            self._start(sequence, lease)
            num_rows = min(budget, self._chunk(sequence))
            shares.append(Share(sequence, num_rows))
            budget -= num_rows
        return shares

    def _chunk(self, sequence: Sequence) -> int:
        """Bound the rows of a sequence in one step: scores of every row take vocab_size floats each."""
        if sequence.is_scored and not sequence.num_generated:
            return min(sequence.num_to_compute, max(SCORED_CHUNK, self._min_first_chunk))
        return sequence.num_to_compute

    def _lease(self, sequence: Sequence, *, max_reuse: int) -> Lease | None:
        cached = self._cache.peek(sequence.namespace, sequence.tokens).num_tokens
        num_new = sequence.num_tokens - min(cached, max_reuse)
        room = min(GROWTH, sequence.num_left)
        for num_private in (num_new + room, num_new + min(1, room)):
            lease = self._cache.acquire(
                sequence.namespace, sequence.tokens, max_reuse=max_reuse, num_private=num_private
            )
            if not isinstance(lease, Refusal):
                return lease
        return None

    def _start(self, sequence: Sequence, lease: Lease) -> None:
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
