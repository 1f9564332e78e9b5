"""One ragged forward pass of a Transformers model over a step's rows."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import ref

import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from anaphora.engine.attention import AttentionKernel, ExtentAttention, kernel_for
from anaphora.engine.kv_pool import KvPool
from anaphora.engine.linear import can_pack, pack_linears, packed_bytes, unpack_linears
from anaphora.engine.memory import available_bytes
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.norm import fuse_norms
from anaphora.engine.step import StepPlan
from anaphora.errors import EngineFailure

_names = itertools.count()


class Runner(Protocol):
    """Run one step and answer the logits of chosen rows."""

    def run(
        self,
        tokens: NDArray[Any],  # [num_rows] int
        positions: NDArray[Any],  # [num_rows] int
        plan: StepPlan,
        logit_rows: Sequence[int],
    ) -> Tensor:  # [len(logit_rows), vocab_size]
        """Compute a step: KV of all rows is kept, logits of `logit_rows` come back."""
        ...

    def forget(self, sequence_id: int) -> None:
        """Drop whatever is kept for a sequence outside the pool."""
        ...


class ExtentRunner:
    """Runs any model that takes its attention function from Transformers' AttentionInterface.

    The model is changed in place: its attention reads the pool, its linear layers and norms may be replaced.
    """

    def __init__(self, loaded: LoadedModel, pool: KvPool, *, kernel: AttentionKernel | None = None) -> None:
        self.model = loaded.model
        self.device = loaded.device
        self.attention = ExtentAttention(pool, kernel or kernel_for(loaded.device))
        name = f"anaphora_{next(_names)}"
        AttentionInterface.register(name, _held_weakly(self.attention))
        AttentionMaskInterface.register(name, _no_mask)
        self.model.set_attn_implementation(name)
        self.num_packed = self.num_fused = 0
        if can_pack(loaded.dtype, loaded.device) and packed_bytes(self.model) <= available_bytes(self.device) // 2:
            self.num_packed, self.num_fused = pack_linears(self.model), fuse_norms(self.model)

    def run(self, tokens: NDArray[Any], positions: NDArray[Any], plan: StepPlan, logit_rows: Sequence[int]) -> Tensor:
        """See `Runner.run`. Cost: one forward pass.

        Raises: whatever the model raises; EngineFailure for keys or values that must not be kept. Slots of other
        sequences are untouched then.
        """
        self.attention.plan = plan
        try:
            output = self.model(
                input_ids=torch.from_numpy(tokens).to(self.device, torch.int64)[None],
                position_ids=torch.from_numpy(positions).to(self.device, torch.int64)[None],
                use_cache=False,
                logits_to_keep=torch.tensor(logit_rows, dtype=torch.int64, device=self.device),
            )
        finally:
            self.attention.plan = None
        if not self.attention.pool.is_finite(plan.writes):
            raise EngineFailure("the model's keys or values are not numbers")
        logits: Tensor = output.logits[0]
        return logits

    def restore(self, attention: str) -> None:
        """Give the model back its own attention and linear layers. The runner must not be used afterwards."""
        self.model.set_attn_implementation(attention)
        unpack_linears(self.model)

    def forget(self, sequence_id: int) -> None:
        """Nothing is kept outside the pool."""


def _held_weakly(attention: ExtentAttention) -> Callable[..., Any]:
    """Make a function for Transformers' registry, which keeps it for ever, that does not keep the pool alive."""
    reference = ref(attention)

    def attend(*args: Any, **kwargs: Any) -> Any:
        found = reference()
        assert found is not None, "the model outlived the runner that it was set up for"
        return found(*args, **kwargs)

    return attend


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Stand in for a mask: `ExtentAttention` knows from its plan who sees what."""
    return
