"""What goes into the engine and what comes out. Frozen data, no behaviour, no torch.

GenerationRequest ──> engine ──> Delta, Delta, ..., Delta(finish_reason=...)   one stream per sequence
                             └─> Receipt                                       one per request
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NewType

import numpy as np
from numpy.typing import NDArray

RequestId = NewType("RequestId", str)
Tenant = NewType("Tenant", str)

DEFAULT_TENANT = Tenant("")

FinishReason = Literal["stop", "length", "stop_string", "abort", "error"]
"""stop: an end token, or the grammar's end. length: max_tokens or the end of the context. stop_string: one of `stop`
appeared (see Delta.stop_string). abort: the caller left. error: the step failed (Delta.error says how)."""

StopReason = Literal[
    "whole_prompt",  # every prompt token was cached; only the last was recomputed
    "ended",  # everything cached of this prompt was reused; what follows is new
    "diverged",  # reuse ended at a token where what is cached goes on differently
    "nothing_cached",  # no cached prompt opens with the first token
    "prompt_logprobs",  # reuse ended where prompt logprobs were asked for and not cached
    "cache_off",  # the operator turned reuse off
    "not_cacheable",  # this model can't be cached exactly
]
"""Why reuse stopped where it did, at engine level."""

Source = Literal[
    "none",  # nothing was reused
    "device",  # the pool had all of it
    "disk",  # all of it was loaded from a lower tier
    "both",  # the pool had the first tokens of it, a lower tier the rest
]
"""Where a request's reused tokens were when it arrived."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How next tokens are chosen. temperature 0 is greedy. Validated by `Engine.submit`."""

    max_tokens: int | None = None  # None: up to the end of the context; 0: prefill only
    temperature: float = 1.0  # >= 0
    top_p: float = 1.0  # (0, 1]
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # [0, 1]
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # > 0; 1: off; counts prompt and generated tokens
    seed: int | None = None  # same seed, same request, same answer
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its logit
    num_logprobs: int | None = None  # None: no logprobs; k: chosen token + k best
    num_prompt_logprobs: int | None = None  # the same for every prompt token
    stop: tuple[str, ...] = ()  # the answer ends before the first of these
    stop_token_ids: tuple[int, ...] = ()  # besides the model's own end tokens
    ignore_end: bool = False  # go on past the model's end tokens
    grammar: str | None = None  # the answer is a sentence of it: Lark text (see `engine/grammar.py`)
    num_sequences: int = 1  # n: answers to one prompt, sharing its prefill


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Keep:
    """A wish that the first tokens of a prompt stay cached for a while after they were last read."""

    num_tokens: int  # of the prompt, from the start
    lifetime_s: float


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    request_id: RequestId
    tokens: NDArray[np.int32]  # [num_prompt_tokens], at least one
    sampling: Sampling
    tenant: Tenant = DEFAULT_TENANT  # tenants never share cache
    timeout_s: float | None = None  # from submission to the last token
    keep: tuple[Keep, ...] = ()  # granted within a budget; the receipt says whether
    priority: Literal["low", "normal", "high"] = "normal"  # of what is cached: all of a lower one is evicted first


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    token: str  # text of this token alone (may be a replacement character for a partial one)
    token_bytes: bytes
    logprob: float  # natural logarithm, of the model's own distribution (before temperature and filters)
    top: tuple[tuple[int, str, bytes, float], ...] = ()  # (token_id, token, bytes, logprob), best first


@dataclass(frozen=True, slots=True)
class Delta:
    """One piece of one sequence's answer. Text pieces concatenate to the whole answer."""

    sequence_index: int  # 0 .. num_sequences - 1
    text: str  # may be empty while bytes of a character or a possible stop string are held back
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None  # set on a sequence's last delta, and only there
    stop_string: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """One request's account. Every surface (usage, headers, metrics, logs) is a view of it.

    num_prompt_tokens = num_reused_tokens + num_computed_tokens, always.
    """

    request_id: RequestId
    num_prompt_tokens: int
    num_reused_tokens: int  # read from the cache instead of computed
    num_computed_tokens: int  # prompt tokens that went through the model
    num_written_tokens: int  # tokens (prompt and generated) newly kept for later requests
    num_generated_tokens: int  # over all sequences
    source: Source  # where the reused tokens came from
    stop_reason: StopReason  # why reuse stopped at num_reused_tokens
    queue_time_s: float  # submission to first step
    time_to_first_token_s: float  # submission to first token; 0 if there was none
    total_time_s: float
    retention: Literal["none", "kept", "partly_kept", "refused"] = "none"  # what became of `GenerationRequest.keep`
    num_kept_tokens: int = 0  # the longest part of the prompt that stays for a promised time
    num_loaded_tokens: int = 0  # of the reused ones, those that were loaded from a lower tier for this request


@dataclass(frozen=True, slots=True)
class Completion:
    """One sequence, finished."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_string: str | None
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished request: `num_sequences` completions and the receipt."""

    completions: tuple[Completion, ...]
    receipt: Receipt
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()  # [num_prompt_tokens]; the first is None

    @property
    def text(self) -> str:
        """Text of the first completion."""
        return self.completions[0].text
