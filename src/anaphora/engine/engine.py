"""The engine's front door: load a model, submit requests, get streams.

Engine.load("smollm2-135m-instruct").generate("Say hello.").text
"""

import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as AbstractSequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anaphora.core.cache import Cache, PrefixCache
from anaphora.core.events import Event, Evicted, Stored
from anaphora.core.fates import Fate, Fates
from anaphora.core.namespace import namespace_of, shared_namespace_of
from anaphora.core.no_reuse import NoReuse
from anaphora.core.policy import POLICIES
from anaphora.engine.choose_runner import choose_runner
from anaphora.engine.durable.durable import Below, Durable
from anaphora.engine.durable.set_up import describe, open_tier
from anaphora.engine.job import Job
from anaphora.engine.kv_pool import KvPool
from anaphora.engine.loop import EngineLoop
from anaphora.engine.memory import available_bytes
from anaphora.engine.models.fetch import default_cache_dir
from anaphora.engine.models.loading import load_model
from anaphora.engine.models.spec import LoadedModel, ModelSpec
from anaphora.engine.passing_thread import in_passing_thread
from anaphora.engine.request import (
    DEFAULT_TENANT,
    Generation,
    GenerationRequest,
    RequestId,
    Sampling,
    StopReason,
    Tenant,
)
from anaphora.engine.runner import Runner
from anaphora.engine.sequence import Sequence
from anaphora.engine.settings import EngineSettings
from anaphora.engine.shares import cache_limits
from anaphora.engine.stats import EngineStats
from anaphora.engine.stepper import Limits, Stepper
from anaphora.engine.stream import Stream
from anaphora.engine.validate import check_keep, check_sampling
from anaphora.errors import EngineStopped, Overloaded, PromptTooLong, RequestError, SettingsError

Prompt = str | AbstractSequence[int] | AbstractSequence[Mapping[str, Any]]
"""Text, token ids, or chat messages (`{"role": ..., "content": ...}`)."""

DEFAULT_SETTINGS = EngineSettings()
MIN_SLOTS = 256


class Engine:
    """One model, its cache, and the thread that runs it. Close it, or use it as a context manager."""

    def __init__(
        self,
        loaded: LoadedModel,
        settings: EngineSettings = DEFAULT_SETTINGS,
        *,
        cache_dir: Path | None = None,
        wrap: Callable[[Runner], Runner] = lambda runner: runner,
    ) -> None:
        """Set up the pool, test that the model can be cached exactly, and start the engine's thread.

        Takes the model over: its attention and linear layers are replaced. `cache_dir` is where compiled kernels are
        kept, and keys and values that outlive the engine (default: the user's cache folder). `wrap` may put something
        between the engine and what runs its steps, to look at them: hooks on the model would keep the native kernels
        from it.
        Raises: SettingsError.
        """
        self.settings = settings
        self.tokenizer = loaded.tokenizer
        _check_settings(settings)
        num_slots = _num_slots(loaded, settings)
        max_context = min(settings.max_context or loaded.spec.max_context, loaded.spec.max_context)
        loaded = dataclasses.replace(loaded, spec=dataclasses.replace(loaded.spec, max_context=max_context))
        folder = cache_dir or default_cache_dir()
        chosen = in_passing_thread(
            lambda: choose_runner(loaded, num_slots=num_slots, kernels=settings.kernels, cache_dir=folder)
        )
        self.spec: ModelSpec = dataclasses.replace(loaded.spec, not_cacheable_because=chosen.refusal)
        self._num_slots = num_slots
        self._shared = shared_namespace_of(model_digest=self.spec.digest)
        self._fates = Fates(shared=self._shared)
        self._stepper = self._set_up(dataclasses.replace(loaded, spec=self.spec), wrap(chosen.runner))
        self._stepper.stats.kv_pool_bytes = num_slots * loaded.spec.kv_bytes_per_token(loaded.dtype)
        self.start_up_lines = (*self._describe(), chosen.kernels)
        self._loop = EngineLoop(self._stepper, num_threads=settings.num_threads, clock=time.monotonic)
        self._durable = self._keep_on_disk(chosen.pool, settings.disk_cache_dir or folder / "kv")
        self._ids = itertools.count()
        self._queue_lock = threading.Lock()
        self._num_joined_queue = 0
        self._loop.start()

    @classmethod
    def load(
        cls,
        model: str = "smollm2-135m-instruct",
        settings: EngineSettings = DEFAULT_SETTINGS,
        *,
        cache_dir: Path | None = None,
        name: str | None = None,
        progress: bool = True,
    ) -> "Engine":
        """Load a model by catalog name, hub id, folder or GGUF file, and start an engine for it.

        `cache_dir` is where fetched models and compiled kernels are kept (default: the user's cache folder).
        Raises: ModelUnavailable, SettingsError.
        """
        _check_settings(settings)
        folder = cache_dir or default_cache_dir()
        loaded = in_passing_thread(
            lambda: load_model(
                model,
                cache_dir=folder,
                dtype=getattr(torch, settings.dtype),
                rounding=settings.weights,
                device=torch.device(settings.device),
                name=name,
                progress=progress,
            )
        )
        return cls(loaded, settings, cache_dir=folder)

    def submit(self, request: GenerationRequest) -> Stream:
        """Queue a request; answer its stream at once. Thread-safe.

        Raises: RequestError (with the field), PromptTooLong, Overloaded, EngineStopped.
        """
        max_new_tokens = self._check(request)
        namespace = namespace_of(model_digest=self.spec.digest, tenant=request.tenant)
        sequences = [
            Sequence(request, index, namespace=namespace, max_new_tokens=max_new_tokens)
            for index in range(request.sampling.num_sequences)
        ]
        stream = Stream(request, abort=self._loop.abort)
        job = Job(request, stream, now=time.monotonic())
        self._stepper.prepare(job, sequences)
        self._join_queue()

        def order(stepper: Stepper) -> None:
            stepper.cache.register(namespace, request.tenant, shared=self._shared)
            stepper.add(job)

        self._loop.post(order)
        return stream

    def share(self, prompt: NDArray[np.int32] | AbstractSequence[int]) -> None:
        """Let all tenants share the cached tokens of a prefix, such as a system prompt, and nothing behind it.

        For the operator: whoever asks with this prefix may notice that somebody else has.
        """
        tokens = self.tokenise([int(token) for token in prompt])
        if not tokens.size:
            raise RequestError("A shared prefix has at least one token.", field="prompt")
        self._loop.post(lambda stepper: stepper.cache.share(self._shared, tokens))

    def generate(
        self, prompt: Prompt, sampling: Sampling | None = None, *, tenant: Tenant = DEFAULT_TENANT, **changes: Any
    ) -> Generation:
        """Answer a prompt; wait for the end. `changes` are fields of `Sampling`, such as `max_tokens=20`.

        Raises: as `submit`, RequestTimeout, EngineFailure.
        """
        return self._start(prompt, sampling, tenant, changes).result()

    def stream(
        self, prompt: Prompt, sampling: Sampling | None = None, *, tenant: Tenant = DEFAULT_TENANT, **changes: Any
    ) -> Stream:
        """Answer a prompt piece by piece: iterate the stream with `for` or `async for`, then read its receipt."""
        return self._start(prompt, sampling, tenant, changes)

    async def agenerate(
        self, prompt: Prompt, sampling: Sampling | None = None, *, tenant: Tenant = DEFAULT_TENANT, **changes: Any
    ) -> Generation:
        """Do as `generate`, in asyncio. Cancelling the task aborts the request."""
        stream = self._start(prompt, sampling, tenant, changes)
        try:
            return await stream.aresult()
        finally:
            stream.abort()

    def tokenise(self, prompt: Prompt) -> NDArray[np.int32]:
        """Turn a prompt into token ids [num_tokens]. Messages go through the model's chat template."""
        if isinstance(prompt, str):
            ids = self.tokenizer(prompt).input_ids
        elif len(prompt) and isinstance(prompt[0], Mapping):
            text = self.tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
            ids = self.tokenizer(text, add_special_tokens=False).input_ids
        else:
            ids = list(prompt)
        try:
            return np.asarray(ids, dtype=np.int32)
        except OverflowError as error:
            raise RequestError(f"The prompt has token ids that no vocabulary has: {error}.", field="prompt") from error

    def check_grammar(self, grammar: str) -> None:
        """Compile a grammar for `Sampling.grammar`, so that `submit` finds it ready. Thread-safe.

        Raises: RequestError saying why it can't be followed.
        """
        self._stepper.grammars.check(grammar)

    def stats(self) -> EngineStats:
        """Count what the engine did so far and what it holds now. Thread-safe; a snapshot, not a lock."""
        stepper = self._stepper
        counts = stepper.cache.counts()
        stats = stepper.stats.copy()
        stats.num_running = len(stepper.scheduler.running)
        stats.num_waiting = len(stepper.scheduler.waiting)
        stats.num_preemptions, stats.num_joined = stepper.scheduler.num_preemptions, stepper.scheduler.num_joined
        stats.num_slots, stats.num_free_slots = counts.total, counts.free
        stats.num_evictable_slots, stats.num_leased_slots = counts.evictable, counts.leased
        stats.num_retained_slots = counts.retained
        if self._durable is not None:
            stats.lower = self._durable.stats()
        return stats

    def preload(self, *, wait_s: float = 0.0) -> bool:
        """Load what was used last from disk into the pool; wait so long, and let the rest go on in the background.

        As much as the settings say, into free slots only. Declare what is shared before. True: all of it is there.
        """
        if self._durable is None:
            return True
        self._durable.preload(self.settings.disk_preload_bytes)
        return self._durable.wait_for_preload(wait_s)

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Wait until what was cached so far is on disk. False if that takes longer. Nothing to wait for without one."""
        settled = threading.Event()
        self._loop.post(lambda _: settled.set())  # behind the requests that have just ended
        if not settled.wait(timeout_s) or self._durable is None:
            return self._durable is None
        return self._durable.wait(timeout_s)

    def fate(self, tokens: NDArray[np.int32], num_reused: int, *, tenant: Tenant, age_s: float) -> Fate | None:
        """Tell what became of a prompt's token behind the first `num_reused`, which was cached `age_s` ago.

        None: not known. Thread-safe.
        """
        namespace = namespace_of(model_digest=self.spec.digest, tenant=tenant)
        return self._fates.of(namespace, tokens, num_reused, age_s=age_s, now=time.monotonic())

    def close(self) -> None:
        """End all requests with EngineStopped, write what is to stay on disk, and stop the threads. Idempotent."""
        self._loop.stop()
        if self._durable is not None:
            self._durable.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _join_queue(self) -> None:
        """Count a request among the waiting ones, those that the engine's thread has not seen yet included.

        Raises: Overloaded.
        """
        stepper, settings = self._stepper, self.settings
        with self._queue_lock:
            num_waiting = self._num_joined_queue - stepper.num_left_queue
            num_seats = max(0, settings.max_sequences - len(stepper.scheduler.running))
            if num_waiting >= settings.queue_length + num_seats:
                stepper.stats.num_refused += 1
                raise Overloaded(
                    f"The queue is full ({settings.queue_length} requests wait). Try again later.", retry_after_s=1.0
                )
            self._num_joined_queue += 1

    def _start(self, prompt: Prompt, sampling: Sampling | None, tenant: Tenant, changes: dict[str, Any]) -> Stream:
        chosen = dataclasses.replace(sampling or Sampling(), **changes)
        request_id = RequestId(f"local-{next(self._ids)}")
        return self.submit(GenerationRequest(request_id, self.tokenise(prompt), chosen, tenant))

    def _set_up(self, loaded: LoadedModel, runner: Runner) -> Stepper:
        settings, why_no_reuse = self.settings, self._why_no_reuse()
        cache: Cache
        if why_no_reuse is None:
            cache = PrefixCache(
                self._num_slots,
                policy=POLICIES[settings.policy],
                clock=time.monotonic,
                listener=self._count,
                limits=cache_limits(
                    settings,
                    num_slots=self._num_slots,
                    slot_bytes=loaded.spec.kv_bytes_per_token(loaded.dtype),
                    longest=min(self.spec.max_context, self._num_slots),
                ),
            )
        else:
            cache = NoReuse(self._num_slots, clock=time.monotonic)
        max_step_tokens, min_first_chunk = settings.max_step_tokens, 1
        if self.spec.not_cacheable_because is not None:  # a recurrent model takes its prompt in one piece
            min_first_chunk = self.spec.max_context
            max_step_tokens = max(max_step_tokens, self.spec.max_context + settings.max_sequences)
        limits = Limits(max_step_tokens, settings.max_sequences, min_first_chunk, why_no_reuse)
        return Stepper(loaded, cache, runner, limits=limits, clock=time.monotonic)

    def _keep_on_disk(self, pool: KvPool | None, folder: Path) -> Durable | None:
        """Set up what lies below the pool. None: nothing does."""
        cap_bytes = self.settings.disk_cache_bytes
        if pool is None or not cap_bytes or not self.settings.cache:
            return None
        tier = open_tier(folder, cap_bytes=cap_bytes)
        self.start_up_lines = (*self.start_up_lines, describe(tier, folder))
        below = Below(tier, pool, self.spec, self._shared)
        stepper = self._stepper

        def post(order: Callable[[], None]) -> None:
            with contextlib.suppress(EngineStopped):
                self._loop.post(lambda _: order())

        durable = Durable(below, stepper.cache, stepper.scheduler, post=post)
        stepper.scheduler.lower = durable
        return durable

    def _count(self, event: Event) -> None:
        self._fates.note(event)
        if isinstance(event, Evicted):
            self._stepper.stats.num_evicted_tokens += event.num_tokens
        elif isinstance(event, Stored):
            self._stepper.stats.num_written_tokens += event.num_tokens

    def _why_no_reuse(self) -> StopReason | None:
        if self.spec.not_cacheable_because is not None:
            return "not_cacheable"
        return None if self.settings.cache else "cache_off"

    def _describe(self) -> tuple[str, ...]:
        stats = self._stepper.stats
        size = f"{self._num_slots:,} tokens of keys and values ({stats.kv_pool_bytes / 2**20:,.0f} MiB)"
        if self.spec.not_cacheable_because is not None:
            reuse = f"Reuse: none. {self.spec.not_cacheable_because}."
        elif not self.settings.cache:
            reuse = "Reuse: turned off by the setting `cache`."
        else:
            reuse = "Reuse: any prefix from 1 token on, to the token; only the last token of a prompt always runs."
        return (f"{self.spec.name}: context {self.spec.max_context:,} tokens, pool {size}.", reuse)

    def _check(self, request: GenerationRequest) -> int:
        """Validate a request; answer how many tokens it may generate."""
        check_sampling(request.sampling, vocab_size=self.spec.vocab_size)
        check_keep(request)
        tokens, limit = request.tokens, min(self.spec.max_context, self._num_slots)
        if not len(tokens):
            raise RequestError("The prompt is empty: it needs at least one token.", field="prompt")
        if int(tokens.min()) < 0 or int(tokens.max()) >= self.spec.vocab_size:
            raise RequestError(
                f"The prompt has token ids outside [0, {self.spec.vocab_size}), the model's vocabulary.", field="prompt"
            )
        asked = request.sampling.max_tokens
        room = limit - len(tokens)
        if room < (0 if asked == 0 else 1):
            raise PromptTooLong(
                f"The prompt has {len(tokens)} tokens; with at least one of answer that is more than the limit of "
                f"{limit} tokens. Shorten the prompt.",
                field="prompt",
            )
        if asked is not None and asked > room:
            raise PromptTooLong(
                f"The prompt's {len(tokens)} tokens and max_tokens = {asked} are together more than the limit of "
                f"{limit} tokens. Use max_tokens <= {room} or a shorter prompt.",
                field="max_tokens",
            )
        return room if asked is None else asked


def _check_settings(settings: EngineSettings) -> None:
    if settings.policy not in POLICIES:
        raise SettingsError(f"policy = {settings.policy!r} is unknown. Choose one of: {', '.join(sorted(POLICIES))}.")
    for name in ("max_step_tokens", "max_sequences", "queue_length", "max_context", "num_threads"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise SettingsError(f"{name} = {value} is not allowed: it has to be 1 or more.")
    for name in ("retention_bytes", "default_quota_bytes"):
        if (getattr(settings, name) or 0) < 0:
            raise SettingsError(f"{name} = {getattr(settings, name)} is not allowed: it has to be 0 or more.")
    _check_device(settings.device)


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # what torch raises depends on its build
        reason = str(error).splitlines()[0]
        raise SettingsError(f"device = {name!r} can't be used here: {reason}. Use device = 'cpu'.") from error


def _num_slots(loaded: LoadedModel, settings: EngineSettings) -> int:
    """Turn the byte budget into slots. The default is a quarter of the memory that is free now."""
    per_token = loaded.spec.kv_bytes_per_token(loaded.dtype)
    budget = settings.kv_pool_bytes
    if budget is None:
        budget = max(available_bytes(loaded.device) // 4, MIN_SLOTS * per_token)
    num_slots = int(budget // per_token)
    if num_slots < MIN_SLOTS:
        raise SettingsError(
            f"kv_pool_bytes = {budget} holds {num_slots} tokens of {loaded.spec.name} ({per_token} bytes each); "
            f"the least is {MIN_SLOTS} tokens, {MIN_SLOTS * per_token} bytes."
        )
    return num_slots
