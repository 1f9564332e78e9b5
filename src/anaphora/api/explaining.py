"""Why each request reused what it did: the memory of requests beside the engine. Belongs to the event loop.

arrive  --> Inquiry --begin(receipt)--> Miss      what the receipt's surfaces tell
                    --take(delta)...              what the model wrote is remembered too
                    --end | fail
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anaphora.core.fates import Fate
from anaphora.core.index import Tokens
from anaphora.engine.request import Delta, Keep, Receipt, Tenant
from anaphora.explain.compared import Compared, compare
from anaphora.explain.memory import (
    Asked,
    MemoryLimits,
    RequestMemory,
    prompt_of_text,
    remembered_settings,
    remembered_side,
)
from anaphora.explain.openings import Nearest
from anaphora.explain.reasons import Side
from anaphora.explain.seen import Seen
from anaphora.explain.why import Miss, Outcome, why
from anaphora.prompt.canonical import Prompt
from anaphora.prompt.locate import Piece
from anaphora.prompt.render import Encoded, Rendered

FateOf = Callable[[Tokens, int, Tenant, float], Fate | None]
"""What became of a tenant's token behind the first n of a prompt, which was cached some seconds ago."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request as it is remembered: whose, under which ids, and what it says on caching."""

    tenant: Tenant
    response_id: str
    request_id: str
    endpoint: str
    model: str
    settings: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[Keep, ...] = ()


class Inquiry:
    """One engine request, from its arrival to its end."""

    def __init__(
        self, explaining: "Explaining", question: Question, asked: Asked, side: Side, nearest: Nearest[Asked] | None
    ) -> None:
        self.asked = asked
        self._explaining = explaining
        self._question = question
        self._side = side
        self._nearest = nearest
        self._num_before = explaining.seen_before(side.rendered.tokens, question.tenant)
        self._answer: list[int] = []
        self._words: list[str] = []
        self._is_over = False
        self.miss: Miss | None = None

    def begin(self, receipt: Receipt) -> None:
        """The answer has begun: say why no more was reused. Others can read the prompt from now on."""
        now_s = self._explaining.clock()
        self.asked.began_s = now_s
        tokens, tenant = self._side.rendered.tokens, self._question.tenant
        outcome = Outcome(
            at_s=self.asked.at_s,
            now_s=now_s,
            num_tokens=receipt.num_prompt_tokens,
            num_reused=receipt.num_reused_tokens,
            stop_reason=receipt.stop_reason,
            fate=lambda age_s: self._explaining.fate(tokens, receipt.num_reused_tokens, tenant, age_s),
            num_before_restart=self._num_before,
        )
        self.miss = why(self._side, self._nearest, outcome)
        self.asked.facts = {**self.asked.facts, "miss": self.miss}
        self._nearest = None

    def take(self, delta: Delta) -> None:
        """Take in a piece of the answer. Of several answers the first is remembered."""
        if delta.sequence_index == 0:
            self._answer += delta.token_ids
            self._words.append(delta.text)

    def end(self, receipt: Receipt) -> None:
        """The answer is complete."""
        if self._is_over:
            return
        self._is_over = True
        if receipt.retention in ("kept", "partly_kept"):
            began_s = self.asked.began_s or self.asked.at_s
            self.asked.kept_until_s = began_s + max(one.lifetime_s for one in self._question.keep)
        # The last token was chosen and never run: it has no keys and values.
        tokens = np.array(self._answer[:-1], dtype=np.int32)
        self._explaining.memory.answer(self._question.tenant, self.asked, tokens, "".join(self._words))

    def fail(self) -> None:
        """The request ended before its answer was complete."""
        if not self._is_over:
            self._is_over = True
            self.asked.has_failed = True

    def compared_with(self, response_id: str) -> Compared | None:
        """What this request changed against an earlier one of its tenant. None: that is not remembered."""
        memory, tenant = self._explaining.memory, self._question.tenant
        earlier = memory.get(tenant, response_id)
        if earlier is None or earlier is self.asked:
            return None
        num_alike = memory.num_alike(tenant, response_id, self._side.rendered.tokens)
        return compare(earlier, self.asked, num_alike=num_alike)


class Explaining:
    """The requests of one server."""

    def __init__(
        self,
        limits: MemoryLimits,
        *,
        fate: FateOf,
        clock: Callable[[], float] = time.monotonic,
        seen: Seen | None = None,
    ) -> None:
        self.memory = RequestMemory(limits)
        self.fate = fate
        self.clock = clock
        self._seen = seen
        self._names: OrderedDict[tuple[Tenant, str], str] = OrderedDict()  # request id -> response id

    def arrive(self, question: Question, rendered: Rendered, prompt: Prompt, *, number: int = 0) -> Inquiry:
        """Remember a request that was handed to the engine. Further ones of a batch have a number.

        Cost: one comparison of the tokens; digests of all parts where text is not kept.
        """
        keeps_text = self.memory.limits.keeps_text
        side = Side(prompt, rendered)
        response_id = f"{question.response_id}-{number}" if number else question.response_id
        asked = Asked(
            request_id=response_id,
            at_s=self.clock(),
            model=question.model,
            side=remembered_side(side, keeps_text=keeps_text),
            num_tokens=len(rendered.tokens),
            settings=remembered_settings(question.settings, keeps_text=keeps_text),
            keeps_text=keeps_text,
            facts={"request_id": question.request_id, "endpoint": question.endpoint, "unix_time": time.time()},
        )
        nearest = self.memory.arrive(question.tenant, asked, rendered.tokens)
        self._names[question.tenant, question.request_id] = question.response_id
        while len(self._names) > self.memory.limits.max_requests:
            self._names.popitem(last=False)
        return Inquiry(self, question, asked, side, nearest)

    def find(self, tenant: Tenant, name: str) -> Asked | None:
        """A tenant's request by the id of its response, by that of the request, or the `last` one."""
        if name == "last":
            return self.memory.latest(tenant)
        return self.memory.get(tenant, self._names.get((tenant, name), name))

    def note(self, tenant: Tenant, request_id: str, **facts: object) -> None:
        """Add facts to a request while it is remembered."""
        asked = self.find(tenant, request_id)
        if asked is not None:
            asked.facts = {**asked.facts, **facts}

    def seen_before(self, tokens: Tokens, tenant: Tenant) -> int:
        """Tokens that a tenant's request to an earlier process opened with too, at least."""
        return 0 if self._seen is None else self._seen.look(tokens, tenant)


def text_rendering(encoded: Encoded, text: str | None, path: str) -> tuple[Rendered, Prompt]:
    """A Completions prompt as if it had been rendered: one part, whose text is not known where ids were sent."""
    said = text or ""
    pieces = (Piece(0, len(said), path),) if said else ()
    return Rendered(said, encoded.tokens, encoded.offsets, pieces), prompt_of_text(said, path)


def told(miss: Miss) -> dict[str, Any]:
    """The `miss` object of the extension: the reason, the place, the cost, in names and in words."""
    optional: dict[str, Any] = {
        "cause": miss.cause if miss.reason == "diverged" else None,
        "where": miss.where or None,
        "byte": miss.byte_index,
        "token": miss.token_index,
        "gone_seconds_ago": _seconds(miss.gone_ago_s),
        "room_went_to_others": miss.for_others or None,
    }
    nearest = None
    if miss.nearest_id is not None:
        nearest = {
            "id": miss.nearest_id,
            "seconds_ago": _seconds(miss.nearest_ago_s),
            "alike_tokens": miss.num_alike,
        }
    return {
        "reason": miss.reason,
        "level": miss.level,
        "lost_tokens": miss.num_lost,
        "says": miss.says,
        **({"advice": miss.advice} if miss.advice else {}),
        **{name: value for name, value in optional.items() if value is not None},
        **({"nearest": nearest} if nearest else {}),
    }


def excerpts(miss: Miss) -> dict[str, Any]:
    """What both requests say where they part, for who may read them."""
    if miss.explanation is None or miss.explanation.divergence is None:
        return {}
    divergence = miss.explanation.divergence
    sides = {"first": divergence.first, "second": divergence.second}
    return {name: {"text": one.text, "at": one.at} for name, one in sides.items()}


def worst(misses: Sequence[Miss]) -> Miss | None:
    """The miss that lost most, the first of equals: what a batch is told by."""
    return max(misses, key=lambda miss: miss.num_lost, default=None)


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
