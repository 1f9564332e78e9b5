"""The door for people who keep their own `model.generate`: prefixes reused across calls, no server, no scheduler.

prompts = PromptCache(model)
with prompts.attach(inputs.input_ids) as cache:
    output = model.generate(**inputs, cache=cache, max_new_tokens=64)

output = prompts.generate(**inputs, max_new_tokens=64)     # the same in one line
"""

import inspect
import itertools
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anaphora.core.cache import PrefixCache
from anaphora.core.index import Tokens
from anaphora.core.lease import Counts
from anaphora.core.namespace import Namespace, namespace_of
from anaphora.engine.contiguous_room import ContiguousRoom, KvStore
from anaphora.engine.kv_pool import KvPool
from anaphora.engine.models.cacheable import why_not_cacheable
from anaphora.engine.models.spec import ModelDigest, ModelSpec
from anaphora.engine.request import StopReason
from anaphora.engine.reusing_cache import HARMLESS, ReusingCache, as_tokens, receipt_so_far, why_not_one_row
from anaphora.engine.weights_watch import WeightsWatch
from anaphora.errors import Overloaded, PromptTooLong, RequestError, SettingsError

DEFAULT_MAX_BYTES = 1 << 30
DEFAULT_NEW_TOKENS = 256
SELF_TEST_TOKENS = 24
SELF_TEST_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""Largest difference of scores, relative to their largest magnitude (or 1): rounding, with room to spare."""

_log = logging.getLogger(__name__)


class PromptCache:
    """Keys and values of the prompts that one Transformers model has seen, for every prompt that opens the same way.

    `attach` and `generate` may be called from several threads; a lock covers the bookkeeping, not the model's work.
    The model itself stays as it is, but for two hooks that `close` takes away again.
    """

    def __init__(self, model: Any, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Take a pool of at most `max_bytes` and try out that reuse changes nothing in this model's scores.

        Cost: four forward passes of up to 24 tokens.
        Raises: SettingsError if the model can't be cached exactly, with the reason, or if the bytes hold too little.
        """
        _must_be_servable(model)
        self._model = model
        self._parameters = frozenset(inspect.signature(model.forward).parameters)
        self._cache_name = "cache" if "cache" in self._parameters else "past_key_values"
        self._watch = WeightsWatch(model)
        spec, dtype, device = _probe(model)
        self._max_context = spec.max_context
        num_slots = max_bytes // spec.kv_bytes_per_token(dtype)
        if num_slots < 2 * SELF_TEST_TOKENS:
            raise SettingsError(
                f"max_bytes = {max_bytes} holds {num_slots} tokens of this model; the least is {2 * SELF_TEST_TOKENS} "
                f"tokens, {2 * SELF_TEST_TOKENS * spec.kv_bytes_per_token(dtype)} bytes."
            )
        with torch.inference_mode(False):
            pool = KvPool(spec, num_slots=num_slots, dtype=dtype, device=device)
        self.size_bytes = pool.size_bytes
        self._store = KvStore(pool, PrefixCache(num_slots, clock=time.monotonic), max_context=spec.max_context)
        self._ids = itertools.count()
        self._seen_changes = self._watch.look()
        self._is_open = True
        self._remove_hooks = weakref.finalize(self, _remove, _add_hooks(model, self._store))
        self._test_itself()

    def attach(self, input_ids: Tensor, *, num_new_tokens: int | None = None) -> ReusingCache:
        """Lease the longest cached prefix of a prompt as the `cache` argument of `model.generate`. Use it in a `with`.

        `input_ids` ([1, num_tokens] or [num_tokens]) must be what generate is given. Room for `num_new_tokens` is
        reserved behind the prompt (None: 256, or 1 where that is too much); a sequence that needs more gets it if there
        is any. Leaving the block makes
        everything computed in it reusable; an exception leaves nothing.
        Cost: 2 to 3 ms to look at the weights, and a copy of the prefix unless it stands in one run with room behind.
        Raises: RequestError, PromptTooLong, Overloaded, SettingsError.
        """
        if (problem := why_not_one_row(input_ids)) is not None:
            raise RequestError(problem[0].upper() + problem[1:], field="input_ids")
        tokens = as_tokens(input_ids)
        if len(tokens) > self._max_context:
            raise PromptTooLong(
                f"The prompt has {len(tokens)} tokens; keys of this model are cached up to {self._max_context}.",
                field="input_ids",
            )
        if self._model.training:
            raise RequestError(_TRAINING)
        namespace, changes = self._namespace()
        whole = self._stop_reason(namespace, tokens)
        room = self._room(namespace, tokens, num_new_tokens)
        reason = whole if room.num_reused else "nothing_cached"
        receipt = receipt_so_far(f"prompt-{next(self._ids)}", len(tokens), room.num_reused, reason)
        return ReusingCache(self._store, room, tokens, receipt=receipt, publish=self._publisher(changes))

    def generate(self, inputs: Tensor | None = None, **options: Any) -> Any:
        """Do as `model.generate` with the same arguments, reusing and keeping what can be.

        What can't be reused exactly (several rows, beams or answers, padding, embeddings, a cache of the caller's)
        runs as it would without this object. `model.generate = prompts.generate` gives it to code that you don't call
        yourself, such as a pipeline.
        Raises: whatever `model.generate` raises.
        """
        generate = type(self._model).generate
        input_ids = inputs if inputs is not None else options.get("input_ids")
        reason = self._why_plain(input_ids, options)
        if reason is not None or not isinstance(input_ids, Tensor):
            _log.info("generated without reuse: %s", reason)
            return generate(self._model, inputs, **options)
        try:
            cache = self.attach(input_ids, num_new_tokens=self._num_new_tokens(input_ids.shape[1], options))
        except (PromptTooLong, Overloaded) as error:
            _log.info("generated without reuse: %s", error)
            return generate(self._model, inputs, **options)
        with cache:
            return generate(self._model, inputs, **options, **{self._cache_name: cache})

    def clear(self) -> int:
        """Forget everything; return how many tokens that was. What is attached now stays good for its holder."""
        with self._store.lock:
            self._store.sweep()
            return self._store.cache.clear(None)

    def counts(self) -> Counts:
        """Count slots (tokens) by state."""
        with self._store.lock:
            self._store.sweep()
            return self._store.cache.counts()

    def check(self) -> None:
        """Assert every invariant of the bookkeeping. Cost: O(slots)."""
        with self._store.lock:
            self._store.cache.check()

    def close(self) -> None:
        """Take the hooks off the model and forget everything. Idempotent; nothing can be attached afterwards."""
        self._is_open = False
        self._remove_hooks()
        self.clear()

    def __enter__(self) -> "PromptCache":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _room(self, namespace: Namespace, tokens: Tokens, num_new_tokens: int | None) -> ContiguousRoom:
        if num_new_tokens is not None:
            return ContiguousRoom(self._store, namespace, tokens, num_new_tokens=max(1, num_new_tokens))
        try:
            return ContiguousRoom(self._store, namespace, tokens, num_new_tokens=DEFAULT_NEW_TOKENS)
        except (PromptTooLong, Overloaded):
            return ContiguousRoom(self._store, namespace, tokens, num_new_tokens=1)

    def _namespace(self) -> tuple[Namespace, int]:
        """Name the keys of the weights as they are now; forget those of earlier weights."""
        if not self._is_open:
            raise RequestError("This PromptCache was closed.")
        with self._store.lock:
            changes = self._watch.look()
            if changes != self._seen_changes:
                self._store.cache.clear(None)
                self._seen_changes = changes
        return namespace_of(model_digest=changes.to_bytes(8, "little"), tenant=""), changes

    def _publisher(self, changes: int) -> Callable[[ContiguousRoom, Tokens], int]:
        """Keep what was computed, unless the weights changed meanwhile."""

        def publish(room: ContiguousRoom, tokens: Tokens) -> int:
            with self._store.lock:
                is_same = self._watch.look() == changes
            return room.publish(tokens) if is_same else 0

        return publish

    def _stop_reason(self, namespace: Namespace, tokens: Tokens) -> StopReason:
        with self._store.lock:
            match = self._store.cache.peek(namespace, tokens)
        if match.num_tokens == len(tokens):
            return "whole_prompt"
        if match.diverged and match.num_tokens:
            return "diverged"
        return "ended" if match.num_tokens else "nothing_cached"

    def _why_plain(self, input_ids: Any, options: dict[str, Any]) -> str | None:
        """Say why a call is not for the cache; None if it is."""
        if (problem := why_not_one_row(input_ids)) is not None:
            return problem
        if input_ids.ndim != 2:
            return "the prompt is not [1, num_tokens]"
        for name in sorted((_OF_THE_CALLER | self._parameters - HARMLESS) & options.keys()):
            if options[name] is not None:
                return f"{name} is given"
        config = self._generation_options(options)
        if _hides_tokens(input_ids, options.get("attention_mask"), config):
            return "the attention mask hides tokens, as padding does"
        if (config("num_return_sequences") or 1) != 1 or (config("num_beams") or 1) != 1:
            return "several sequences are asked for"
        if config("use_cache") is False or config("cache_implementation") is not None:
            return "another cache, or none, is asked for"
        return "the model is in training mode" if self._model.training else None

    def _generation_options(self, options: dict[str, Any]) -> Callable[[str], Any]:
        """Look an option up where generate does: arguments, the given configuration, the model's own."""
        given, own = options.get("generation_config"), self._model.generation_config

        def find(name: str) -> Any:
            for value in (options.get(name), getattr(given, name, None), getattr(own, name, None)):
                if value is not None:
                    return value
            return None

        return find

    def _num_new_tokens(self, num_prompt_tokens: int, options: dict[str, Any]) -> int:
        find = self._generation_options(options)
        asked = find("max_new_tokens")
        if asked is None and (max_length := find("max_length")) is not None:
            asked = max_length - num_prompt_tokens
        return max(1, min(asked or DEFAULT_NEW_TOKENS, self._max_context - num_prompt_tokens + 1))

    def _test_itself(self) -> None:
        """Compare scores after a cached prefix with those of a full pass. Leaves the cache empty."""
        model, tokens = self._model, _test_tokens(self._model, self._max_context)
        half = tokens.shape[1] // 2
        with torch.no_grad():
            expected = model(input_ids=tokens, use_cache=False).logits[0, -1].float()
            with self.attach(tokens[:, :half], num_new_tokens=1) as cache:
                model(input_ids=tokens[:, :half], **{self._cache_name: cache})
            with self.attach(tokens, num_new_tokens=1) as cache:
                found = model(input_ids=tokens[:, half:], **{self._cache_name: cache}).logits[0, -1].float()
        difference = float((found - expected).abs().max())
        limit = SELF_TEST_TOLERANCE.get(self._store.pool.keys[0].dtype, 0.0)
        if not difference <= limit * max(1.0, float(expected.abs().max())):
            raise SettingsError(
                f"{type(model).__name__} can't be cached exactly: its scores after a cached prefix differ from a "
                f"full pass by {difference:.2g}."
            )
        self.clear()


_TRAINING = "The model is in training mode, where dropout changes keys. Call model.eval() first."

_OF_THE_CALLER = frozenset({"cache", "past_key_values", "position_ids", "custom_generate"})
"""Arguments that put part of the work into the caller's hands."""


def _hides_tokens(input_ids: Tensor, mask: Tensor | None, config: Callable[[str], Any]) -> bool:
    """Whether generate will mask some of the prompt: by a mask given, or by one that it infers from padding tokens."""
    if mask is not None:
        return not bool((mask != 0).all())
    pad, end = config("pad_token_id"), config("eos_token_id")
    ends = end if isinstance(end, list | tuple) else [end]
    return pad is not None and pad not in ends and bool((input_ids == pad).any())


def _must_be_servable(model: Any) -> None:
    if (reason := why_not_cacheable(type(model), model.config)) is not None:
        raise SettingsError(f"{reason}.")
    if model.training:
        raise SettingsError(_TRAINING)
    if str(getattr(model.config, "_attn_implementation", "")).startswith("anaphora"):
        raise SettingsError("This model belongs to an Engine, which has its own cache. Load another copy for this one.")
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1 or next(iter(devices)).type == "meta":
        names = ", ".join(sorted(map(str, devices)))
        raise SettingsError(f"The model must be on one device, with its weights in memory; it is on {names}.")


def _probe(model: Any) -> tuple[ModelSpec, torch.dtype, torch.device]:
    """Read the shape of a model's keys off a pass over one token, the same in all layers or refused."""
    with torch.no_grad():
        token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
        output = model(input_ids=token, use_cache=True)
    found = output.cache if "cache" in output else output.past_key_values
    shapes = {tensor.shape for layer in found.layers for tensor in (layer.keys, layer.values)}
    if len(shapes) != 1:
        raise SettingsError(f"{type(model).__name__} can't be cached here: its layers have keys of different shapes.")
    first = found.layers[0].keys
    text = model.config.get_text_config(decoder=True)
    spec = ModelSpec(
        name=type(model).__name__,
        architecture=type(model).__name__,
        num_layers=len(found.layers),
        num_heads=text.num_attention_heads,
        num_kv_heads=first.shape[1],
        head_dim=first.shape[3],
        vocab_size=output.logits.shape[-1],
        max_context=_max_context(text),
        end_token_ids=frozenset(),
        digest=ModelDigest(bytes(32)),
        not_cacheable_because=None,
    )
    return spec, first.dtype, first.device


def _max_context(text: Any) -> int:
    """Find how far keys of the same token are the same: beyond, "longrope" and "dynamic" positions change them all."""
    limits = [int(text.max_position_embeddings)] if getattr(text, "max_position_embeddings", None) else []
    waiting = [getattr(text, "rope_parameters", None)]
    while waiting:
        rope = waiting.pop()
        if not isinstance(rope, dict):
            continue
        if rope.get("rope_type") in ("longrope", "dynamic") and rope.get("original_max_position_embeddings"):
            limits.append(int(rope["original_max_position_embeddings"]))
        waiting += rope.values()
    return min(limits, default=1 << 20)


def _test_tokens(model: Any, max_context: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    tokens = torch.randint(0, vocab_size, (1, min(SELF_TEST_TOKENS, max_context)), generator=generator)
    return tokens.to(model.device)


def _add_hooks(model: Any, store: KvStore) -> tuple[Any, Any]:
    """Let each of the store's caches that the model is called with know its tokens, and when they are computed."""
    parameters = tuple(inspect.signature(model.forward).parameters)

    def attached(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[ReusingCache | None, dict[str, Any]]:
        given = dict(zip(parameters, args, strict=False)) | named
        for name in ("cache", "past_key_values"):
            if isinstance(found := given.get(name), ReusingCache) and found.store is store:
                return found, given
        return None, given

    def before(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], Any] | None:
        cache, given = attached(args, named)
        if cache is None:
            return None
        replaced = cache.begin(given)
        return ((), given | replaced) if replaced else None

    def after(module: Any, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        cache, _ = attached(args, named)
        if cache is not None:
            cache.end()

    return (
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after, with_kwargs=True),
    )


def _remove(handles: tuple[Any, Any]) -> None:
    for handle in handles:
        handle.remove()
