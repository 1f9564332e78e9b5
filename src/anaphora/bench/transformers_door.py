"""Measure `model.generate` with and without a PromptCache, side by side in one run.

cold    generate(prefix + question), nothing cached: what Transformers does each time
hit     the same, the prefix cached by an earlier question
again   the same prompt once more
decode  tokens per second of a long answer behind a long prompt, Transformers' own cache against views of the pool
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from anaphora.engine.prompt_cache import PromptCache


def measure(
    model: Any, *, num_prefix: int = 1500, num_question: int = 16, num_decode: int = 64, num_repeats: int = 5
) -> dict[str, float]:
    """Return times in ms, speeds in tokens/s and their ratios. Medians; with and without take turns.

    `same_tokens` is 1.0 if every answer with the cache equals the answer without it.
    Takes about num_repeats * (2 cold prompts + 2 long answers) of time.
    """
    generator = torch.Generator().manual_seed(0)
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    prefix = _tokens(vocab_size, num_prefix, generator)
    times: dict[str, list[float]] = {"cold": [], "hit": [], "again": [], "plain": [], "cached": []}
    same: list[bool] = []
    num_slots = 4 * (num_prefix + num_question + num_decode)
    with PromptCache(model, max_bytes=num_slots * _bytes_per_token(model)) as prompts:
        bare = type(model).generate.__get__(model)
        _generate(prompts.generate, model, prefix, 1)
        for _ in range(num_repeats):
            prompt = torch.cat([prefix, _tokens(vocab_size, num_question, generator)], dim=1)
            answers = {}
            for name, generate, num_new in (
                ("cold", bare, 1),
                ("hit", prompts.generate, 1),
                ("again", prompts.generate, 1),
                ("plain", bare, num_decode),
                ("cached", prompts.generate, num_decode),
            ):
                answers[name], time_s = _generate(generate, model, prompt, num_new)
                times[name].append(time_s)
            same += [torch.equal(answers["cold"], answers[name]) for name in ("hit", "again")]
            same.append(torch.equal(answers["plain"], answers["cached"]))
    middle = {name: median(values) for name, values in times.items()}
    decode_plain = (num_decode - 1) / (middle["plain"] - middle["cold"])
    decode_cached = (num_decode - 1) / (middle["cached"] - middle["again"])
    return {
        "num_prefix": num_prefix,
        "num_question": num_question,
        "num_decode": num_decode,
        "cold_ms": middle["cold"] * 1e3,
        "hit_ms": middle["hit"] * 1e3,
        "same_prompt_ms": middle["again"] * 1e3,
        "cold_to_hit": middle["cold"] / middle["hit"],
        "decode_plain_tokens_per_s": decode_plain,
        "decode_cached_tokens_per_s": decode_cached,
        "decode_ratio": decode_cached / decode_plain,
        "same_tokens": float(all(same)),
    }


def _generate(generate: Callable[..., Any], model: Any, prompt: Tensor, num_new: int) -> tuple[Tensor, float]:
    since = time.perf_counter()
    answer = generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=num_new,
        min_new_tokens=num_new,
        do_sample=False,
        pad_token_id=0,
    )
    _wait_for(model.device)
    return answer, time.perf_counter() - since


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _tokens(vocab_size: int, num_tokens: int, generator: torch.Generator) -> Tensor:
    return torch.randint(1, vocab_size, (1, num_tokens), generator=generator)


def _bytes_per_token(model: Any) -> int:
    text = model.config.get_text_config(decoder=True)
    num_kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    size: int = 2 * text.num_hidden_layers * num_kv_heads * head_dim * model.dtype.itemsize
    return size
