"""Replay a trace through the cache that serves models: the same index, policy and leases, in the trace's own time.

For each request, in order of time:

    end the leases that are due  ->  acquire all but the last token  ->  publish the prompt  ->  release when due

A prompt's last token is computed even where it is cached, as in an engine. Answers are not stored: no trace tells their
tokens, and the next turn brings them as part of its prompt. No keys and values stand behind the slots, so nothing is
evicted to keep runs long (`NO_SLACK`): an engine's cache holds up to a 32nd less.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from anaphora.core.cache import CacheLimits, PrefixCache
from anaphora.core.events import Event, Evicted
from anaphora.core.lease import Lease, Refusal
from anaphora.core.namespace import Namespace, namespace_of
from anaphora.core.policy import POLICIES
from anaphora.sim.routing import Router, prefix_hashes
from anaphora.sim.trace import Trace, TraceError, TraceRequest

Progress = Callable[[], None]

NO_SLACK = CacheLimits(num_slack=0)


@dataclass(slots=True)
class Tally:
    """What some requests asked for and what they found."""

    num_requests: int = 0
    num_tokens: int = 0  # of their prompts
    num_hit: int = 0  # tokens found
    num_refused: int = 0  # requests for which there was no room; their tokens count as not found

    def add(self, num_tokens: int, num_hit: int | None) -> None:
        """Count one request; None for one that was refused."""
        self.num_requests += 1
        self.num_tokens += num_tokens
        self.num_hit += num_hit or 0
        self.num_refused += num_hit is None

    @property
    def hit_rate(self) -> float:
        return self.num_hit / self.num_tokens if self.num_tokens else 0.0


@dataclass(slots=True)
class Result:
    """One policy with one size on one trace."""

    policy: str
    size: int  # slots of one replica
    num_replicas: int = 1
    routing: str = "none"
    total: Tally = field(default_factory=Tally)
    num_whole_hit: int = 0  # tokens found in whole blocks of the trace's own size, as a cache of such blocks would
    num_evicted: int = 0  # tokens
    num_evictions: int = 0
    num_cached: int = 0  # tokens cached at the end
    tenants: dict[str, Tally] = field(default_factory=dict)
    sessions: dict[str, Tally] = field(default_factory=dict)
    replicas: list[Tally] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        """Tokens found, of all tokens of all prompts."""
        return self.total.hit_rate

    @property
    def whole_hit_rate(self) -> float:
        """The same where only whole blocks of the trace's unit are found."""
        return self.num_whole_hit / self.total.num_tokens if self.total.num_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How to replay a trace."""

    policy: str
    size: int
    num_replicas: int = 1
    router: Callable[[int], Router] | None = None
    holds_leases: bool = False  # for as long as the recorded call took; else a request ends before the next begins


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def replay(trace: Trace, plan: Plan, *, progress: Progress = lambda: None) -> Result:
    """Run a whole trace through `plan.num_replicas` caches. The same trace and plan give the same result.

    Raises TraceError for a size below 1, an unknown policy or an empty trace.
    Cost: about 50 us and one comparison of its tokens for each request.
    """
    _validate(trace, plan)
    return _Replay(trace, plan).run(progress)


def replay_all(
    trace: Trace, policies: Sequence[str], sizes: Sequence[int], *, progress: Progress = lambda: None
) -> list[Result]:
    """Replay a trace once for each policy and size, on one replica."""
    return [replay(trace, Plan(policy, size), progress=progress) for size in sizes for policy in policies]


class _Replay:
    def __init__(self, trace: Trace, plan: Plan) -> None:
        self._trace, self._plan = trace, plan
        self._clock = _Clock()
        self._caches = [
            PrefixCache(
                plan.size, policy=POLICIES[plan.policy], clock=self._clock, listener=self._hear, limits=NO_SLACK
            )
            for _ in range(plan.num_replicas)
        ]
        self._router = plan.router(plan.num_replicas) if plan.router else None
        self._result = Result(plan.policy, plan.size, plan.num_replicas, self._router.name if self._router else "none")
        self._result.replicas = [Tally() for _ in self._caches]
        self._namespaces: dict[str, Namespace] = {}
        self._due: list[tuple[float, int, int, Lease]] = []  # when, request, replica

    def run(self, progress: Progress) -> Result:
        for index, request in enumerate(self._trace.requests):
            self._end_leases(request.time_s)
            self._clock.now = request.time_s
            self._serve(index, request)
            progress()
        self._end_leases(float("inf"))
        self._result.num_cached = sum(cache.counts().evictable for cache in self._caches)
        return self._result

    def _serve(self, index: int, request: TraceRequest) -> None:
        tokens = request.tokens()
        hashes = prefix_hashes(request) if self._router is not None else ()
        replica = self._router.route(hashes, len(tokens), request.time_s) if self._router is not None else 0
        cache, namespace = self._caches[replica], self._namespace(request.tenant)
        limit = len(tokens) - 1
        match = cache.peek(namespace, tokens)
        num_hit = min(match.num_tokens, limit)
        lease = cache.acquire(namespace, tokens, max_reuse=limit, num_private=len(tokens) - num_hit)
        if isinstance(lease, Refusal):
            self._count(request, replica, None)
            return
        cache.publish(lease, tokens, len(tokens))
        self._count(request, replica, lease.num_reused)
        if self._plan.holds_leases and request.service_s > 0:
            heappush(self._due, (request.time_s + request.service_s, index, replica, lease))
        else:
            cache.release(lease)

    def _end_leases(self, time_s: float) -> None:
        while self._due and self._due[0][0] <= time_s:
            due, _, replica, lease = heappop(self._due)
            self._clock.now = due
            self._caches[replica].release(lease)

    def _count(self, request: TraceRequest, replica: int, num_hit: int | None) -> None:
        result, num_tokens = self._result, request.num_tokens
        tallies = [result.total, result.replicas[replica]]
        if request.tenant:
            tallies.append(result.tenants.setdefault(request.tenant, Tally()))
        if request.session:
            tallies.append(result.sessions.setdefault(request.session, Tally()))
        for tally in tallies:
            tally.add(num_tokens, num_hit)
        unit = self._trace.block_tokens
        result.num_whole_hit += (num_hit or 0) // unit * unit

    def _hear(self, event: Event) -> None:
        if isinstance(event, Evicted):
            self._result.num_evicted += event.num_tokens
            self._result.num_evictions += 1

    def _namespace(self, tenant: str) -> Namespace:
        if tenant not in self._namespaces:
            self._namespaces[tenant] = namespace_of(model_digest=b"replay", tenant=tenant)
        return self._namespaces[tenant]


def _validate(trace: Trace, plan: Plan) -> None:
    if not trace.requests:
        raise TraceError(f"{trace.name}: the trace is empty.")
    if plan.size < 1:
        raise TraceError(f"A cache of {plan.size} tokens holds nothing. The size must be 1 or more.")
    if plan.num_replicas < 1:
        raise TraceError(f"{plan.num_replicas} replicas serve nothing. There must be 1 or more.")
    if plan.policy not in POLICIES:
        raise TraceError(f"policy {plan.policy!r} is unknown. Choose one of: {', '.join(POLICIES)}.")
