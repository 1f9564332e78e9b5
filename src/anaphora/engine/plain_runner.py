"""The runner for models whose KV can't be cached exactly: Transformers' own state, one sequence after another."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.step import Rows, StepPlan


class PlainRunner:
    """Keeps a Transformers cache per running sequence. Nothing is shared and nothing outlives the sequence.

    Recurrent layers of Transformers take a prompt in one piece only, so the scheduler must not cut prompts. They can't
    take a token back either: where a step is run again, after another sequence of it has failed, a sequence that was
    done with its rows gives the same scores again.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.model = loaded.model
        self.device = loaded.device
        self._states: dict[int, Any] = {}
        self._latest: dict[int, tuple[Rows, dict[int, Tensor]]] = {}  # sequence id -> latest rows, scores by row index

    def run(self, tokens: NDArray[Any], positions: NDArray[Any], plan: StepPlan, logit_rows: Sequence[int]) -> Tensor:
        """See `Runner.run`. Cost: one forward pass per sequence."""
        wanted = set(logit_rows)
        found: dict[int, Tensor] = {}
        for rows in plan.sequences:
            own = wanted.intersection(range(rows.row_start, rows.row_stop))
            scores = self._scores(rows, tokens, [row - rows.row_start for row in sorted(own)])
            found.update({rows.row_start + index: row_scores for index, row_scores in scores.items()})
        return torch.stack([found[row] for row in logit_rows])

    def _scores(self, rows: Rows, tokens: NDArray[Any], indices: list[int]) -> dict[int, Tensor]:
        """Run one sequence's rows; answer the scores of those at `indices`, by index."""
        if (latest := self._latest.get(rows.sequence_id)) is not None:
            before, scores = latest
            if (before.position, before.num_rows) == (rows.position, rows.num_rows):
                return scores
        if rows.position == 0:
            self._states[rows.sequence_id] = DynamicCache(config=self.model.config)
        ids = torch.from_numpy(tokens[rows.row_start : rows.row_stop]).to(self.device, torch.int64)[None]
        output = self.model(input_ids=ids, cache=self._states[rows.sequence_id], use_cache=True)
        scores = {index: output.logits[0, index].clone() for index in indices}
        self._latest[rows.sequence_id] = rows, scores
        return scores

    def forget(self, sequence_id: int) -> None:
        """Drop a sequence's state."""
        self._states.pop(sequence_id, None)
        self._latest.pop(sequence_id, None)
