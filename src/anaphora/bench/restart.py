"""What a restart costs: the first token of a prompt that the server before it has computed. And what keeping it costs.

server 1    prompt, cold -> on disk                      stopped
server 2    prompt again: from disk     again, again: from memory        the ratio of the two
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
import numpy as np
from numpy.typing import NDArray

from anaphora.bench.lines import Line, at_least, at_most
from anaphora.bench.load.servers import ServeSetting, running_server
from anaphora.bench.texts import FreshTokens
from anaphora.bench.timing import interleaved, ratio, seconds
from anaphora.engine.engine import Engine
from anaphora.engine.models.fetch import default_cache_dir
from anaphora.engine.request import GenerationRequest, RequestId, Sampling
from anaphora.engine.settings import EngineSettings

MAX_RESTARTED = at_most(2)
MIN_KEEPING = at_least(0.97)

_VOCABULARY = 256
"""Prompts are made of the first token ids, which every model has."""
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to start the server again."""

    name: str
    flags: tuple[str, ...]
    has_target: bool


WAYS = (
    Way("loaded before anybody asks", (), has_target=True),
    Way("loaded when asked for", ("--disk-preload-bytes", "0"), has_target=False),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run, and how often."""

    sizes: tuple[int, ...] = (2000, 6000)  # tokens of the prompts
    ways: tuple[Way, ...] = WAYS
    num_restarts: int = 3
    num_hits: int = 5  # of each prompt, in each server
    num_waves: int = 5  # of prompts that nobody has cached, with disk and without
    wave: tuple[int, int, int] = (8, 400, 16)  # requests, tokens of each, tokens of each answer


def restart_lines(model: str, plan: Plan, *, cache_dir: Path | None, flags: tuple[str, ...] = ()) -> Iterator[Line]:
    """Yield, for each way and size, time to the first token after a restart over that in memory. Real processes."""
    home = cache_dir or default_cache_dir()
    fresh = FreshTokens(_VOCABULARY)
    prompts = {size: fresh.draw(size) for size in plan.sizes}
    with tempfile.TemporaryDirectory(dir=home) as folder:
        serve = ("--model", model, "--disk-cache-bytes", "4GiB", "--disk-cache-dir", folder, *flags)
        with _client(serve) as first_token_s:
            cold = {size: first_token_s(prompt) for size, prompt in prompts.items()}
        for way in plan.ways:
            restarted: dict[int, list[float]] = {size: [] for size in plan.sizes}
            hits: dict[int, list[float]] = {size: [] for size in plan.sizes}
            for _ in range(plan.num_restarts):
                with _client((*serve, *way.flags)) as first_token_s:
                    for size, prompt in prompts.items():
                        restarted[size].append(first_token_s(prompt))
                        hits[size] += [first_token_s(prompt) for _ in range(plan.num_hits)]
            for size in plan.sizes:
                yield Line(
                    f"restart, then the same {size:,} tokens, {way.name}: / in memory",
                    ratio(restarted[size], hits[size]),
                    "x",
                    MAX_RESTARTED if way.has_target else None,
                    {
                        "restarted_ms": 1e3 * median(restarted[size]),
                        "memory_ms": 1e3 * median(hits[size]),
                        "cold_ms": 1e3 * cold[size],
                    },
                )


class _client:
    """A server for a while, and who asks it: a call answers the seconds to the first token of a prompt."""

    def __init__(self, flags: tuple[str, ...]) -> None:
        self._flags = flags
        self._stack = ExitStack()

    def __enter__(self) -> Callable[[NDArray[np.int32]], float]:
        url = self._stack.enter_context(running_server(ServeSetting("restarted"), flags=self._flags))
        client = self._stack.enter_context(httpx.Client(base_url=url, timeout=_TIMEOUT_S))
        name = client.get("/v1/models").json()["data"][0]["id"]
        warm_up = np.full(64, _VOCABULARY - 1, dtype=np.int32)

        def first_token_s(prompt: NDArray[np.int32]) -> float:
            body = {"model": name, "prompt": prompt.tolist(), "max_tokens": 1, "temperature": 0, "stream": True}
            content = json.dumps(body)
            start = time.perf_counter()
            with client.stream("POST", "/v1/completions", content=content) as response:
                response.raise_for_status()
                lines = (line for line in response.iter_lines() if line.startswith("data:"))
                next(lines)
                took_s = time.perf_counter() - start
                for _ in lines:
                    pass
            return took_s

        first_token_s(warm_up)  # the first pass of a process is slow, whatever is cached
        return first_token_s

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


def keeping_line(model: str, plan: Plan, *, cache_dir: Path | None, kv_pool_bytes: int = 2**30) -> Line:
    """Compare throughput without a single hit, with the disk and without it."""
    home = cache_dir or default_cache_dir()
    num_requests, num_tokens, num_answered = plan.wave
    sampling = Sampling(temperature=0.0, max_tokens=num_answered, ignore_end=True)
    with tempfile.TemporaryDirectory(dir=home) as folder, ExitStack() as stack:
        engines = [
            stack.enter_context(
                Engine.load(
                    model,
                    EngineSettings(
                        kv_pool_bytes=kv_pool_bytes, disk_cache_bytes=size_bytes, disk_cache_dir=Path(folder)
                    ),
                    cache_dir=home,
                    progress=False,
                )
            )
            for size_bytes in (4 * 2**30, 0)
        ]
        fresh = FreshTokens(engines[0].spec.vocab_size)
        cpu_s: dict[bool, list[float]] = {True: [], False: []}  # by whether it keeps: also what is done after a wave

        def wave_of(engine: Engine) -> Callable[[], float]:
            def wave() -> float:
                prompts = [fresh.draw(num_tokens) for _ in range(num_requests)]
                busy_s = time.process_time()
                took_s = seconds(lambda: _answer_all(engine, prompts, sampling))
                engine.flush()  # what is still written must not slow the other
                cpu_s[engine is engines[0]].append(time.process_time() - busy_s)
                return took_s

            return wave

        kept, forgot = interleaved(*(wave_of(engine) for engine in engines), num_rounds=plan.num_waves)
        stored = engines[0].stats().lower
    num_per_wave = num_requests * (num_tokens + num_answered)
    return Line(
        "throughput without a hit, disk on / off",
        ratio(forgot, kept),
        "x",
        MIN_KEEPING,
        {
            "on_tokens_per_s": num_per_wave / median(kept),
            "off_tokens_per_s": num_per_wave / median(forgot),
            "on_cpu_s": median(cpu_s[True]),
            "off_cpu_s": median(cpu_s[False]),
            "stored_tokens": stored.num_stored_tokens,
            "dropped_tokens": stored.num_dropped_tokens,
        },
    )


def _answer_all(engine: Engine, prompts: list[NDArray[np.int32]], sampling: Sampling) -> None:
    streams = [engine.submit(GenerationRequest(RequestId("bench"), prompt, sampling)) for prompt in prompts]
    for stream in streams:
        receipt = stream.result().receipt
        assert receipt.num_reused_tokens == 0, receipt
