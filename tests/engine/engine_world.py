"""What the engine's tests lean on: an untouched cold model, engines over small pools, and steps made by hand.

`Cold` is the judge: the same weights through Transformers' plain forward pass, without any cache. An answer is checked
in one pass over prompt and answer: where every token is the best one behind everything in front of it, the answer is
the cold greedy answer. Where the two best scores lie within `NEAR_TIE` either may be chosen; such cases are counted.
"""

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anaphora.core.cache import Cache, PrefixCache
from anaphora.core.extent import Extent
from anaphora.core.namespace import namespace_of
from anaphora.engine.decoder_weights import why_not_native
from anaphora.engine.engine import Engine
from anaphora.engine.job import Job
from anaphora.engine.kv_pool import KvPool
from anaphora.engine.models.fetch import default_cache_dir
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.native.library import Kernels, load_kernels
from anaphora.engine.native_runner import NativeRunner
from anaphora.engine.request import DEFAULT_TENANT, Generation, GenerationRequest, Keep, RequestId, Sampling, Tenant
from anaphora.engine.runner import ExtentRunner, Runner
from anaphora.engine.sequence import Sequence as TokenSequence
from anaphora.engine.settings import EngineSettings
from anaphora.engine.step import Rows, extents_between, plan_step
from anaphora.engine.stepper import Limits, Stepper
from anaphora.engine.stream import Stream
from anaphora.errors import EngineStopped
from anaphora.testing.random_models import random_model

NEAR_TIE = 1e-3
TOLERANCE = 1e-4
"""Largest difference of scores, relative to their largest magnitude (or 1)."""

Tokens = NDArray[np.int32]

_ids = itertools.count()


def random_tokens(rng: np.random.Generator, num_tokens: int, *, vocab_size: int = 256) -> Tokens:
    """Draw a prompt without special tokens."""
    return rng.integers(0, vocab_size, num_tokens).astype(np.int32)


class Cold:
    """The same model, never touched by an engine."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.model = loaded.model
        self.ends = loaded.spec.end_token_ids
        self.num_near_ties = 0
        self.num_tokens_compared = 0

    def logits(self, tokens: Iterable[int]) -> Tensor:  # [num_tokens, vocab_size]
        ids = torch.tensor([list(map(int, tokens))])
        with torch.inference_mode():
            return self.model(input_ids=ids, use_cache=False).logits[0].float()

    def check_scores(self, found: Tensor, expected: Tensor) -> None:
        """Assert that scores are equal but for rounding."""
        scale = max(1.0, float(expected.abs().max()))
        worst = float((found.float() - expected).abs().max())
        assert worst <= TOLERANCE * scale, f"scores differ by {worst} at a magnitude of {scale}"

    def check_answer(self, prompt: Iterable[int], answer: Sequence[int]) -> None:
        """Assert that a greedy answer is the cold one, but for near ties, which are counted."""
        prompt = list(map(int, prompt))
        logits = self.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]
        for place, (token_id, row) in enumerate(zip(answer, logits, strict=True)):
            self.num_tokens_compared += 1
            best = torch.topk(row, 2).values
            if token_id == int(row.argmax()):
                continue
            is_tie = float(best[0] - best[1]) <= NEAR_TIE and float(best[0] - row[token_id]) <= NEAR_TIE
            assert is_tie, (
                f"token {place} is {token_id}, cold is {int(row.argmax())}: not a near tie "
                f"({self.num_near_ties} near ties in {self.num_tokens_compared} tokens so far)"
            )
            self.num_near_ties += 1

    def check(self, prompt: Iterable[int], generation: Generation, *, max_tokens: int) -> None:
        """Assert that every completion is the cold greedy answer, whole."""
        for completion in generation.completions:
            self.check_answer(prompt, completion.token_ids)
            assert completion.finish_reason in ("stop", "length")
            if completion.finish_reason == "length":
                assert len(completion.token_ids) == max_tokens
            else:
                assert completion.token_ids[-1] in self.ends
        check_receipt(generation)


def check_receipt(generation: Generation) -> None:
    """Assert what must hold for every receipt."""
    receipt = generation.receipt
    assert receipt.num_prompt_tokens == receipt.num_reused_tokens + receipt.num_computed_tokens
    assert receipt.num_computed_tokens >= 1
    assert receipt.num_generated_tokens == sum(len(one.token_ids) for one in generation.completions)
    if not receipt.num_loaded_tokens:
        assert receipt.source == ("device" if receipt.num_reused_tokens else "none")
    else:
        assert receipt.source == ("disk" if receipt.num_loaded_tokens == receipt.num_reused_tokens else "both")
    assert 0 <= receipt.queue_time_s <= receipt.total_time_s
    assert 0 <= receipt.time_to_first_token_s <= receipt.total_time_s


def make_runner(loaded: LoadedModel, pool: KvPool, *, kernels: str = "auto") -> ExtentRunner | NativeRunner:
    """Set up the runner that an engine would choose, over a given pool and without the self-test."""
    if kernels == "auto" and why_not_native(loaded) is None:
        built = load_kernels(default_cache_dir())
        if isinstance(built, Kernels):
            return NativeRunner(loaded, pool, built)
    return ExtentRunner(loaded, pool)


def cold_copy(family: str) -> Cold:
    return Cold(random_model(family))


def small_engine(family: str | LoadedModel, *, num_slots: int = 1024, **settings: object) -> Engine:
    """Build an engine for a tiny random model over a pool of `num_slots` tokens."""
    loaded = random_model(family) if isinstance(family, str) else family
    size_bytes = num_slots * loaded.spec.kv_bytes_per_token(loaded.dtype)
    return Engine(loaded, EngineSettings(kv_pool_bytes=size_bytes, num_threads=1, **settings))  # type: ignore[arg-type]


def request_for(
    tokens: Iterable[int], sampling: Sampling, *, tenant: Tenant = DEFAULT_TENANT, timeout_s: float | None = None
) -> GenerationRequest:
    ids = np.asarray(list(map(int, tokens)), dtype=np.int32)
    return GenerationRequest(RequestId(f"test-{next(_ids)}"), ids, sampling, tenant, timeout_s)


def check_is_idle(engine: Engine) -> None:
    """Assert that nothing is running, nothing is leased, and the cache is whole."""
    stepper = engine._stepper
    settled = threading.Event()
    with suppress(EngineStopped):
        engine._loop.post(lambda _: settled.set())  # behind every abort
        assert settled.wait(60)
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_leased_slots) == (0, 0, 0)
    assert stats.num_free_slots + stats.num_evictable_slots == stats.num_slots
    stepper.cache.check()
    assert not stepper._answers


class ByHand:
    """A stepper without its thread: every step is made by the test."""

    def __init__(
        self,
        family: str | LoadedModel,
        *,
        num_slots: int = 512,
        max_step_tokens: int = 64,
        max_sequences: int = 16,
        min_first_chunk: int = 1,
        kernels: str = "auto",
        wrap: Callable[[Runner], Runner] = lambda runner: runner,
    ) -> None:
        loaded = random_model(family) if isinstance(family, str) else family
        self.loaded = loaded
        self.now = 0.0
        self.cache: Cache = PrefixCache(num_slots, clock=lambda: self.now)
        self.pool = KvPool(loaded.spec, num_slots=num_slots, dtype=loaded.dtype, device=loaded.device)
        runner = wrap(make_runner(loaded, self.pool, kernels=kernels))
        limits = Limits(max_step_tokens, max_sequences, min_first_chunk, None)
        self.stepper = Stepper(loaded, self.cache, runner, limits=limits, clock=lambda: self.now)

    def add(
        self, tokens: Iterable[int], sampling: Sampling, *, tenant: Tenant = DEFAULT_TENANT, keep: tuple[Keep, ...] = ()
    ) -> Stream:
        request = dataclasses.replace(request_for(tokens, sampling, tenant=tenant), keep=keep)
        namespace = namespace_of(model_digest=self.loaded.spec.digest, tenant=tenant)
        room = self.loaded.spec.max_context - len(request.tokens)
        sequences = [
            TokenSequence(
                request,
                index,
                namespace=namespace,
                max_new_tokens=room if sampling.max_tokens is None else sampling.max_tokens,
            )
            for index in range(sampling.num_sequences)
        ]
        stream = Stream(request, abort=self.abort)
        job = Job(request, stream, now=self.now)
        self.stepper.prepare(job, sequences)
        self.stepper.add(job)
        return stream

    def abort(self, stream: Stream) -> None:
        if (job := self.stepper.jobs.get(id(stream))) is not None:
            self.stepper.abort(job)

    def step(self) -> bool:
        """Make one step and check the cache. False if there was nothing to do."""
        with torch.inference_mode():
            did = self.stepper.step()
        self.cache.check()
        return did

    def run(self, max_steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.step():
                assert not self.stepper.jobs, "jobs are left and nothing is scheduled"
                return
        raise AssertionError("the engine did not come to an end")

    def answer(self, tokens: Iterable[int], sampling: Sampling, *, tenant: Tenant = DEFAULT_TENANT) -> Generation:
        stream = self.add(tokens, sampling, tenant=tenant)
        self.run()
        return stream.result()

    def check_is_idle(self) -> None:
        self.cache.check()
        assert self.cache.counts().leased == 0
        assert not self.stepper.jobs
        assert not self.stepper._answers
        assert not self.stepper.scheduler.running
        assert not self.stepper.scheduler.waiting


class Slots:
    """Hands out the slots of a pool as scattered extents, each slot once."""

    def __init__(self, num_slots: int, rng: np.random.Generator, *, max_length: int) -> None:
        starts = list(range(0, num_slots, max_length))
        rng.shuffle(starts)
        self._rng = rng
        self._free = [Extent(start, min(max_length, num_slots - start)) for start in starts]

    def take(self, num_tokens: int) -> tuple[Extent, ...]:
        """Take slots for tokens: out of order, in runs of random length."""
        taken: list[Extent] = []
        while num_tokens:
            run = self._free.pop()
            length = min(num_tokens, int(self._rng.integers(1, run.length + 1)))
            taken.append(Extent(run.start, length))
            if length < run.length:
                self._free.append(Extent(run.start + length, run.length - length))
                self._rng.shuffle(self._free)  # type: ignore[arg-type]
            num_tokens -= length
        return tuple(taken)


class Direct:
    """A runner driven by hand: the test says which tokens lie where."""

    def __init__(self, family: str | LoadedModel, *, num_slots: int = 2048, kernels: str = "auto") -> None:
        loaded = random_model(family) if isinstance(family, str) else family
        pool = KvPool(loaded.spec, num_slots=num_slots, dtype=loaded.dtype, device=loaded.device)
        for tensor in (*pool.keys, *pool.values):
            tensor.fill_(torch.nan)  # what nobody wrote must never be read
        self.runner = make_runner(loaded, pool, kernels=kernels)

    def step(self, parts: Sequence[tuple[Tokens, int, int, tuple[Extent, ...]]]) -> list[Tensor]:
        """Run tokens[start:stop] of several sequences in one step; answer the logits of all their rows."""
        rows: list[Rows] = []
        row_start = 0
        for index, (_, start, stop, extents) in enumerate(parts):
            rows.append(Rows(index, row_start, stop - start, start, extents))
            row_start += stop - start
        tokens = np.concatenate([tokens[start:stop] for tokens, start, stop, _ in parts])
        positions = np.concatenate([np.arange(start, stop) for _, start, stop, _ in parts])
        with torch.inference_mode():
            logits = self.runner.run(tokens, positions, plan_step(rows), range(row_start))
        return [logits[own.row_start : own.row_stop].float() for own in rows]

    def prefill(self, tokens: Tokens, extents: tuple[Extent, ...], *, chunk: int) -> Tensor:
        """Compute tokens in chunks; answer the logits of all rows."""
        found = [
            self.step([(tokens, start, min(start + chunk, len(tokens)), extents)])[0]
            for start in range(0, len(tokens), chunk)
        ]
        return torch.cat(found)


def first_of(extents: tuple[Extent, ...], num_tokens: int) -> tuple[Extent, ...]:
    return tuple(extents_between(extents, 0, num_tokens))
