"""The two that are compared: the engine, and an untouched copy of its model run by Transformers alone."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from anaphora.bench.texts import FreshTokens
from anaphora.engine.engine import Engine
from anaphora.engine.models.fetch import default_cache_dir
from anaphora.engine.models.loading import load_model
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.passing_thread import in_passing_thread
from anaphora.engine.request import GenerationRequest, Receipt, RequestId, Sampling
from anaphora.engine.settings import EngineSettings
from anaphora.engine.stepper import Stepper

ONE_TOKEN = Sampling(max_tokens=1, temperature=0.0, ignore_end=True)

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Timing:
    """When an engine's tokens arrived at the reader, in seconds after submission, and the account."""

    first_token_s: float
    last_token_s: float
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Timed:
    """How long a call took, and what it answered."""

    took_s: float
    result: Any


@dataclass(frozen=True, slots=True)
class Pair:
    engine: Engine
    plain: Any  # transformers.PreTrainedModel, as Transformers loads it
    fresh: FreshTokens

    def timed(self, tokens: Tokens, sampling: Sampling = ONE_TOKEN) -> Timing:
        """Submit a prompt to the engine and time its first and last token where the reader gets them."""
        start = time.perf_counter()
        stream = self.engine.submit(GenerationRequest(RequestId("bench"), tokens, sampling))
        arrivals = [time.perf_counter() - start for _ in stream]
        assert stream.receipt is not None
        return Timing(arrivals[0], arrivals[-1], stream.receipt)

    def followed(self, prefix: Tokens, num_new: int) -> Tokens:
        """Join a prefix and tokens that no cached prompt goes on with."""
        return np.concatenate([prefix, self.fresh.draw(num_new)])

    def forward(self, tokens: Tokens, cache: Any = None) -> Timed:
        """Time the plain model over tokens that follow those in `cache` (None: nothing)."""
        ids = torch.from_numpy(tokens).to(torch.int64)[None]
        return self.on_engine_thread(
            lambda: self.plain(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).cache
        )

    def on_engine_thread(self, work: Callable[[], Any]) -> Timed:
        """Time work of the plain model where the engine computes: same thread, same team of workers, same settings.

        A second computing thread in one process would slow both (see `anaphora.engine.passing_thread`).
        """
        done: Future[Timed] = Future()

        def order(stepper: Stepper) -> None:
            try:
                start = time.perf_counter()
                result = work()
                done.set_result(Timed(time.perf_counter() - start, result))
            except BaseException as error:  # handed to the waiting thread, which raises it
                done.set_exception(error)

        self.engine._loop.post(order)
        return done.result()


def plain_copy(model: str, cache_dir: Path | None) -> LoadedModel:
    """Load a model as Transformers does, for this process alone."""
    return load_model(model, cache_dir=cache_dir or default_cache_dir(), device=torch.device("cpu"), progress=False)


@contextmanager
def pair_of(model: str, *, cache_dir: Path | None, num_slots: int) -> Iterator[Pair]:
    """Give an engine with a pool of `num_slots` tokens and a plain copy of its model; close the engine afterwards."""
    plain = in_passing_thread(lambda: plain_copy(model, cache_dir).model)
    loaded = in_passing_thread(lambda: plain_copy(model, cache_dir))
    with pair_from(loaded, plain, num_slots=num_slots) as pair:
        yield pair


@contextmanager
def pair_from(loaded: LoadedModel, plain: PreTrainedModel, *, num_slots: int) -> Iterator[Pair]:
    """Do as `pair_of`, from models already loaded."""
    settings = EngineSettings(kv_pool_bytes=num_slots * loaded.spec.kv_bytes_per_token(loaded.dtype))
    with in_passing_thread(lambda: Engine(loaded, settings)) as engine:
        yield Pair(engine, plain, FreshTokens(loaded.spec.vocab_size))
