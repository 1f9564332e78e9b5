"""One token stream that is being computed. Pure: no torch.

    tokens   0 ...... num_prompt ........... num_tokens
             |  prompt   |  generated so far  |
             0 ........ num_computed ......... num_tokens
             |  KV stands in the lease | to run |

In decode exactly one token is to run: the newest one. A preempted sequence has no lease; what it published may still
be cached when it comes back.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from anaphora.core.evictable import Priority
from anaphora.core.lease import Lease
from anaphora.core.namespace import Namespace
from anaphora.engine.request import GenerationRequest

_ids = itertools.count()


class Sequence:
    """One of a request's `num_sequences` answers, from waiting to finished."""

    def __init__(self, request: GenerationRequest, index: int, *, namespace: Namespace, max_new_tokens: int) -> None:
        self.id = next(_ids)
        self.request = request
        self.index = index
        self.namespace = namespace
        self.num_prompt = len(request.tokens)
        self.max_new_tokens = max_new_tokens
        self.lease: Lease | None = None
        self.hold: Lease | None = None  # keeps what is cached of it while it waits
        self.leader: Sequence | None = None  # what it waits for, or waited for: that computes the same tokens
        self.is_loading = False  # more of it is on its way from a lower tier
        self.was_sought = False  # in the lower tiers, since it began to wait
        self.num_on_device: int | None = None  # tokens that the pool had of it before any were loaded; None: none were
        self.num_computed = 0
        self.num_written = 0  # tokens that it published and nobody had before
        self.num_tokens = self.num_prompt
        self._tokens = np.empty(self.num_prompt + max_new_tokens, dtype=np.int32)
        self._tokens[: self.num_prompt] = request.tokens

    @property
    def tokens(self) -> NDArray[np.int32]:
        """All tokens known so far: a view, [num_tokens]."""
        return self._tokens[: self.num_tokens]

    @property
    def num_to_compute(self) -> int:
        return self.num_tokens - self.num_computed

    @property
    def num_generated(self) -> int:
        return self.num_tokens - self.num_prompt

    @property
    def is_decoding(self) -> bool:
        return self.num_to_compute == 1 and self.num_generated > 0

    @property
    def priority(self) -> Priority:
        """How long what it leaves in the cache stays, compared with others."""
        return Priority[self.request.priority.upper()]

    @property
    def is_scored(self) -> bool:
        """True for the one sequence of a request whose prompt tokens' log-probabilities were asked for."""
        return self.index == 0 and self.request.sampling.num_prompt_logprobs is not None

    @property
    def num_left(self) -> int:
        """Tokens that may still be generated."""
        return self.max_new_tokens - self.num_generated

    def append(self, token_id: int) -> None:
        """Add a generated token."""
        assert self.num_left > 0
        self._tokens[self.num_tokens] = token_id
        self.num_tokens += 1
