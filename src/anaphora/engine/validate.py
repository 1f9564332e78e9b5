"""Check what enters the engine with a request. Errors name the field and what is allowed."""

import math
from collections.abc import Callable
from typing import Any

from anaphora.engine.request import GenerationRequest, Sampling
from anaphora.errors import RequestError

MAX_LOGPROBS = 20
MAX_SEQUENCES = 128

_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (lambda x: x is None or x >= 0, "0 or more"),
    "temperature": (lambda x: math.isfinite(x) and x >= 0, "0 or more"),
    "top_p": (lambda x: 0 < x <= 1, "above 0 and at most 1"),
    "top_k": (lambda x: x >= 0, "0 (off) or more"),
    "min_p": (lambda x: 0 <= x <= 1, "from 0 to 1"),
    "presence_penalty": (math.isfinite, "a finite number"),
    "frequency_penalty": (math.isfinite, "a finite number"),
    "repetition_penalty": (lambda x: math.isfinite(x) and x > 0, "above 0"),
    "num_logprobs": (lambda x: x is None or 0 <= x <= MAX_LOGPROBS, f"from 0 to {MAX_LOGPROBS}"),
    "num_prompt_logprobs": (lambda x: x is None or 0 <= x <= MAX_LOGPROBS, f"from 0 to {MAX_LOGPROBS}"),
    "seed": (lambda x: x is None or isinstance(x, int), "a whole number"),
    "num_sequences": (lambda x: 1 <= x <= MAX_SEQUENCES, f"from 1 to {MAX_SEQUENCES}"),
}


def check_sampling(sampling: Sampling, *, vocab_size: int) -> None:
    """Raise RequestError for the first field that has no meaning."""
    for field, (is_allowed, rule) in _RULES.items():
        value = getattr(sampling, field)
        if not is_allowed(value):
            raise RequestError(f"{field} = {value} is not allowed: it has to be {rule}.", field=field)
    for token_id in sampling.stop_token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"stop_token_ids names token {token_id}; the vocabulary is [0, {vocab_size}).", field="stop_token_ids"
            )
    for token_id, bias in sampling.logit_bias.items():
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"logit_bias names token {token_id}; the vocabulary is [0, {vocab_size}).", field="logit_bias"
            )
        if not math.isfinite(bias):
            raise RequestError(f"logit_bias of token {token_id} is {bias}, not a number.", field="logit_bias")


def check_keep(request: GenerationRequest) -> None:
    """Raise RequestError for a wish to keep what the prompt does not have, or for no time at all."""
    for wish in request.keep:
        if not 0 < wish.num_tokens <= len(request.tokens):
            raise RequestError(
                f"keep: {wish.num_tokens} tokens can't be kept of a prompt of {len(request.tokens)}.", field="keep"
            )
        if not (wish.lifetime_s > 0 and math.isfinite(wish.lifetime_s)):
            raise RequestError(f"keep: a lifetime of {wish.lifetime_s} s is no time to keep anything.", field="keep")
    if request.priority not in ("low", "normal", "high"):
        raise RequestError(f"priority {request.priority!r} is not low, normal or high.", field="priority")
