"""What is run: a workload, or a case with targets of its own. Nothing is sent in here.

shared-prefix  32 requests over one prefix of 1,500 tokens: throughput with the cache on and off, and against peers
no-sharing     prompts that share nothing: what the cache costs when it never hits
identical      eight times the same prompt of 2,000 tokens at once: computed once, and nobody waits longer than one
first-token    cold and hit, at three lengths, one request at a time
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from anaphora.bench.lines import Line, Target, at_least, at_most
from anaphora.bench.load.calls import RUN, Conversation, Pace, Turn, Wave
from anaphora.bench.load.client import Target as Server
from anaphora.bench.load.drive import Results
from anaphora.bench.load.figures import (
    Figure,
    computed,
    first_ms,
    median_of,
    paired_ratio,
    ratio_line,
    throughput,
    worst_first_ms,
)
from anaphora.bench.load.servers import ServeSetting
from anaphora.bench.load.workloads import WORKLOADS, Brief, long_text, one_question, salted, take, user

PRIME, ALONE = "prime", "alone"
ON, OFF = ServeSetting("on"), ServeSetting("off", ("--no-cache",))


@dataclass(frozen=True, slots=True)
class Size:
    """How much is sent, and at which pace."""

    num_requests: int
    pace: Pace
    is_primed: bool = False  # one request over the shared prefix goes ahead, uncounted


@dataclass(frozen=True, slots=True)
class Case:
    """What can be asked for by name. Unset lengths of the user's wishes are filled from here."""

    name: str
    num_requests: int
    concurrency: int
    max_tokens: int
    num_rounds: int
    waves: Callable[[Brief, Size], tuple[Wave, ...]]
    lines: Callable[[Results, Size], Iterator[Line]]
    prefix_tokens: int | None = None
    own_tokens: int | None = None
    wire: str = "chat"
    servers: tuple[ServeSetting, ...] = (ON, OFF)


def best_of(results: Results, wave: str, figure: Figure, *, largest: bool) -> Server | None:
    """Give the best of the servers that were not started here; None if there are none with answers."""
    peers = [
        peer for peer in results.targets if not peer.is_ours and any(one.answered for one in results.of(peer, wave))
    ]
    pick = max if largest else min
    return pick(peers, key=lambda peer: median_of(results.of(peer, wave), figure)) if peers else None


def failure_lines(results: Results) -> Iterator[Line]:
    """Tell of servers that left requests unanswered: their other numbers say little."""
    for server in results.targets:
        waves = [result for wave in results.wave_names() for result in results.of(server, wave)]
        num_missing = sum(len(result.failed) + result.num_unasked for result in waves)
        if num_missing:
            yield Line(f"requests that {server.name} did not answer", num_missing, "", at_most(0))


def _compared(
    results: Results, wave: str, pair: tuple[Server, Server], figure: tuple[str, str, Figure], target: Target | None
) -> Line:
    """Divide one server's figure by another's. `figure` is its name, its unit, and how to take it of a wave."""
    one, other = pair
    what, unit, of = figure
    left, right = results.of(one, wave), results.of(other, wave)
    parts = {f"{server.name}_{unit}": median_of(results.of(server, wave), of) for server in pair}
    return ratio_line(f"{what}: {one.name} / {other.name}", paired_ratio(left, right, of), target, parts)


_THROUGHPUT = ("throughput", "tokens_per_s", throughput)
_FIRST = ("time to first token", "ms", first_ms)


def _ours(results: Results) -> list[Server]:
    return [server for server in results.targets if server.is_ours]


def _named(results: Results, *names: str) -> list[Server]:
    return [server for name in names for server in results.targets if server.name == name]


def _workload_lines(results: Results, size: Size) -> Iterator[Line]:
    first, *others = results.targets
    for other in others:
        yield _compared(results, RUN, (first, other), _THROUGHPUT, None)
        yield _compared(results, RUN, (first, other), _FIRST, None)


def _workload_case(name: str) -> Case:
    def waves(brief: Brief, size: Size) -> tuple[Wave, ...]:
        conversations = take(WORKLOADS[name](brief), size.num_requests)
        return (*_priming(conversations[0], size), Wave(RUN, conversations, size.pace))

    return Case(name, 32, 4, 32, 3, waves, _workload_lines)


def _priming(first: Conversation, size: Size) -> tuple[Wave, ...]:
    """One earlier request over the same tools and system text, if that was asked for."""
    if not size.is_primed:
        return ()
    ready = replace(first, turns=(Turn((user("Are you ready?"),), 1),))
    return (Wave(PRIME, (ready,), Pace(), counts=False),)


def _shared_prefix_waves(brief: Brief, size: Size) -> tuple[Wave, ...]:
    draw = brief.random()
    system = salted(brief, long_text(brief, draw, brief.prefix_tokens or 0))
    questions = brief.material.questions_beside(None)
    draw.shuffle(questions)
    conversations = tuple(
        one_question(
            "shared-prefix",
            system,
            brief.cut(f"{number + 1}. {questions[number % len(questions)]}", brief.own_tokens),
            brief.max_tokens,
        )
        for number in range(size.num_requests)
    )
    return (*_priming(conversations[0], size), Wave(RUN, conversations, size.pace))


def _shared_prefix_lines(results: Results, size: Size) -> Iterator[Line]:
    if pair := _pair(_named(results, ON.name, OFF.name)):
        yield _compared(results, RUN, pair, _THROUGHPUT, None if size.is_primed else at_least(6.4))
    ours = _ours(results)
    peer = best_of(results, RUN, throughput, largest=True)
    if ours and peer:
        yield _compared(results, RUN, (ours[0], peer), _THROUGHPUT, at_least(1.2 if size.is_primed else 2.0))


def _pair(found: Sequence[Server]) -> tuple[Server, Server] | None:
    return (found[0], found[1]) if len(found) == 2 else None


def _no_sharing_waves(brief: Brief, size: Size) -> tuple[Wave, ...]:
    return (Wave(RUN, take(WORKLOADS["no-sharing"](brief), size.num_requests), size.pace),)


def _no_sharing_lines(results: Results, size: Size) -> Iterator[Line]:
    if pair := _pair(_named(results, ON.name, OFF.name)):
        yield _compared(results, RUN, pair, _THROUGHPUT, at_least(0.99))
    ours = _ours(results)
    peer = best_of(results, RUN, throughput, largest=True)
    if ours and peer:
        yield _compared(results, RUN, (ours[0], peer), _THROUGHPUT, at_least(1.0))


def _identical_waves(brief: Brief, size: Size) -> tuple[Wave, ...]:
    draw = brief.random()

    def prompt(name: str) -> Conversation:
        text = f"{name} {salted(brief, long_text(brief, draw, brief.prefix_tokens or 0))}"
        return one_question("identical", text, "What is this about?", brief.max_tokens)

    together = (prompt("Together"),) * size.num_requests
    at_once = Pace(concurrency=size.num_requests)
    return (Wave(ALONE, (prompt("Alone"),), Pace()), Wave(RUN, together, at_once))


def _identical_lines(results: Results, size: Size) -> Iterator[Line]:
    for server in results.targets:
        alone, together = results.of(server, ALONE), results.of(server, RUN)
        counts = [(computed(one.answered), one.answered[0].prompt_tokens) for one in together if one.answered]
        told = [(count, whole) for count, whole in counts if count is not None]
        if told:
            parts = {"computed_tokens": float(told[0][0]), "tokens_of_one": float(told[0][1])}
            ratios = [count / whole for count, whole in told]
            name = f"tokens computed for {size.num_requests} at once / for one: {server.name}"
            yield ratio_line(name, ratios, at_most(1.02), parts)
        parts = {"worst_ms": median_of(together, worst_first_ms), "alone_ms": median_of(alone, worst_first_ms)}
        name = f"worst first token of {size.num_requests} at once / of one alone: {server.name}"
        yield ratio_line(name, paired_ratio(together, alone, worst_first_ms), at_most(1.15), parts)


@dataclass(frozen=True, slots=True)
class _Length:
    """A prefix and new tokens, with the targets that hold there."""

    num_cached: int
    num_new: int
    cold_to_hit: float | None
    hit_to_peer: float

    @property
    def name(self) -> str:
        return f"{self.num_cached:,}+{self.num_new}"


_LENGTHS = (_Length(410, 8, None, 0.8), _Length(2000, 16, 60, 0.5), _Length(6000, 30, 100, 0.5))


def _first_token_waves(brief: Brief, size: Size) -> tuple[Wave, ...]:
    draw = brief.random()
    waves: list[Wave] = []
    for length in _LENGTHS:
        if brief.prefix_tokens is not None and length.num_cached > brief.prefix_tokens:
            continue
        system = f"{length.num_cached} {salted(brief, long_text(brief, draw, length.num_cached))}"
        cold, *hits = (
            one_question("first-token", system, brief.cut(f"{number}, {question}", length.num_new), brief.max_tokens)
            for number, question in enumerate(draw.sample(brief.material.questions_beside(None), size.num_requests + 1))
        )
        waves += [Wave(f"cold {length.name}", (cold,), Pace()), Wave(f"hit {length.name}", tuple(hits), Pace())]
    return tuple(waves)


def _first_token_lines(results: Results, size: Size) -> Iterator[Line]:
    ours, *_ = [*_ours(results), results.targets[0]]
    for length in _LENGTHS:
        cold, hit = f"cold {length.name}", f"hit {length.name}"
        if hit not in results.wave_names():
            continue
        for server in results.targets:
            cold_rounds, hit_rounds = results.of(server, cold), results.of(server, hit)
            parts = {"cold_ms": median_of(cold_rounds, first_ms), "hit_ms": median_of(hit_rounds, first_ms)}
            wanted = length.cold_to_hit is not None and server is ours and server.is_ours
            target = at_least(length.cold_to_hit or 0) if wanted else None
            ratios = paired_ratio(cold_rounds, hit_rounds, first_ms)
            yield ratio_line(f"{length.name}: cold / hit: {server.name}", ratios, target, parts)
        for wave, limit in ((cold, 1.0), (hit, length.hit_to_peer)):
            peer = best_of(results, wave, first_ms, largest=False)
            if ours.is_ours and peer:
                yield _compared(results, wave, (ours, peer), (f"{wave}: first token", "ms", first_ms), at_most(limit))


_TARGETED = (
    Case(
        "shared-prefix",
        num_requests=32,
        concurrency=8,
        max_tokens=32,
        num_rounds=3,
        waves=_shared_prefix_waves,
        lines=_shared_prefix_lines,
        prefix_tokens=1500,
        own_tokens=40,
    ),
    Case(
        "no-sharing",
        num_requests=16,
        concurrency=4,
        max_tokens=16,
        num_rounds=5,
        waves=_no_sharing_waves,
        lines=_no_sharing_lines,
        prefix_tokens=600,
    ),
    Case(
        "identical",
        num_requests=8,
        concurrency=8,
        max_tokens=1,
        num_rounds=3,
        waves=_identical_waves,
        lines=_identical_lines,
        prefix_tokens=2000,
        servers=(ON,),
    ),
    Case(
        "first-token",
        num_requests=5,
        concurrency=1,
        max_tokens=1,
        num_rounds=3,
        waves=_first_token_waves,
        lines=_first_token_lines,
        wire="completions",
        servers=(ON,),
    ),
)

CASES: Mapping[str, Case] = {case.name: case for case in _TARGETED}
PLAIN: Mapping[str, Case] = {name: _workload_case(name) for name in WORKLOADS}
"""Workloads, measured without targets."""
