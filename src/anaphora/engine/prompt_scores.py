"""Log-probabilities of prompt tokens, kept beside their KV so that a cached prefix answers with complete ones.

A slot stands for one token behind one exact prefix, and so does the token's log-probability: it can live and die with
the slot. Evaluation harnesses score many continuations of one prompt (`echo` with `logprobs`); with the scores kept,
they reuse the prompt like everyone else.

    token        0      1      2      3
    score kept   -    p(1|0) p(2|01) ...       the row of token i - 1 gives the score of token i
"""

from collections.abc import Iterable, Sequence

import numpy as np

from anaphora.core.extent import Extent
from anaphora.engine.sampler import Scored
from anaphora.engine.step import Write, extents_between

NUM_TOP = 5
"""Alternatives kept per token: what the Completions API can ask for."""


class PromptScores:
    """Per slot: is a score kept, the token's log-probability, and the `NUM_TOP` best alternatives. 45 bytes each."""

    def __init__(self, num_slots: int) -> None:
        self._is_kept = np.zeros(num_slots, dtype=bool)
        self._logprobs = np.zeros(num_slots, dtype=np.float32)
        self._top_ids = np.zeros((num_slots, NUM_TOP), dtype=np.int32)
        self._top_logprobs = np.zeros((num_slots, NUM_TOP), dtype=np.float32)

    def forget(self, writes: Iterable[Write]) -> None:
        """Slots are being written anew: what was kept for them is void."""
        for write in writes:
            self._is_kept[write.slot_start : write.slot_start + write.length] = False

    def keep(self, slot: int, scored: Scored) -> None:
        """Keep a score. Needs at least `NUM_TOP` alternatives."""
        self._is_kept[slot] = True
        self._logprobs[slot] = scored.logprob
        self._top_ids[slot] = [token_id for token_id, _ in scored.top[:NUM_TOP]]
        self._top_logprobs[slot] = [logprob for _, logprob in scored.top[:NUM_TOP]]

    def num_kept(self, extents: Sequence[Extent]) -> int:
        """Count the tokens from the start whose scores are kept; the first token needs none.

        Cost: O(tokens), vectorised.
        """
        kept = np.concatenate([self._is_kept[extent.start : extent.stop] for extent in extents] or [np.empty(0, bool)])
        kept[:1] = True
        gaps = np.flatnonzero(~kept)
        return int(gaps[0]) if gaps.size else len(kept)

    def read(self, extents: Sequence[Extent], tokens: Sequence[int]) -> list[Scored]:
        """Answer the kept scores of tokens 1 .. len(tokens) - 1, in `extents`, with `NUM_TOP` alternatives."""
        slots = [
            slot for extent in extents_between(extents, 1, len(tokens)) for slot in range(extent.start, extent.stop)
        ]
        ids, logprobs = self._top_ids[slots].tolist(), self._top_logprobs[slots].tolist()
        own = self._logprobs[slots].tolist()
        return [
            Scored(token_id, logprob, tuple(zip(best_ids, best, strict=True)))
            for token_id, logprob, best_ids, best in zip(tokens[1:], own, ids, logprobs, strict=True)
        ]
