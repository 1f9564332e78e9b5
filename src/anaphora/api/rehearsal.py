"""Requests rehearsed: what each would hit and be charged, with no model, no server and no network.

send(body) --> Rehearsed: tokens, those reused by a cache that forgets nothing, those that the profile's host reads, why
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anaphora.api.account import Account
from anaphora.api.anthropic_marks import marked_prompt
from anaphora.api.contracts import Contracts, Tab
from anaphora.api.openai_marks import chat_words, keyed_prompt, responses_words
from anaphora.api.recorded import Recorded, RecordedReader
from anaphora.api.responses import read_responses
from anaphora.contract.profiles import LOCAL, profile_named
from anaphora.core.fates import Fate
from anaphora.engine.request import Receipt, RequestId, StopReason, Tenant
from anaphora.explain.memory import Asked, MemoryLimits, RequestMemory, remembered_side
from anaphora.explain.openings import Nearest
from anaphora.explain.why import Miss, Outcome, why
from anaphora.explain.words import encode_words
from anaphora.prompt.render import Encoder

STEP_S = 1.0
"""Between two requests, where no times are given."""


@dataclass(frozen=True, slots=True)
class Gone:
    """What a rehearsed engine is told to have lost of a request: for tests of what is told then."""

    num_reused: int
    stop_reason: StopReason = "diverged"
    fate: Fate | None = None
    num_before_restart: int = 0


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What one request would have got."""

    account: Account

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.account.num_prompt_tokens

    @property
    def num_reused(self) -> int:
        """Tokens that open an earlier request too: what a cache that forgets nothing reuses."""
        return self.account.num_reused_tokens

    @property
    def num_read(self) -> int:
        """Tokens that the usage would say were read from the cache, by the profile's rules."""
        return self.account.tokens.read

    @property
    def num_written(self) -> int:
        """Tokens that the usage would say were written."""
        return self.account.tokens.written

    @property
    def miss(self) -> Miss:
        """Why no more would be reused, or read."""
        miss = self.account.miss
        assert miss is not None, "what is rehearsed is explained"
        return miss

    def assert_hits(self, at_least: int) -> None:
        """Raise AssertionError, saying why, where fewer tokens would be read than that."""
        if self.num_read >= at_least:
            return
        place = f" at {self.miss.where}, byte {self.miss.byte_index}" if self.miss.where else ""
        raise AssertionError(
            f"{self.num_read:,} of {self.num_tokens:,} tokens would be read from the cache, fewer than {at_least:,}. "
            f"Reuse stops{place}: {self.miss.says.removeprefix(f'{self.miss.where}: ')} {self.miss.advice}".rstrip()
        )


class Rehearsal:
    """A host under one profile's rules, and an engine that forgets nothing. Not for several threads."""

    def __init__(self, profile: str = LOCAL, *, encoder: Encoder | None = None) -> None:
        """`encoder`: a model's tokenizer; without one a token is a word or a sign. Raises: SettingsError."""
        self._profile = profile_named(profile)
        self._contracts = Contracts(self._profile, clock=lambda: self._now_s)
        self._reader = RecordedReader(encoder)
        self._encoder: Encoder = encoder or encode_words
        self._memory = RequestMemory(MemoryLimits(max_requests=10_000, max_bytes=2**30))
        self._now_s = 0.0
        self._num_sent = 0
        self._pending: tuple[Tab, Asked] | None = None  # has not begun to answer

    def send(
        self,
        body: Mapping[str, Any],
        *,
        at_s: float | None = None,
        tenant: str = "",
        overlaps: bool = False,
        answer: str = "",
        gone: Gone | None = None,
    ) -> Rehearsed:
        """Rehearse a request. `at_s`: when; a second after the last one if not told. `overlaps`: it does not begin to
        answer before the next one is sent. `answer`: what a model writes, to be reused where it comes back.

        Raises: RequestError for a body that is none.
        """
        self._now_s = self._now_s + STEP_S if at_s is None else at_s
        (recorded,) = self._reader.read(dict(body))
        scope = Tenant(tenant)
        tab = self._tab(recorded, scope)
        self._num_sent += 1
        asked = Asked(
            request_id=f"rehearsed-{self._num_sent}",
            at_s=self._now_s,
            model=str(body.get("model", "")),
            side=remembered_side(recorded.side, keeps_text=True),
            num_tokens=len(recorded.side.rendered.tokens),
        )
        nearest = self._memory.arrive(scope, asked, recorded.side.rendered.tokens)
        receipt, miss = self._outcome(recorded, nearest, gone)
        if tab.keep:
            asked.kept_until_s = self._now_s + max(one.lifetime_s for one in tab.keep)
        if self._pending is not None:
            self._begin(*self._pending)
        self._pending = (tab, asked) if overlaps else None
        if not overlaps:
            self._begin(tab, asked)
        if answer:
            self._memory.answer(scope, asked, self._encoder(answer, opens_text=False).tokens, answer)
        return Rehearsed(Account((receipt,), tab, (miss,)))

    def _begin(self, tab: Tab, asked: Asked) -> None:
        asked.began_s = self._now_s
        tab.publish(0)

    def _outcome(self, recorded: Recorded, nearest: Nearest[Asked] | None, gone: Gone | None) -> tuple[Receipt, Miss]:
        num_tokens = len(recorded.side.rendered.tokens)
        is_there = nearest is not None and nearest.value.began_s is not None
        num_alike = nearest.num_tokens if nearest is not None and is_there else 0
        told = gone or Gone(min(num_alike, num_tokens - 1))
        outcome = Outcome(
            at_s=self._now_s,
            now_s=self._now_s,
            num_tokens=num_tokens,
            num_reused=told.num_reused,
            stop_reason=told.stop_reason,
            fate=lambda age_s: told.fate,
            num_before_restart=told.num_before_restart,
        )
        receipt = Receipt(
            request_id=RequestId("rehearsed"),
            num_prompt_tokens=num_tokens,
            num_reused_tokens=told.num_reused,
            num_computed_tokens=num_tokens - told.num_reused,
            num_written_tokens=num_tokens - told.num_reused,
            num_generated_tokens=0,
            source="device" if told.num_reused else "none",
            stop_reason=told.stop_reason,
            queue_time_s=0.0,
            time_to_first_token_s=0.0,
            total_time_s=0.0,
        )
        return receipt, why(recorded.side, nearest, outcome)

    def _tab(self, recorded: Recorded, tenant: Tenant) -> Tab:
        """Reckon a request by the profile's rules."""
        body, side, rules = dict(recorded.body), recorded.side, self._profile
        model = str(body.get("model", ""))
        if recorded.api == "messages":
            marked = marked_prompt(body, side.prompt, side.rendered, rules.anthropic)
            return self._contracts.open_message(marked, tenant, model, started_s=self._now_s)
        if recorded.api == "chat":
            words = chat_words(body, rules.openai)
        else:
            words = responses_words(body, read_responses({"model": "", **body}).items)
        keyed = keyed_prompt(words, side.prompt, side.rendered, rules.openai)
        return self._contracts.open_chat(keyed, side.rendered.tokens, tenant, model, started_s=self._now_s)
