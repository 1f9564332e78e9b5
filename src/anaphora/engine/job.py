"""One request while the engine works on it: its sequences, their text, and its account."""

from typing import Literal

from anaphora.engine.detokenise import Detokeniser, TokenTexts
from anaphora.engine.request import Delta, FinishReason, GenerationRequest, Receipt, Source, StopReason, TokenLogprob
from anaphora.engine.sampler import Scored, TokenChooser
from anaphora.engine.sequence import Sequence
from anaphora.engine.stop_strings import StopScanner
from anaphora.engine.stream import Stream


class Answer:
    """One sequence with what turns its tokens into text."""

    def __init__(
        self, sequence: Sequence, chooser: TokenChooser, *, texts: TokenTexts, tokenizer: object, ends: frozenset[int]
    ) -> None:
        self.sequence = sequence
        self.chooser = chooser
        self.finish_reason: FinishReason | None = None
        sampling = sequence.request.sampling
        self._texts = texts
        self._ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_end else ends)
        self._detokeniser = Detokeniser(tokenizer, sequence.request.tokens[-8:].tolist(), texts=texts)
        self._scanner = StopScanner(sampling.stop)

    def take(self, token_id: int, scored: Scored | None) -> Delta:
        """Append a chosen token; answer the text that may be shown because of it."""
        self.chooser.saw(token_id)
        self.sequence.append(token_id)
        text, stop_string = "", None
        if token_id in self._ends:
            self.finish_reason = "stop"
        else:
            scanned = self._scanner.push(self._detokeniser.push(token_id))
            text, stop_string = scanned.text, scanned.stop_string
            if stop_string is not None:
                self.finish_reason = "stop_string"
            elif self.chooser.is_finished:
                self.finish_reason = "stop"
            elif self.sequence.num_left == 0:
                self.finish_reason = "length"
        if self.finish_reason in ("stop", "length"):
            scanned = self._scanner.push(self._detokeniser.flush())
            text += scanned.text
            if scanned.stop_string is not None:
                self.finish_reason, stop_string = "stop_string", scanned.stop_string
            else:
                text += self._scanner.flush()
        logprobs = () if scored is None else (with_text(scored, self._texts),)
        return Delta(self.sequence.index, text, (token_id,), logprobs, self.finish_reason, stop_string)

    def end_without_token(self) -> Delta:
        """Finish a sequence that may not generate anything."""
        self.finish_reason = "length"
        return Delta(self.sequence.index, "", (), finish_reason="length")


def with_text(scored: Scored, texts: TokenTexts) -> TokenLogprob:
    """Add text and bytes to a scored token."""
    return TokenLogprob(
        scored.token_id,
        texts.text_of(scored.token_id),
        texts.bytes_of(scored.token_id),
        scored.logprob,
        tuple((t, texts.text_of(t), texts.bytes_of(t), logprob) for t, logprob in scored.top),
    )


class Job:
    """A request with its stream, from submission to the last delta. Times are the engine clock's, in seconds."""

    def __init__(self, request: GenerationRequest, stream: Stream, *, now: float) -> None:
        self.request = request
        self.stream = stream
        self.answers: list[Answer] = []
        self.num_reused: int | None = None  # None: not started
        self.num_loaded = 0  # of these, from a lower tier
        self.stop_reason: StopReason = "nothing_cached"
        self.prompt_scores: list[Scored] = []  # of tokens 1, 2, ... as far as known
        self.kept: list[int] = []  # lengths of the prefixes that stay for the time that was asked for
        self.num_not_kept = 0  # wishes that were refused
        self._submitted_at = now
        self._started_at = now
        self._first_token_at: float | None = None

    @property
    def is_finished(self) -> bool:
        return all(answer.finish_reason is not None for answer in self.answers)

    @property
    def deadline(self) -> float | None:
        return None if self.request.timeout_s is None else self._submitted_at + self.request.timeout_s

    def start(self, num_reused: int, stop_reason: StopReason, *, now: float) -> None:
        """Note what the first lease reused. A preempted sequence that starts again changes nothing here."""
        if self.num_reused is None:
            self.num_reused, self.stop_reason, self._started_at = num_reused, stop_reason, now

    def deliver(self, delta: Delta, *, now: float) -> None:
        """Send a delta to the reader, with the receipt as it stands."""
        if self._first_token_at is None and delta.token_ids:
            self._first_token_at = now
        self.stream.receipt = self.receipt(now=now)
        self.stream.put(delta)

    def receipt(self, *, now: float) -> Receipt:
        """Account for the request as of now."""
        num_prompt, num_reused = len(self.request.tokens), self.num_reused or 0
        first = self._first_token_at
        return Receipt(
            request_id=self.request.request_id,
            num_prompt_tokens=num_prompt,
            num_reused_tokens=num_reused,
            num_computed_tokens=num_prompt - num_reused,
            num_written_tokens=sum(answer.sequence.num_written for answer in self.answers),
            num_generated_tokens=sum(answer.sequence.num_generated for answer in self.answers),
            source=_source(num_reused, self.num_loaded),
            stop_reason=self.stop_reason,
            queue_time_s=self._started_at - self._submitted_at,
            time_to_first_token_s=0.0 if first is None else first - self._submitted_at,
            total_time_s=now - self._submitted_at,
            retention=self._retention,
            num_kept_tokens=max(self.kept, default=0),
            num_loaded_tokens=self.num_loaded,
        )

    @property
    def _retention(self) -> Literal["none", "kept", "partly_kept", "refused"]:
        if self.kept:
            return "partly_kept" if self.num_not_kept else "kept"
        return "refused" if self.num_not_kept else "none"

    def set_prompt_logprobs(self, texts: TokenTexts) -> None:
        """Hand the prompt's scores to the reader, cut to as many alternatives as were asked for."""
        num_top = self.request.sampling.num_prompt_logprobs or 0
        cut = [Scored(scored.token_id, scored.logprob, scored.top[:num_top]) for scored in self.prompt_scores]
        self.stream.prompt_logprobs = (None, *(with_text(scored, texts) for scored in cut))


def _source(num_reused: int, num_loaded: int) -> Source:
    if not num_loaded:
        return "device" if num_reused else "none"
    return "disk" if num_loaded == num_reused else "both"
