"""Choose next tokens from logits.

Order for one row: logit bias, penalties, what the grammar allows, temperature, top-k, top-p, min-p, then one draw by
inverse distribution from the sequence's own random stream, so that an answer does not depend on what else ran in the
step.
Sources: top-k, Fan et al. 2018, arXiv:1805.04833; nucleus (top-p), Holtzman et al. 2019, arXiv:1904.09751; min-p,
Nguyen et al. 2024, arXiv:2407.01082; repetition penalty, Keskar et al. 2019, arXiv:1909.05858 section 4.1; presence
and frequency penalties as in OpenAI's API reference (generated tokens only).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anaphora.engine.grammar import Matcher
from anaphora.engine.request import Sampling

MIN_TEMPERATURE = 1e-30
"""Smaller ones count as this one: float32, in which logits are divided, would take them for 0."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A token with its log-probability under the model's own distribution, and the best alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token_id, logprob), best first


class TokenChooser:
    """One sequence's sampling state: its random stream, its counts of seen tokens, its place in a grammar."""

    def __init__(
        self,
        sampling: Sampling,
        prompt: NDArray[np.int32],
        *,
        index: int,
        vocab_size: int,
        matcher: Matcher | None = None,
    ) -> None:
        self.sampling = sampling
        self._matcher = matcher
        self._vocab_size = vocab_size
        key = sampling.seed if sampling.seed is not None else np.random.SeedSequence().entropy
        assert isinstance(key, int)
        self._random = np.random.Generator(np.random.Philox(np.random.SeedSequence([abs(key), index])))
        self._bias_ids = torch.tensor(list(sampling.logit_bias), dtype=torch.int64)
        self._bias = torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float32)
        self._prompt = torch.from_numpy(np.unique(prompt).astype(np.int64))
        self._counts: dict[int, int] = {}

    @property
    def is_plain_greedy(self) -> bool:
        """True if the answer is the arg-max of the untouched logits."""
        return self.sampling.temperature == 0 and not self._changes_logits and self._matcher is None

    @property
    def is_finished(self) -> bool:
        """True if the grammar allows nothing to follow."""
        return self._matcher is not None and self._matcher.is_finished

    @property
    def _changes_logits(self) -> bool:
        chosen = self.sampling
        penalties = chosen.presence_penalty, chosen.frequency_penalty, chosen.repetition_penalty - 1
        return bool(chosen.logit_bias) or any(penalties)

    def choose(self, logits: Tensor) -> int:  # logits: [vocab_size], float32, not changed
        """Pick the next token."""
        if self._changes_logits:
            logits = self._adjusted(logits.clone())
        if self._matcher is None:
            return self._pick(logits)
        allowed = torch.from_numpy(self._matcher.allowed)
        return self._matcher.recut(int(allowed[self._pick(logits[allowed])]))

    def saw(self, token_id: int) -> None:
        """Count a token that was generated. Raises: RequestError where the grammar can't be followed further."""
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        if self._matcher is not None:
            self._matcher.took(token_id)

    def _pick(self, logits: Tensor) -> int:  # logits: [num_candidates]; answers an index
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        # From the best one down, so that no temperature, however small, makes a score infinite.
        return self._draw((logits - logits.max()) / max(self.sampling.temperature, MIN_TEMPERATURE))

    def _adjusted(self, logits: Tensor) -> Tensor:
        chosen = self.sampling
        if chosen.logit_bias:
            logits[self._bias_ids] += self._bias
        ids = torch.tensor(list(self._counts), dtype=torch.int64)
        if chosen.repetition_penalty != 1:
            seen = torch.unique(torch.cat([self._prompt, ids]))
            values = logits[seen]
            factor = chosen.repetition_penalty
            logits[seen] = torch.where(values > 0, values / factor, values * factor)
        if self._counts and (chosen.presence_penalty or chosen.frequency_penalty):
            counts = torch.tensor(list(self._counts.values()), dtype=torch.float32)
            logits[ids] -= chosen.presence_penalty + chosen.frequency_penalty * counts
        return torch.nan_to_num_(logits)  # extreme settings may add up to infinity

    def _draw(self, logits: Tensor) -> int:
        chosen = self.sampling
        if chosen.top_k and chosen.top_k < len(logits):
            values, ids = torch.topk(logits, chosen.top_k)
        else:
            values, ids = torch.sort(logits, descending=True)
        probabilities = torch.softmax(values, dim=0)
        cumulative = torch.cumsum(probabilities, dim=0)
        kept = torch.ones_like(probabilities, dtype=torch.bool)
        if chosen.top_p < 1:
            kept &= cumulative - probabilities < chosen.top_p  # up to and with the token that reaches top_p
        if chosen.min_p > 0:
            kept &= probabilities >= chosen.min_p * probabilities[0]
        num_kept = max(1, int(kept.sum()))  # sorted, so what is kept is a head
        drawn = self._random.random() * float(cumulative[num_kept - 1])
        place = int(torch.searchsorted(cumulative[:num_kept], drawn, right=True))
        return int(ids[min(place, num_kept - 1)])


def score(logits: Tensor, token_ids: Sequence[int], *, num_top: int) -> list[Scored]:
    """Give the log-probability of one token per row of logits [num_rows, vocab_size], with `num_top` best ones."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    wanted = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None]
    own = logprobs.gather(1, wanted)[:, 0].tolist()
    values, ids = torch.topk(logprobs, num_top, dim=-1)
    tops = zip(ids.tolist(), values.tolist(), strict=True)
    return [
        Scored(token_id, logprob, tuple(zip(best, best_logprobs, strict=True)))
        for token_id, logprob, (best, best_logprobs) in zip(token_ids, own, tops, strict=True)
    ]
