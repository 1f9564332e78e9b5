"""Engines over one folder, one after another, as a server that is started again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine_world import Cold, check_is_idle

from anaphora.engine.durable.rates import Rates
from anaphora.engine.engine import Engine
from anaphora.engine.request import Sampling
from anaphora.engine.settings import EngineSettings
from anaphora.testing.random_models import random_model

GREEDY8 = Sampling(temperature=0.0, max_tokens=8, ignore_end=True)
CAP_BYTES = 64 << 20
MAX_CONTEXT = 1024


def cold_judge(family: str = "llama") -> Cold:
    """Get the judge of these engines' answers."""
    return Cold(random_model(family, max_context=MAX_CONTEXT))


class LoadingIsFaster(Rates):
    """On so small a model computing is often faster; here it never is."""

    def is_loading_faster(self, num_tokens: int, *, num_bytes: int) -> bool:
        return True


@contextmanager
def engine_at(
    folder: Path, family: str = "llama", *, num_slots: int = 2048, cap_bytes: int = CAP_BYTES, **settings: object
) -> Iterator[Engine]:
    """Start an engine that keeps keys and values in a folder; see at the end that it is idle and whole."""
    loaded = random_model(family, max_context=MAX_CONTEXT)
    size_bytes = num_slots * loaded.spec.kv_bytes_per_token(loaded.dtype)
    chosen = EngineSettings(
        kv_pool_bytes=size_bytes,
        num_threads=1,
        disk_cache_bytes=cap_bytes,
        disk_cache_dir=folder,
        **settings,  # type: ignore[arg-type]
    )
    with Engine(loaded, chosen) as engine:
        assert engine._durable is not None
        engine._durable._rates = LoadingIsFaster()
        yield engine
        assert engine.flush()
        check_is_idle(engine)
        engine._durable._tier.check()


def until(engine: Engine, condition: Callable[[], bool]) -> None:
    """Let the engine's thread turn until something is so."""
    for _ in range(10_000):
        if condition():
            return
        engine.flush(0.01)
    raise AssertionError("it never came to that")


def records_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kv"))
