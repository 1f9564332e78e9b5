"""Measure `model.generate` with and without a PromptCache, side by side in one run.

    cold    nothing cached: what Transformers does each time
    hit     the prefix cached by an earlier question
    again   the same prompt once more

All three answer alike; the time to the first token and the gaps between tokens are taken from generate's streamer.
"""

import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor

from anaphora.engine.prompt_cache import PromptCache


def measure(
    model: Any, *, num_prefix: int = 1500, num_question: int = 16, num_new: int = 32, num_repeats: int = 5
) -> dict[str, float]:
    """Return times in ms, decoding speed in tokens/s, and their ratios. Medians; with and without take turns.

    `same_tokens` is 1.0 if every answer with the cache equals the answer without it.
    """
    generator = torch.Generator().manual_seed(0)
    prefix = _tokens(model, num_prefix, generator)
    runs = {name: _Runs() for name in ("cold", "hit", "again")}
    num_slots = 4 * (num_prefix + num_question + num_new)
    with PromptCache(model, max_bytes=num_slots * _bytes_per_token(model)) as prompts:
        ways = {"cold": type(model).generate.__get__(model), "hit": prompts.generate, "again": prompts.generate}
        _Runs().run(prompts.generate, prefix, 1)
        for _ in range(num_repeats):
            prompt = torch.cat([prefix, _tokens(model, num_question, generator)], dim=1)
            for name, generate in ways.items():
                runs[name].run(generate, prompt, num_new)
    cold, hit, again = (median(runs[name].first_s) for name in ("cold", "hit", "again"))
    plain_s, cached_s = median(runs["cold"].gaps_s), median(runs["hit"].gaps_s + runs["again"].gaps_s)
    same = [torch.equal(a, b) for name in ("hit", "again") for a, b in _pairs(runs["cold"], runs[name])]
    return {
        "num_prefix": num_prefix,
        "num_question": num_question,
        "num_new": num_new,
        "cold_ms": cold * 1e3,
        "hit_ms": hit * 1e3,
        "same_prompt_ms": again * 1e3,
        "cold_to_hit": cold / hit,
        "decode_plain_tokens_per_s": 1 / plain_s,
        "decode_cached_tokens_per_s": 1 / cached_s,
        "decode_ratio": plain_s / cached_s,
        "same_tokens": float(all(same)),
    }


@dataclass(slots=True)
class _Runs:
    """What one way of generating gave."""

    first_s: list[float] = field(default_factory=list)  # time to the first token
    gaps_s: list[float] = field(default_factory=list)  # from each token to the next
    answers: list[Tensor] = field(default_factory=list)

    def run(self, generate: Any, prompt: Tensor, num_new: int) -> None:
        clock = _TokenClock()
        answer = generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=num_new,
            min_new_tokens=num_new,
            do_sample=False,
            pad_token_id=0,
            streamer=clock,
        )
        self.first_s.append(clock.times[0] - clock.since)
        self.gaps_s += [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
        self.answers.append(answer)


class _TokenClock:
    """A streamer that notes when each token comes. It gets tokens on the CPU, so the device has finished them."""

    def __init__(self) -> None:
        self.since = time.perf_counter()
        self.times: list[float] = []
        self._has_prompt = False

    def put(self, token_ids: Tensor) -> None:
        if self._has_prompt:
            self.times.append(time.perf_counter())
        self._has_prompt = True

    def end(self) -> None:
        """Nothing follows."""


def _pairs(first: _Runs, second: _Runs) -> list[tuple[Tensor, Tensor]]:
    return list(zip(first.answers, second.answers, strict=True))


def _tokens(model: Any, num_tokens: int, generator: torch.Generator) -> Tensor:
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    return torch.randint(1, vocab_size, (1, num_tokens), generator=generator).to(model.device)


def _bytes_per_token(model: Any) -> int:
    text = model.config.get_text_config(decoder=True)
    num_kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    size: int = 2 * text.num_hidden_layers * num_kv_heads * head_dim * model.dtype.itemsize
    return size
