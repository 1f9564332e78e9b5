"""Anaphora: a self-hosted LLM server and library whose subject is the prompt cache.

Public names are imported when first used, so that `import anaphora` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anaphora.engine.engine import Engine
    from anaphora.engine.prompt_cache import PromptCache
    from anaphora.engine.request import (
        GREEDY,
        Completion,
        Delta,
        Generation,
        GenerationRequest,
        Receipt,
        Sampling,
        Tenant,
        TokenLogprob,
    )
    from anaphora.engine.settings import EngineSettings
    from anaphora.engine.stats import EngineStats
    from anaphora.engine.stream import Stream
    from anaphora.errors import AnaphoraError

__version__ = "0.1.0"

_HOMES = {
    "Engine": "anaphora.engine.engine",
    "PromptCache": "anaphora.engine.prompt_cache",
    "GREEDY": "anaphora.engine.request",
    "Completion": "anaphora.engine.request",
    "Delta": "anaphora.engine.request",
    "Generation": "anaphora.engine.request",
    "GenerationRequest": "anaphora.engine.request",
    "Receipt": "anaphora.engine.request",
    "Sampling": "anaphora.engine.request",
    "Tenant": "anaphora.engine.request",
    "TokenLogprob": "anaphora.engine.request",
    "EngineSettings": "anaphora.engine.settings",
    "EngineStats": "anaphora.engine.stats",
    "Stream": "anaphora.engine.stream",
    "AnaphoraError": "anaphora.errors",
}

__all__ = [
    "GREEDY",
    "AnaphoraError",
    "Completion",
    "Delta",
    "Engine",
    "EngineSettings",
    "EngineStats",
    "Generation",
    "GenerationRequest",
    "PromptCache",
    "Receipt",
    "Sampling",
    "Stream",
    "Tenant",
    "TokenLogprob",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'anaphora' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
