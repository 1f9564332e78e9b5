"""Decoding one answer over a long context: the engine against Transformers' `model.generate`."""

from statistics import median
from typing import Any

import numpy as np
import torch

from anaphora.bench.lines import Line, at_least
from anaphora.bench.pair import Pair, Tokens
from anaphora.bench.timing import interleaved, ratio
from anaphora.engine.request import Sampling

MIN_SPEED = at_least(1.3)


def decode_line(
    pair: Pair,
    prefix: Tokens,  # cached by the engine
    cache: Any,  # the same prefix as a Transformers cache
    *,
    num_tokens: int,
    num_rounds: int,
) -> Line:
    """Compare seconds a token at batch 1 behind `prefix`. Greedy, `num_tokens` tokens after the first."""
    sampling = Sampling(max_tokens=num_tokens + 1, temperature=0.0, ignore_end=True)

    def engine() -> float:
        timing = pair.timed(pair.followed(prefix, 1), sampling)
        assert timing.receipt.num_generated_tokens == num_tokens + 1
        return (timing.last_token_s - timing.first_token_s) / num_tokens

    def generate() -> float:
        tokens = pair.followed(prefix, 1)
        one, all_of_them = (_generate_s(pair, tokens, cache, num_new) for num_new in (1, num_tokens + 1))
        return (all_of_them - one) / num_tokens

    ours, theirs = interleaved(engine, generate, num_rounds=num_rounds)
    return Line(
        f"decode at {len(prefix):,} tokens: generate / engine, time a token",
        ratio(theirs, ours),
        "x",
        MIN_SPEED,
        {"engine_ms_per_token": 1e3 * median(ours), "generate_ms_per_token": 1e3 * median(theirs)},
    )


def _generate_s(pair: Pair, tokens: Tokens, cache: Any, num_new: int) -> float:
    """Time one call of `generate` that finds all but the last token in `cache`, and restore the cache."""
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    timed = pair.on_engine_thread(
        lambda: pair.plain.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            cache=cache,
            do_sample=False,
            max_new_tokens=num_new,
            min_new_tokens=num_new,
        )
    )
    cache.crop(len(tokens) - 1 - cache.get_seq_length())  # a negative number: how many to drop
    return timed.took_s
