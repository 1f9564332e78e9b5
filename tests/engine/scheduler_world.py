"""A scheduler over a real cache, without a model: what is scheduled counts as computed, a made-up token follows."""

import numpy as np

from anaphora.core.cache import Cache, PrefixCache
from anaphora.core.namespace import Namespace
from anaphora.core.no_reuse import NoReuse
from anaphora.engine.request import DEFAULT_TENANT, GenerationRequest, RequestId, Sampling, Tenant
from anaphora.engine.scheduler import Scheduler, Share
from anaphora.engine.sequence import Sequence

SPACE = Namespace(b"s" * 32)
NUM_SLOTS = 64


def sequence_of(
    tokens: list[int], *, max_new_tokens: int, space: Namespace = SPACE, tenant: Tenant = DEFAULT_TENANT
) -> Sequence:
    request = GenerationRequest(RequestId("r"), np.asarray(tokens, dtype=np.int32), Sampling(), tenant)
    return Sequence(request, 0, namespace=space, max_new_tokens=max_new_tokens)


class World:
    """A scheduler whose steps cost nothing."""

    def __init__(
        self,
        *,
        max_step_tokens: int = 64,
        max_sequences: int = 16,
        cache: bool | Cache = True,
        num_slots: int = NUM_SLOTS,
        min_first_chunk: int = 1,
    ) -> None:
        self.cache: Cache = NoReuse(num_slots) if cache is False else PrefixCache(num_slots, clock=lambda: 0.0)
        if not isinstance(cache, bool):
            self.cache = cache
        self.max_step_tokens = max_step_tokens
        self.max_sequences = max_sequences
        self.scheduler = Scheduler(
            self.cache,
            max_step_tokens=max_step_tokens,
            max_sequences=max_sequences,
            min_first_chunk=min_first_chunk,
        )
        self.finished: list[Sequence] = []
        self.num_computed = 0
        self.num_steps = 0

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.scheduler.running or self.scheduler.waiting:
            assert self.step(), "work is left and nothing is scheduled"

    def step(self) -> list[Share]:
        before = list(self.scheduler.running)
        shares = self.scheduler.schedule()
        self.check(shares, before)
        self.num_steps += 1
        self.num_computed += sum(share.num_rows for share in shares)
        for share in shares:
            sequence = share.sequence
            assert sequence.lease is not None
            sequence.num_computed += share.num_rows
            self.cache.publish(sequence.lease, sequence.tokens, sequence.num_computed)
            if not sequence.num_to_compute:
                if sequence.num_left:
                    sequence.append(7)
                if not sequence.num_left:
                    self.scheduler.remove(sequence)
                    self.finished.append(sequence)
        self.cache.check()
        return shares

    def check(self, shares: list[Share], before: list[Sequence]) -> None:
        assert sum(share.num_rows for share in shares) <= self.max_step_tokens
        assert len(self.scheduler.running) <= self.max_sequences
        assert len({share.sequence.id for share in shares}) == len(shares)
        kinds = [0 if share.sequence.is_decoding else 1 for share in shares if share.sequence in before]
        assert kinds == sorted(kinds), "a prefill came before a decode"
        for share in shares:
            sequence = share.sequence
            assert 1 <= share.num_rows <= sequence.num_to_compute
            assert sequence.lease is not None
            assert sequence.lease.is_open
            assert sequence.lease.num_slots >= sequence.num_computed + share.num_rows
            assert sequence.lease.num_published <= sequence.num_computed
        for sequence in self.scheduler.waiting:
            assert sequence.lease is None
            assert sequence.num_computed == 0
