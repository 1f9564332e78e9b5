"""One request's miss: what kept it from reusing more, of all that can. Pure.

    prompt   |------------- reused ------------|--------- computed ----------|
                                               ^ why not further?
    an earlier request goes on alike           its tokens are gone: evicted, expired, cleared, not durable; or not there
                                               yet: overlapped; or never were: not written
    none goes on alike                         they part here, by a part and a cause: diverged
    none opens alike                           first seen

Exactly one reason each: the first that holds, `unknown` where none can be shown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from anaphora.core.fates import Fate
from anaphora.engine.request import StopReason
from anaphora.explain.divergence import num_common, text_of
from anaphora.explain.memory import Asked, hollow, words_of
from anaphora.explain.openings import Nearest
from anaphora.explain.reasons import ADVICE, PLAIN, SAYS, Explanation, Reason, Side, explain_from, structure_reason
from anaphora.prompt.render import Rendered

MissReason = Literal[
    "none",
    "first_seen",
    "diverged",
    "expired",
    "evicted",
    "cleared",
    "not_durable",
    "not_written",
    "overlapped",
    "prompt_logprobs",
    "cache_off",
    "not_cacheable",
    "no_breakpoint",
    "below_minimum",
    "out_of_sight",
    "unknown",
]

MISS_SAYS: Mapping[MissReason, str] = MappingProxyType(
    {
        "none": "All that was sent before was reused.",
        "first_seen": "No earlier request that is remembered opens like this one.",
        "diverged": "What is cached goes on differently.",
        "expired": "It had been kept for as long as was asked for, and was evicted after that.",
        "evicted": "It was evicted to make room.",
        "cleared": "The cache was emptied.",
        "not_durable": "It was cached before the server was started again, and did not outlive that.",
        "not_written": "The earlier request ended before it was computed.",
        "overlapped": "An earlier request with the same opening had not begun to answer when this one came.",
        "prompt_logprobs": "The scores of the prompt's tokens were asked for, and not all of them are kept.",
        "cache_off": "The operator has turned reuse off.",
        "not_cacheable": "This model can't be cached exactly.",
        "no_breakpoint": "Nothing is marked to be cached: no cache_control, or no breakpoint in explicit mode.",
        "below_minimum": "What is marked is shorter than the shortest prefix that this model caches.",
        "out_of_sight": "What was written stands too many blocks in front of the nearest breakpoint.",
        "unknown": "It should have been cached and is not; why can't be told any more.",
    }
)

MISS_ADVICE: Mapping[MissReason, str] = MappingProxyType(
    {
        "expired": "Ask again before it expires, or for a longer lifetime.",
        "evicted": "Give the pool more room, the tenant a quota, or mark what has to stay.",
        "not_durable": "Let keys and values be kept on disk, and enough of them.",
        "overlapped": "Send one request first, and the others when its answer begins.",
        "prompt_logprobs": "Leave prompt logprobs out, or ask for as many as before.",
        "cache_off": "Start the server with its cache on.",
        "no_breakpoint": "Mark the last part that stays the same with cache_control.",
        "below_minimum": "Put more into the prefix, or leave the mark out.",
        "out_of_sight": "Mark an earlier block too, at most as far from the last one as is looked back.",
    }
)

LEAST_ALIKE = 16
"""Characters of a part that have to be alike for a request to count as seen before: a template opens all alike. Where
fewer are, and other words follow, a quarter of it must have been sent before."""


_FEW = 12
"""Characters that two questions end with alike, or that are left of one, where a closer look is worth its time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the engine did with a request, and whom to ask what became of the rest."""

    at_s: float  # when it arrived
    now_s: float
    num_tokens: int
    num_reused: int
    stop_reason: StopReason
    fate: Callable[[float], Fate | None]  # of the token behind the reused ones, given the age in seconds
    num_before_restart: int = 0  # tokens that an earlier process has seen, at least


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a request reused no more. `where`, `byte_index` and `token_index` name the place where reuse stopped."""

    reason: MissReason
    num_tokens: int
    num_reused: int
    num_lost: int = 0  # tokens computed again that were sent before
    where: str = ""
    byte_index: int | None = None
    token_index: int | None = None
    cause: Reason | None = None  # of a divergence
    explanation: Explanation | None = None
    nearest_id: str | None = None  # the earlier request that shares most
    nearest_ago_s: float | None = None
    num_alike: int = 0  # tokens that both open with
    gone_ago_s: float | None = None  # since it expired or was evicted
    for_others: bool = False  # the room went to other tenants
    level: Literal["engine", "contract"] = "engine"

    @property
    def says(self) -> str:
        """What happened, in a sentence or two."""
        text = MISS_SAYS[self.reason]
        if self.reason == "diverged" and self.cause is not None:
            text = f"{self.where}: {SAYS[self.cause]}" if self.where else SAYS[self.cause]
        if self.reason == "evicted" and self.for_others:
            text = "It was evicted to make room for other tenants."
        if self.gone_ago_s is not None:
            text += f" That was {duration(self.gone_ago_s)} ago."
        return text

    @property
    def advice(self) -> str:
        """What to change; nothing where the change is likely to be meant."""
        return ADVICE.get(self.cause or "none", "") if self.reason == "diverged" else MISS_ADVICE.get(self.reason, "")


def why(side: Side, nearest: Nearest[Asked] | None, outcome: Outcome) -> Miss:
    """Why a request reused as much as it did, and no more.

    Cost: O(1) where nothing sent before was lost; else as `explain_from`.
    """
    limit = outcome.num_tokens - 1
    num_alike = 0 if nearest is None else nearest.num_tokens
    num_lost = max(0, min(num_alike, limit) - outcome.num_reused)
    tell = _Teller(side, nearest, outcome)
    if outcome.stop_reason in ("cache_off", "not_cacheable", "prompt_logprobs"):
        return tell.miss(outcome.stop_reason, num_lost=num_lost)
    if nearest is not None and num_lost and _is_alike(side, num_alike):
        return tell.gone(nearest.value, num_lost)
    num_durable = min(outcome.num_before_restart, limit)
    if num_durable > max(outcome.num_reused, num_alike):
        return tell.placed("not_durable", num_lost=num_durable - outcome.num_reused)
    if outcome.num_reused >= limit:
        return tell.miss("none")
    if nearest is not None and outcome.num_reused <= num_alike:
        return tell.parted(nearest.value, num_alike)
    if not _is_alike(side, outcome.num_reused):
        return tell.first_seen()
    return tell.placed("diverged") if outcome.stop_reason == "diverged" else tell.miss("none")


@dataclass(frozen=True, slots=True)
class _Teller:
    """One request, and the ways to tell why it missed."""

    side: Side
    nearest: Nearest[Asked] | None
    outcome: Outcome

    def miss(self, reason: MissReason, **more: Any) -> Miss:
        """A miss, with the request that was nearest."""
        outcome, nearest = self.outcome, self.nearest
        if nearest is None:
            return Miss(reason, outcome.num_tokens, outcome.num_reused, **more)
        return Miss(
            reason,
            outcome.num_tokens,
            outcome.num_reused,
            num_alike=nearest.num_tokens,
            nearest_id=nearest.value.request_id,
            nearest_ago_s=outcome.at_s - nearest.value.at_s,
            **more,
        )

    def first_seen(self) -> Miss:
        """Nothing of the request's own words was seen before, whatever was nearest."""
        return Miss("first_seen", self.outcome.num_tokens, self.outcome.num_reused)

    def gone(self, earlier: Asked, num_lost: int) -> Miss:
        """An earlier request goes on alike, yet what it left is not there."""
        outcome = self.outcome
        if earlier.began_s is None or earlier.began_s > outcome.at_s:
            return self.placed("not_written" if earlier.has_failed else "overlapped", num_lost=num_lost)
        fate = outcome.fate(outcome.now_s - earlier.at_s)
        if fate is None:
            return self.placed("not_written" if earlier.has_failed else "unknown", num_lost=num_lost)
        if fate.kind == "cleared":
            return self.placed("cleared", num_lost=num_lost, gone_ago_s=fate.ago_s)
        kept_until = earlier.kept_until_s
        reason: MissReason = "evicted"
        ago_s = fate.ago_s
        if kept_until is not None and kept_until <= outcome.now_s - fate.ago_s:
            reason, ago_s = "expired", outcome.now_s - kept_until
        return self.placed(reason, num_lost=num_lost, gone_ago_s=ago_s, for_others=fate.for_others)

    def parted(self, earlier: Asked, num_alike: int) -> Miss:
        """All that the nearest earlier request shares was reused: they part, or this goes on where that one ends."""
        side = self.side
        if num_alike >= earlier.num_tokens + earlier.num_answered:
            return self.miss("none")
        if not side.rendered.pieces:
            return self.miss("none", cause="text_changed", token_index=num_alike)
        if earlier.keeps_text and _is_new_ending(earlier.side.rendered, side.rendered, num_alike):
            return self.placed("none", token_index=num_alike, cause="text_changed")
        if earlier.keeps_text:
            found = explain_from(earlier.side, side, num_alike)
        else:
            found = _from_digests(earlier, side, num_alike)
        if found.reason in PLAIN and not _is_alike(side, num_alike) and 4 * found.num_lost < self.outcome.num_tokens:
            return self.first_seen()
        reason: MissReason = "none" if found.reason in PLAIN and not found.num_lost else "diverged"
        told: dict[str, Any] = {"cause": found.reason, "num_lost": found.num_lost, "where": found.where}
        divergence = found.divergence
        if divergence is None:
            return self.placed(reason, token_index=num_alike, **told)
        place = {"byte_index": divergence.byte_index, "token_index": divergence.token_index, "explanation": found}
        return self.miss(reason, **told, **place)

    def placed(self, reason: MissReason, *, token_index: int | None = None, **more: Any) -> Miss:
        """A miss, with the place in the request where a token stands: the one behind those reused, unless told."""
        rendered = self.side.rendered
        index = self.outcome.num_reused if token_index is None else token_index
        if index >= len(rendered.tokens):
            return self.miss(reason, **more)
        text_index = int(rendered.offsets[index, 0])
        piece = next((one for one in rendered.pieces if one.path is not None and one.stop > text_index), None)
        place: dict[str, Any] = {"token_index": index}
        if piece is not None:
            part = rendered.text[piece.start : max(piece.start, text_index)]
            place |= {"where": piece.path, "byte_index": len(part.encode("utf-8", "surrogatepass"))}
        return self.miss(reason, **{**place, **more})


def _is_new_ending(earlier: Rendered, rendered: Rendered, num_alike: int) -> bool:
    """Whether the requests part in the last part of the one and go on without a word in common: another question."""
    last = next((piece for piece in reversed(rendered.pieces) if piece.path is not None), None)
    if last is None or int(rendered.offsets[num_alike, 0]) < last.start:
        return False
    before = text_of(earlier, last.path)
    if before is None:
        return False
    now = rendered.text[last.start : last.stop]
    start = num_common(before, now)
    if min(len(before), len(now)) - start == 0:
        return False
    one, other = before[start:], now[start:]
    return one[-_FEW:] != other[-_FEW:] and min(len(one), len(other)) >= _FEW


def _is_alike(side: Side, num_alike: int) -> bool:
    """Whether so many tokens hold anything of the request's own words: a template opens all requests alike."""
    rendered = side.rendered
    if num_alike >= len(rendered.tokens):
        return True
    if not rendered.pieces:  # token ids were sent
        return num_alike >= LEAST_ALIKE
    text_index, num_own = int(rendered.offsets[num_alike, 0]), 0
    for piece in rendered.pieces:
        if piece.start >= text_index or num_own >= LEAST_ALIKE:
            break
        num_own += min(piece.stop, text_index) - piece.start if piece.path is not None else 0
    return num_own >= LEAST_ALIKE


def _from_digests(earlier: Asked, side: Side, num_alike: int) -> Explanation:
    """The explanation where the earlier request's text is not kept: its place, and what digests can tell."""
    rendered, now = side.rendered, hollow(side.prompt)
    span = next((one for one in rendered.token_spans() if one.path is not None and one.stop > num_alike), None)
    where = "" if span is None or span.path is None else span.path
    reason: Reason = "answer_changed"
    if num_alike < earlier.num_tokens:
        reason = structure_reason(earlier.side.prompt, now, where) if where else "template"
    known = {words_of(part) for part in earlier.side.prompt.parts}
    sizes = {one.path: one.stop - one.start for one in rendered.token_spans() if one.start >= num_alike}
    num_lost = sum(sizes.get(part.path, 0) for part in now.parts if words_of(part) in known)
    return Explanation(reason, where, num_alike, len(rendered.tokens), num_lost)


def duration(seconds: float) -> str:
    """A time span in words: about two digits of it."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
