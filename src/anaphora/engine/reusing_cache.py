"""One sequence of a PromptCache, as Transformers' `cache` (or `past_key_values`) argument.

    token   0 ........ num_reused ........ len(prompt) ........ length
            |  leased  |  fed by generate  |  generated, and fed back  |

A hook on the model tells this object which tokens go into each forward pass (`begin`); the layers then hand in the keys
of exactly those (`update`); a second hook confirms the pass (`end`). So nothing is ever filed under a token that a
caller only claims was computed.
"""

import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from anaphora.core.index import Tokens
from anaphora.engine.contiguous_room import ContiguousRoom, KvStore
from anaphora.engine.request import Receipt, RequestId, StopReason
from anaphora.errors import AnaphoraError, EngineFailure, RequestError

HARMLESS = frozenset(
    {
        "input_ids",
        "attention_mask",
        "position_ids",
        "cache",
        "past_key_values",
        "cache_position",
        "use_cache",
        "logits_to_keep",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
    }
)
"""Arguments of a model that are checked here, or that can't change its keys and values. Any other one is refused."""

_ONE_SEQUENCE = (
    "This cache serves one sequence, and the model was given {}. Attach and generate row by row, each row without its "
    "padding; or call PromptCache.generate, which runs what it can't reuse without the cache."
)


_SAME_PROMPT = "Attach the same input_ids that are passed to generate."


class ReusingCache(Cache):  # type: ignore[misc]  # Transformers' classes are Any here
    """A sequence whose cached prefix need not be computed. Made by `PromptCache.attach`; use it in a `with` block.

    Each step's keys are written into room taken beforehand, and the model reads a view: no step copies the cache.
    One thread at a time; different caches of one PromptCache may run in different threads.
    """

    def __init__(
        self,
        store: KvStore,
        room: ContiguousRoom,
        prompt: Tokens,
        *,
        receipt: Receipt,
        publish: Callable[[ContiguousRoom, Tokens], int],
    ) -> None:
        """Wrap a room. `receipt` is the account so far; `publish` keeps computed tokens and returns how many."""
        super().__init__(layers=[_Layer(self, index) for index in range(len(store.pool.keys))])
        self.store = store
        self.room = room
        self.step: tuple[int, int] | None = None  # tokens of the forward pass that runs now
        self._prompt = prompt
        self._tokens = prompt[: room.num_reused]  # tokens whose keys stand here, and those of the step
        self._num_done = room.num_reused  # tokens whose forward pass has ended
        self._num_lasting = room.num_reused  # of these, tokens that later prompts may reuse
        self._publish = publish
        self._receipt = receipt
        self._since = time.perf_counter()
        self._first_token_s = self._total_s = 0.0
        self._num_written = 0
        self._is_open = True
        self._abandon = weakref.finalize(self, _abandon, store, room)
        self._keep_first(room.num_reused)

    def __enter__(self) -> "ReusingCache":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(keep=kind is None)

    def close(self, *, keep: bool = True) -> None:
        """Give the room back, and with `keep` let later prompts reuse what was computed. Idempotent.

        Leaving a `with` block does this; after an exception it keeps nothing.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._abandon.detach()
        try:
            if keep and self._num_lasting > self.room.num_shared:
                self._num_written = self._publish(self.room, self._tokens[: self._num_lasting])
        finally:
            self.room.release()
            self._total_s = time.perf_counter() - self._since

    @property
    def receipt(self) -> Receipt:
        """The account of this sequence so far; final once the block is left."""
        given = self._receipt
        num_after = self._num_done - given.num_prompt_tokens
        return Receipt(
            request_id=given.request_id,
            num_prompt_tokens=given.num_prompt_tokens,
            num_reused_tokens=given.num_reused_tokens,
            num_computed_tokens=given.num_computed_tokens,
            num_written_tokens=self._num_written,
            num_generated_tokens=max(0, num_after + 1),  # the last one came out and was not fed back
            source=given.source,
            stop_reason=given.stop_reason,
            queue_time_s=0.0,
            time_to_first_token_s=self._first_token_s,
            total_time_s=time.perf_counter() - self._since if self._is_open else self._total_s,
        )

    def begin(self, given: dict[str, Any]) -> dict[str, Any]:
        """Take note of the tokens that a forward pass is about to compute; return arguments to be replaced.

        Raises: RequestError for anything that would make keys depend on more than the tokens in front of them.
        """
        self.must_be_open()
        fed = _fed_tokens(given)
        start = self._num_done
        self._keep_first(start)  # a pass that failed half-way left its keys in some layers
        num_skipped = _num_already_here(given, len(fed), start)
        if num_skipped:
            if not np.array_equal(fed[:start], self._tokens[:start]):
                raise RequestError("The tokens given are not those that this cache holds.", field="input_ids")
            fed = fed[start:]
        expected = self._prompt[start : start + len(fed)]
        if not np.array_equal(fed[: len(expected)], expected):
            raise RequestError(
                f"The tokens given are not those of the prompt that this cache was attached for. {_SAME_PROMPT}",
                field="input_ids",
            )
        self.room.make_writable(start, start + len(fed))
        self._tokens = np.concatenate([self._tokens[:start], fed])
        self.step = (start, start + len(fed))
        if not num_skipped:
            return {}
        return {name: given[name][..., start:] for name in ("input_ids", "position_ids")}

    def end(self) -> None:
        """Confirm the forward pass: its tokens are computed in every layer.

        Raises: EngineFailure if a layer never handed in its keys.
        """
        assert self.step is not None, "a pass ended that never began"
        _, stop = self.step
        self.step = None
        silent = [index for index, layer in enumerate(self.layers) if layer.length != stop]
        if silent:
            raise EngineFailure(f"Layers {silent} of the model did not hand in keys, so it can't be cached exactly.")
        self._num_done = stop
        if stop <= self.store.max_context:
            self._num_lasting = stop
        if not self._first_token_s and stop >= len(self._prompt):
            self._first_token_s = time.perf_counter() - self._since

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last tokens: -n removes n; a positive number is the length to keep (older Transformers); 0 is no-op.

        Assisted generation takes rejected drafts back this way.
        """
        self.must_be_open()
        if tokens_to_remove:
            length = tokens_to_remove if tokens_to_remove > 0 else self._num_done + tokens_to_remove
            self._keep_first(max(0, min(self._num_done, length)))

    def reset(self) -> None:
        """Drop all tokens; the cache then starts empty."""
        self.must_be_open()
        self._keep_first(0)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Refuse: beams are several sequences."""
        raise RequestError(_ONE_SEQUENCE.format("several beams"), field="num_beams")

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refuse: this is one sequence."""
        raise RequestError(_ONE_SEQUENCE.format(f"{repeats} copies of it"), field="input_ids")

    def batch_select_indices(self, indices: Tensor) -> None:
        """Refuse: this is one sequence."""
        raise RequestError(_ONE_SEQUENCE.format("a choice of rows"), field="input_ids")

    def __deepcopy__(self, memo: object) -> "ReusingCache":
        raise RequestError("This cache holds slots of a shared pool, so it can't be copied; attach again instead.")

    def must_be_open(self) -> None:
        """Raise AnaphoraError if the room was given back."""
        if not self._is_open:
            raise AnaphoraError(
                "This cache was given back when its `with` block ended, and its slots may hold another prompt now. "
                "Attach the prompt again; what was computed is reused."
            )

    def _keep_first(self, num_tokens: int) -> None:
        self._num_done = num_tokens
        self._num_lasting = min(self._num_lasting, num_tokens)
        for layer in self.layers:
            layer.length = num_tokens


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a sequence. Full length in every layer: where attention slides, Transformers' mask says so."""

    is_compileable = False
    is_croppable = True
    is_sliding = False

    def __init__(self, cache: ReusingCache, index: int) -> None:
        super().__init__()
        self.is_initialized = True
        self.length = 0
        self._cache = weakref.proxy(cache)
        self._index = index

    def update(
        self,
        key_states: Tensor,  # [1, num_kv_heads, num_rows, head_dim]
        value_states: Tensor,  # [1, num_kv_heads, num_rows, head_dim]
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:  # [1, num_kv_heads, num_tokens, head_dim]
        """Append a step's keys and values; return views of all so far.

        Cost: one write of the new rows.
        """
        cache = self._cache
        cache.must_be_open()
        keys, values = cache.store.pool.keys[self._index], cache.store.pool.values[self._index]
        start, stop = self._checked_step(key_states, value_states, keys)
        first = cache.room.first_slot
        keys[:, first + start : first + stop] = key_states[0]
        values[:, first + start : first + stop] = value_states[0]
        self.length = stop
        return keys[None, :, first : first + stop], values[None, :, first : first + stop]

    def _checked_step(self, key: Tensor, value: Tensor, pool: Tensor) -> tuple[int, int]:
        step: tuple[int, int] | None = self._cache.step
        if step is None:
            raise RequestError(
                "This cache only works with the model that its PromptCache was made for, called as model(...) or "
                "model.generate(...): a part of a model, or another model, can't say which tokens it computes."
            )
        start, stop = step
        expected = (1, pool.shape[0], stop - start, pool.shape[2])
        if key.shape != expected or value.shape != expected or self.length != start:
            raise EngineFailure(
                f"Layer {self._index} handed in keys {tuple(key.shape)} and values {tuple(value.shape)} where "
                f"{expected} was expected, so this model can't be cached exactly."
            )
        if key.dtype != pool.dtype or key.device != pool.device:
            raise RequestError(
                f"Keys come as {key.dtype} on {key.device}; this PromptCache was made for {pool.dtype} on "
                f"{pool.device}. Make it in the same state (dtype, device, autocast) that the model is run in."
            )
        if key.requires_grad or value.requires_grad:
            raise RequestError("Keys with gradients can't be cached. Run the model under torch.no_grad().")
        return start, stop

    def get_seq_length(self) -> int:
        """Count the tokens that this layer holds."""
        self._cache.must_be_open()
        return self.length

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        """Answer the length and offset of the keys that the mask is for. Older Transformers give the new positions."""
        num_rows = query_length.shape[0] if isinstance(query_length, Tensor) else query_length
        return self.get_seq_length() + num_rows, 0

    def get_max_length(self) -> int:
        """Say that there is no limit of the layer's own."""
        return -1

    def get_max_cache_shape(self) -> int:
        """Say what `get_max_length` says; its name in older Transformers."""
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the pool is there already."""


def why_not_one_row(input_ids: Any) -> str | None:
    """Say what is wrong with a prompt's shape; None if it is one row (or a flat list) of at least one token."""
    if not isinstance(input_ids, Tensor) or input_ids.dtype not in (torch.int64, torch.int32):
        return "the prompt is not a tensor of token ids"
    if input_ids.ndim not in (1, 2) or not input_ids.numel():
        return f"the prompt has shape {tuple(input_ids.shape)}, not [1, num_tokens]"
    if input_ids.ndim == 2 and input_ids.shape[0] != 1:
        return _ONE_SEQUENCE.format(f"{input_ids.shape[0]} rows")
    return None


def as_tokens(input_ids: Tensor) -> Tokens:
    """Copy one row of token ids to the core's form."""
    return input_ids.detach().reshape(-1).cpu().numpy().astype(np.int32)


def receipt_so_far(request_id: str, num_prompt_tokens: int, num_reused: int, stop_reason: StopReason) -> Receipt:
    """Open a sequence's account."""
    return Receipt(
        request_id=RequestId(request_id),
        num_prompt_tokens=num_prompt_tokens,
        num_reused_tokens=num_reused,
        num_computed_tokens=num_prompt_tokens - num_reused,
        num_written_tokens=0,
        num_generated_tokens=0,
        source="device" if num_reused else "none",
        stop_reason=stop_reason,
        queue_time_s=0.0,
        time_to_first_token_s=0.0,
        total_time_s=0.0,
    )


def _fed_tokens(given: dict[str, Any]) -> Tokens:
    unknown = sorted(name for name, value in given.items() if value is not None and name not in HARMLESS)
    if unknown:
        raise RequestError(
            f"The model is called with {', '.join(unknown)}: keys and values may depend on that, and only tokens are "
            "compared. Leave it out, or generate without this cache.",
            field=unknown[0],
        )
    input_ids = given.get("input_ids")
    if isinstance(input_ids, Tensor) and not input_ids.numel():
        raise RequestError(f"The model is given no tokens. {_SAME_PROMPT}", field="input_ids")
    if (problem := why_not_one_row(input_ids)) is not None:
        raise RequestError(problem[0].upper() + problem[1:], field="input_ids")
    assert isinstance(input_ids, Tensor)
    mask = given.get("attention_mask")
    if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 2 and bool((mask != 0).all())):
        raise RequestError(
            "The attention mask hides tokens, as padding does. Pass the prompt without padding. Where the padding "
            "token is part of the text, pass attention_mask=torch.ones_like(input_ids), or generate infers a mask.",
            field="attention_mask",
        )
    return as_tokens(input_ids)


def _num_already_here(given: dict[str, Any], num_fed: int, start: int) -> int:
    """Count the fed tokens that stand in the cache already: none, or all of its tokens.

    Assisted generation feeds the whole prompt in its first pass, whatever the cache holds.
    """
    position_ids = given.get("position_ids")
    if position_ids is None:
        return 0
    positions = position_ids.reshape(-1).tolist()
    if positions == list(range(start, start + num_fed)):
        return 0
    keep = given.get("logits_to_keep", 0)
    is_whole = positions == list(range(num_fed)) and num_fed > start
    if is_whole and isinstance(keep, int) and 1 <= keep <= num_fed - start:
        return start
    raise RequestError(
        f"The cache holds {start} tokens, so the model must be given the tokens from position {start} on, one position "
        f"each; it is given positions {positions[0]} to {positions[-1]}.",
        field="position_ids",
    )


def _abandon(store: KvStore, room: ContiguousRoom) -> None:
    store.abandoned.append(room.lease)
