"""Carry out one step: schedule, run the model, publish, sample, deliver. Single-threaded; `loop.py` drives it."""

import logging
from collections.abc import Callable, Iterator
from collections.abc import Sequence as AbstractSequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anaphora.core.cache import Cache
from anaphora.engine.detokenise import TokenTexts
from anaphora.engine.grammar import Grammars
from anaphora.engine.job import Answer, Job
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.prompt_scores import NUM_TOP, PromptScores
from anaphora.engine.request import Delta, StopReason
from anaphora.engine.runner import Runner
from anaphora.engine.sampler import TokenChooser, score
from anaphora.engine.scheduler import Scheduler, Share
from anaphora.engine.sequence import Sequence
from anaphora.engine.stats import EngineStats
from anaphora.engine.step import Rows, extents_between, plan_step
from anaphora.errors import AnaphoraError, EngineFailure, RequestError

log = logging.getLogger("anaphora")


@dataclass(frozen=True, slots=True)
class Limits:
    max_step_tokens: int
    max_sequences: int
    min_first_chunk: int  # see Scheduler
    why_no_reuse: StopReason | None  # None: the cache reuses


class Stepper:
    """The engine's working state: jobs, scheduler, cache, runner."""

    def __init__(
        self, loaded: LoadedModel, cache: Cache, runner: Runner, *, limits: Limits, clock: Callable[[], float]
    ) -> None:
        self.cache = cache
        self.scheduler = Scheduler(
            cache,
            max_step_tokens=limits.max_step_tokens,
            max_sequences=limits.max_sequences,
            min_first_chunk=limits.min_first_chunk,
            reuse_limit=self._reuse_limit,
        )
        self.stats = EngineStats()
        self.jobs: dict[int, Job] = {}  # by id() of the stream
        self.num_left_queue = 0  # jobs that were started, or ended before that; only ever goes up
        self._loaded = loaded
        self._runner = runner
        self._limits = limits
        self._clock = clock
        self._texts = TokenTexts(loaded.tokenizer)
        self.grammars = Grammars(
            self._texts,
            lambda text: loaded.tokenizer(text, add_special_tokens=False).input_ids,
            vocab_size=loaded.spec.vocab_size,
            end_ids=loaded.spec.end_token_ids,
        )
        self._answers: dict[int, tuple[Job, Answer]] = {}  # by sequence id
        self._scores: PromptScores | None = None  # made when first asked for

    def prepare(self, job: Job, sequences: AbstractSequence[Sequence]) -> None:
        """Give a job what turns its sequences' scores into text. Touches nothing else: for any thread.

        Raises: RequestError for a grammar that can't be followed.
        """
        sampling, vocab_size = job.request.sampling, self._loaded.spec.vocab_size
        for sequence in sequences:
            matcher = self.grammars.matcher(sampling)
            chooser = TokenChooser(
                sampling, job.request.tokens, index=sequence.index, vocab_size=vocab_size, matcher=matcher
            )
            answer = Answer(
                sequence,
                chooser,
                texts=self._texts,
                tokenizer=self._loaded.tokenizer,
                ends=self._loaded.spec.end_token_ids,
            )
            job.answers.append(answer)

    def add(self, job: Job) -> None:
        """Take a prepared job. Only its first sequence is queued: the others fork when the prompt is computed."""
        self.jobs[id(job.stream)] = job
        for answer in job.answers:
            self._answers[answer.sequence.id] = (job, answer)
        self.scheduler.add(job.answers[0].sequence)
        self.stats.num_requests += 1

    def end(self, job: Job, error: AnaphoraError | None = None) -> None:
        """Free all that a job holds and close its stream, with an error if it did not finish."""
        if self.jobs.pop(id(job.stream), None) is None:
            return
        self.num_left_queue += job.num_reused is None
        for answer in job.answers:
            self._retire(answer.sequence)
            self._answers.pop(answer.sequence.id, None)
        job.stream.receipt = job.receipt(now=self._clock())
        if error is not None:
            job.stream.put(error)
        job.stream.close()

    def abort(self, job: Job) -> None:
        """End a job whose reader has left."""
        if id(job.stream) not in self.jobs:
            return
        self.stats.num_aborted += 1
        job.stream.receipt = job.receipt(now=self._clock())
        for answer in job.answers:
            if answer.finish_reason is None:
                job.stream.put(Delta(answer.sequence.index, "", (), finish_reason="abort"))
        self.end(job)

    def step(self) -> bool:
        """Do the next step's work; False if there is none. A failing model costs only the requests it fails for."""
        before = set(map(id, self.scheduler.running))
        shares = self.scheduler.schedule()
        if not shares:
            return False
        for share in shares:
            if id(share.sequence) not in before:
                self._note_start(share.sequence)
        self.stats.num_steps += 1
        started_at = self._clock()
        try:
            logits = self._compute(shares)
        except Exception as error:
            self._isolate(shares, error)
        else:
            self.scheduler.lower.computed(sum(share.num_rows for share in shares), self._clock() - started_at)
            self._answer(_done(shares), logits)
        return True

    def _isolate(self, shares: list[Share], error: Exception) -> None:
        """Run each share of a failed step by itself, and fail the requests whose own share fails.

        Nothing of the failed step was noted, so every share stands where it stood.
        """
        for share in shares:
            if share.sequence.id not in self._answers:
                continue  # another share of its request failed
            with self._failing_alone(share.sequence):
                if len(shares) == 1:
                    raise error
                logits = self._compute([share])
                self._answer(_done([share]), logits)

    @contextmanager
    def _failing_alone(self, sequence: Sequence) -> Iterator[None]:
        """Let an exception cost no more than the sequence's own request."""
        try:
            yield
        except RequestError as error:  # a grammar that takes too much to follow
            self.stats.num_failed += 1
            self.end(self._answers[sequence.id][0], error)
        except Exception as error:
            job, _ = self._answers[sequence.id]
            log.exception("request %s failed in a step", job.request.request_id)
            self.stats.num_failed += 1
            self.end(job, EngineFailure(f"The model failed on this request: {error}"))

    def _compute(self, shares: list[Share]) -> Tensor:  # [num_done, vocab_size]
        """Run the model, note and publish what was computed; answer the scores of the shares that are done now.

        Raises whatever the model raises; nothing is noted or published then.
        """
        rows, tokens, positions = _batch(shares)
        plan = plan_step(rows)
        if self._scores is not None:
            self._scores.forget(plan.writes)
        wanted = [self._logit_rows(share, own) for share, own in zip(shares, rows, strict=True)]
        logits = self._runner.run(tokens, positions, plan, [row for own in wanted for row in own] or [0])
        start = 0
        for share, own, chosen in zip(shares, rows, wanted, strict=True):
            if chosen and bool(torch.isnan(logits[start : start + len(chosen)].amax(dim=-1)).any()):
                raise EngineFailure("the model's scores are not numbers")
            if share.sequence.is_scored:
                self._score_prompt(share, own, logits[start : start + len(chosen)])
            start += len(chosen)
        self._advance(shares)
        ends = np.cumsum([len(chosen) for chosen in wanted]) - 1
        return logits[[int(end) for share, end in zip(shares, ends, strict=True) if not share.sequence.num_to_compute]]

    @staticmethod
    def _logit_rows(share: Share, rows: Rows) -> list[int]:
        """The last row if the step reaches the newest token; all rows of a prompt that is scored."""
        sequence = share.sequence
        if sequence.is_scored and rows.position < sequence.num_prompt:
            return list(range(rows.row_start, rows.row_stop))
        return [rows.row_stop - 1] if share.num_rows == sequence.num_to_compute else []

    def _advance(self, shares: list[Share]) -> None:
        """Note what was computed and publish prompts chunk by chunk. Replies are published when they end."""
        for share in shares:
            sequence = share.sequence
            was_decoding = sequence.is_decoding
            sequence.num_computed += share.num_rows
            if not was_decoding:
                self._publish(sequence)
            if sequence.is_scored:
                self._keep_scores(sequence, num_rows=share.num_rows)

    def _publish(self, sequence: Sequence) -> None:
        assert sequence.lease is not None
        sequence.num_written += self.cache.publish(sequence.lease, sequence.tokens, sequence.num_computed)

    def _answer(self, sequences: list[Sequence], logits: Tensor) -> None:
        """Choose a next token for sequences whose known tokens are all computed; fork those with more answers."""
        for sequence, row in zip(list(sequences), logits, strict=True):
            if sequence.index == 0 and not sequence.num_generated:
                with self._failing_alone(sequence):
                    job, _ = self._answers[sequence.id]
                    self._complete_prompt(job, sequence)
                    forks = self._fork(job)
                    sequences += forks
                    logits = torch.cat([logits, row.expand(len(forks), -1)])
        choosers = [self._answers[s.id][1].chooser for s in sequences if s.id in self._answers]
        if all(chooser.is_plain_greedy for chooser in choosers):
            best: list[int | None] = logits.argmax(dim=-1).tolist()
        else:
            best, logits = [None] * len(sequences), logits.float().cpu()
        for sequence, row, token_id in zip(sequences, logits, best, strict=True):
            if sequence.id in self._answers:
                with self._failing_alone(sequence):
                    self._answer_one(sequence, row, token_id)

    def _answer_one(self, sequence: Sequence, logits: Tensor, token_id: int | None) -> None:
        """Add a token to one sequence: the given one, or one chosen from logits [vocab_size]."""
        job, answer = self._answers[sequence.id]
        if not sequence.num_left:
            self._deliver(job, answer, answer.end_without_token())
            return
        chosen = answer.chooser.choose(logits) if token_id is None else token_id
        num_top = job.request.sampling.num_logprobs
        scored = None if num_top is None else score(logits[None], [chosen], num_top=num_top)[0]
        self.stats.num_generated_tokens += 1
        self._deliver(job, answer, answer.take(chosen, scored))

    def _deliver(self, job: Job, answer: Answer, delta: Delta) -> None:
        if answer.finish_reason is not None:
            self._publish(answer.sequence)
            self._retire(answer.sequence)
        job.deliver(delta, now=self._clock())
        if job.is_finished:
            self.stats.num_finished += 1
            self.end(job)

    def _retire(self, sequence: Sequence) -> None:
        self.scheduler.lower.keep(sequence)
        self.scheduler.remove(sequence)
        self._runner.forget(sequence.id)

    def _fork(self, job: Job) -> list[Sequence]:
        """Start a request's further answers. Those that find no room wait their turn."""
        forks = []
        for answer in job.answers[1:]:
            if self.scheduler.admit_fork(answer.sequence):
                forks.append(answer.sequence)
            else:
                self.scheduler.add(answer.sequence)
        return forks

    def _note_start(self, sequence: Sequence) -> None:
        job, _ = self._answers[sequence.id]
        if job.num_reused is not None:
            return
        assert sequence.lease is not None
        self.num_left_queue += 1
        num_reused = sequence.lease.num_reused
        if sequence.num_on_device is not None:
            job.num_loaded = max(0, num_reused - sequence.num_on_device)
        job.start(num_reused, self._why_stopped(sequence, num_reused), now=self._clock())
        self.stats.num_prompt_tokens += sequence.num_prompt
        self.stats.num_reused_tokens += num_reused
        self.stats.num_computed_tokens += sequence.num_prompt - num_reused

    def _why_stopped(self, sequence: Sequence, num_reused: int) -> StopReason:
        if self._limits.why_no_reuse is not None:
            return self._limits.why_no_reuse
        match = self.cache.peek(sequence.namespace, sequence.tokens)
        if num_reused == sequence.num_prompt - 1 < match.num_tokens:
            return "whole_prompt"
        if sequence.is_scored and match.num_tokens > num_reused:
            return "prompt_logprobs"
        if num_reused == 0:
            return "nothing_cached"
        return "diverged" if match.diverged else "ended"

    def _reuse_limit(self, sequence: Sequence) -> int:
        """All but the last token; less where prompt tokens are to be scored and their scores are not kept.

        Token i's score comes from row i - 1: with the scores of tokens 1 .. n - 1 kept, row n - 1 must run.
        """
        if not sequence.is_scored:
            return sequence.num_tokens - 1
        if self._scores is None:
            self._scores = PromptScores(self.cache.counts().total)
        if (sequence.request.sampling.num_prompt_logprobs or 0) > NUM_TOP:
            return 0
        extents = self.cache.peek(sequence.namespace, sequence.tokens[: sequence.num_prompt]).extents
        num_kept = self._scores.num_kept(extents)
        job, _ = self._answers[sequence.id]
        job.prompt_scores = self._scores.read(extents, sequence.tokens[:num_kept].tolist())
        return max(0, num_kept - 1)

    def _score_prompt(self, share: Share, rows: Rows, logits: Tensor) -> None:
        """Score the prompt tokens that follow this chunk's rows."""
        sequence = share.sequence
        job, _ = self._answers[sequence.id]
        following = sequence.tokens[rows.position + 1 : min(rows.position + rows.num_rows + 1, sequence.num_prompt)]
        asked = sequence.request.sampling.num_prompt_logprobs or 0
        if not following.size:
            return
        assert len(job.prompt_scores) >= rows.position
        job.prompt_scores[rows.position :] = score(
            logits[: following.size], following.tolist(), num_top=max(NUM_TOP, asked)
        )

    def _keep_scores(self, sequence: Sequence, *, num_rows: int) -> None:
        """Keep the scores of the last `num_rows` computed tokens beside their slots, as they are once published."""
        job, _ = self._answers[sequence.id]
        first = max(1, sequence.num_computed - num_rows)  # its score came from the row in front of this chunk
        stop = min(sequence.num_computed, sequence.num_prompt)
        assert sequence.lease is not None
        assert self._scores is not None
        slots = [
            slot
            for extent in extents_between(sequence.lease.extents, first, stop)
            for slot in range(extent.start, extent.stop)
        ]
        for slot, one in zip(slots, job.prompt_scores[first - 1 : stop - 1], strict=True):
            self._scores.keep(slot, one)

    def _complete_prompt(self, job: Job, sequence: Sequence) -> None:
        """See to what was asked for a prompt, now that all of it is computed and published."""
        assert sequence.lease is not None
        for wish in job.request.keep:
            if self.cache.keep(sequence.lease, wish.num_tokens, lifetime_s=wish.lifetime_s) is None:
                job.kept.append(wish.num_tokens)
            else:
                job.num_not_kept += 1
        if job.request.sampling.num_prompt_logprobs is not None:
            job.set_prompt_logprobs(self._texts)


def _done(shares: list[Share]) -> list[Sequence]:
    """List the sequences that have nothing left to compute, once a step is noted."""
    return [share.sequence for share in shares if not share.sequence.num_to_compute]


def _batch(shares: list[Share]) -> tuple[list[Rows], np.ndarray, np.ndarray]:
    """Lay the step's tokens side by side: rows of each share, token ids [num_rows], positions [num_rows]."""
    rows: list[Rows] = []
    start = 0
    for share in shares:
        sequence = share.sequence
        assert sequence.lease is not None
        rows.append(Rows(sequence.id, start, share.num_rows, sequence.num_computed, sequence.lease.extents))
        start += share.num_rows
    spans = [(share.sequence.num_computed, share.sequence.num_computed + share.num_rows) for share in shares]
    tokens = np.concatenate([s.sequence.tokens[a:b] for s, (a, b) in zip(shares, spans, strict=True)])
    positions = np.concatenate([np.arange(a, b, dtype=np.int32) for a, b in spans])
    return rows, tokens, positions
