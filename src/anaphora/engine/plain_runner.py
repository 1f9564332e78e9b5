"""The runner for models whose KV can't be cached exactly: Transformers' own state, one sequence after another."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.step import StepPlan


class PlainRunner:
    """Keeps a Transformers cache per running sequence. Nothing is shared and nothing outlives the sequence.

    Recurrent layers of Transformers take a prompt in one piece only, so the scheduler must not cut prompts.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.model = loaded.model
        self.device = loaded.device
        self._states: dict[int, Any] = {}

    def run(self, tokens: NDArray[Any], positions: NDArray[Any], plan: StepPlan, logit_rows: Sequence[int]) -> Tensor:
        """See `Runner.run`. Cost: one forward pass per sequence."""
        wanted = set(logit_rows)
        found: dict[int, Tensor] = {}
        for rows in plan.sequences:
            if rows.position == 0:
                self._states[rows.sequence_id] = DynamicCache(config=self.model.config)
            ids = torch.from_numpy(tokens[rows.row_start : rows.row_stop]).to(self.device, torch.int64)[None]
            output = self.model(input_ids=ids, cache=self._states[rows.sequence_id], use_cache=True)
            for row in wanted.intersection(range(rows.row_start, rows.row_stop)):
                found[row] = output.logits[0, row - rows.row_start]
        return torch.stack([found[row] for row in logit_rows])

    def forget(self, sequence_id: int) -> None:
        """Drop a sequence's state."""
        self._states.pop(sequence_id, None)
