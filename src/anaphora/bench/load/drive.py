"""Send waves at their pace, and let the servers that are compared take turns."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import httpx

from anaphora.bench.load.calls import Answered, Ask, Conversation, Failed, Message, Pace, Wave, WaveResult
from anaphora.bench.load.client import Target, open_http, send

Progress = Callable[[str], None]
"""Told in words what is sent next."""

Round = Callable[[int], Sequence[Wave]]
"""Writes the waves of a round. All servers get the same ones."""


@dataclass(slots=True)
class Results:
    """What every server made of every wave, round by round."""

    targets: tuple[Target, ...]
    waves: dict[tuple[str, str], list[WaveResult]] = field(default_factory=dict)  # (server, wave) -> by round

    def of(self, target: Target, wave: str) -> list[WaveResult]:
        return self.waves[target.name, wave]

    def wave_names(self) -> list[str]:
        return list(dict.fromkeys(wave for _, wave in self.waves))


def drive(
    targets: Sequence[Target],
    waves_of: Round,
    *,
    num_rounds: int,
    timeout_s: float,
    seed: int = 0,
    progress: Progress = lambda doing: None,
) -> Results:
    """Run all rounds: A B, then B A, and so on, so that a noisy machine slows all servers alike.

    Before them, the beginning of round 0 warms the servers up: what it sends is sent no more, so it warms no cache.
    """
    return asyncio.run(_drive(tuple(targets), waves_of, (num_rounds, timeout_s, seed), progress))


async def _drive(
    targets: tuple[Target, ...], waves_of: Round, numbers: tuple[int, float, int], progress: Progress
) -> Results:
    num_rounds, timeout_s, seed = numbers
    results = Results(targets)
    async with open_http(timeout_s) as http:
        for target in targets:
            progress(f"warming up {target.name}")
            await run_wave(http, target, beginning_of(waves_of(0)), seed=seed)
        for round_index in range(1, num_rounds + 1):
            waves = waves_of(round_index)
            for target in targets if round_index % 2 else reversed(targets):
                for wave in waves:
                    progress(f"round {round_index} of {num_rounds}: {target.name}, {wave.name}")
                    result = await run_wave(http, target, wave, seed=seed + round_index)
                    if wave.counts:
                        results.waves.setdefault((target.name, wave.name), []).append(result)
    return results


def beginning_of(waves: Sequence[Wave]) -> Wave:
    """Give the first requests of two conversations, to be sent at once: enough to run each kind of step once."""
    first = [replace(one, turns=one.turns[:1]) for one in waves[0].conversations[:2]]
    return Wave("warm-up", tuple(first), Pace(concurrency=2), counts=False)


async def run_wave(http: httpx.AsyncClient, target: Target, wave: Wave, *, seed: int) -> WaveResult:
    """Send one wave and wait for its last answer."""
    began = time.perf_counter()
    talks = [_Talk(http, target, conversation, began) for conversation in wave.conversations]
    if wave.pace.rate_per_s is None:
        waiting = iter(talks)
        await asyncio.gather(*(_work(waiting) for _ in range(min(wave.pace.concurrency, len(talks)))))
    else:
        begins = begins_s(wave.conversations, wave.pace.rate_per_s, seed=seed)
        await asyncio.gather(*(talk.run(due=began + begin_s) for talk, begin_s in zip(talks, begins, strict=True)))
    outcomes = [outcome for talk in talks for outcome in talk.outcomes]
    return WaveResult(
        wall_s=max(one.due_s + one.total_s for one in outcomes) - min(one.due_s for one in outcomes),
        answered=tuple(one for one in outcomes if isinstance(one, Answered)),
        failed=tuple(one for one in outcomes if isinstance(one, Failed)),
        num_unasked=sum(len(talk.conversation.turns) - len(talk.outcomes) for talk in talks),
    )


def begins_s(conversations: Sequence[Conversation], rate_per_s: float, *, seed: int) -> list[float]:
    """Draw when conversations begin, so that their requests come at the rate on average.

    The gap after a conversation is exponential, its mean in proportion to the conversation's turns.
    """
    draw = random.Random(f"arrivals {seed}")
    gaps = (draw.expovariate(rate_per_s / len(one.turns)) for one in conversations)
    return list(itertools.accumulate(gaps))


async def _work(waiting: Iterator["_Talk"]) -> None:
    """Be one of those who take the next conversation when theirs ends."""
    for talk in waiting:
        await talk.run(due=time.perf_counter())


class _Talk:
    """A conversation under way. It breaks off at the first request that fails."""

    def __init__(self, http: httpx.AsyncClient, target: Target, conversation: Conversation, began: float) -> None:
        self.conversation = conversation
        self.outcomes: list[Answered | Failed] = []
        self._http = http
        self._target = target
        self._began = began

    async def run(self, *, due: float) -> None:
        """Wait until it is due, then ask turn after turn."""
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        history: list[Message] = []
        for turn in self.conversation.turns:
            history += turn.messages
            ask = Ask(
                self.conversation.kind,
                self.conversation.system,
                tuple(history),
                turn.max_tokens,
                self.conversation.tools,
            )
            outcome = await send(self._http, self._target, ask, wave_began=self._began, due=due)
            self.outcomes.append(outcome)
            if isinstance(outcome, Failed):
                return
            if self.conversation.keeps_answers:
                # Hosts refuse an assistant that says nothing.
                history.append({"role": "assistant", "content": outcome.text if outcome.text.strip() else "..."})
            due = time.perf_counter()
