"""A memory of requests and an engine that reuses what it is told to, for tests of misses."""

from collections.abc import Callable
from dataclasses import dataclass, field

from prompts import characters, side

from anaphora.core.fates import Fate
from anaphora.engine.request import DEFAULT_TENANT, StopReason, Tenant
from anaphora.explain.memory import Asked, MemoryLimits, RequestMemory, remembered_side
from anaphora.explain.openings import Nearest
from anaphora.explain.reasons import Side
from anaphora.explain.why import Miss, Outcome, why
from anaphora.prompt.canonical import Prompt


def no_fate(age_s: float) -> Fate | None:
    return None


@dataclass
class World:
    """Requests arrive a second after each other."""

    keeps_text: bool = True
    limits: MemoryLimits = field(default_factory=MemoryLimits)
    now: float = 0.0
    memory: RequestMemory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = RequestMemory(self.limits)

    def ask(
        self, prompt: Prompt, *, tenant: Tenant = DEFAULT_TENANT, begins: bool = True
    ) -> tuple[Asked, Side, Nearest[Asked] | None]:
        self.now += 1.0
        own = side(prompt)
        asked = Asked(
            f"r{self.now:g}",
            self.now,
            "m",
            remembered_side(own, keeps_text=self.keeps_text),
            len(own.rendered.tokens),
            keeps_text=self.keeps_text,
        )
        nearest = self.memory.arrive(tenant, asked, own.rendered.tokens)
        asked.began_s = self.now + 0.5 if begins else None
        return asked, own, nearest

    def answer(self, asked: Asked, text: str, *, tenant: Tenant = DEFAULT_TENANT) -> None:
        """The model writes a text, a token a character, of which the last has no keys and values."""
        self.memory.answer(tenant, asked, characters(text, opens_text=False).tokens, text)

    def why(
        self,
        prompt: Prompt,
        *,
        num_reused: int | None = None,
        stop_reason: StopReason = "diverged",
        fate: Callable[[float], Fate | None] = no_fate,
        num_before_restart: int = 0,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> Miss:
        """Why a prompt missed, by default where everything remembered of it was reused."""
        _, own, nearest = self.ask(prompt, tenant=tenant)
        num_tokens = len(own.rendered.tokens)
        num_alike = 0 if nearest is None else nearest.num_tokens
        reused = min(num_alike, num_tokens - 1) if num_reused is None else num_reused
        outcome = Outcome(self.now, self.now + 0.1, num_tokens, reused, stop_reason, fate, num_before_restart)
        self.memory.check()
        return why(own, nearest, outcome)
