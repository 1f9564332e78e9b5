"""Goal: `model.generate` with a PromptCache gives what it gives without, and computes only what is new.

Method: tiny random models of every family, run with and without the cache, and their receipts; the bookkeeping's own
invariants after each step. Where answers differ, the two best scores of the plain run must lie within 1e-3.
"""

import copy
import gc
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Phi3Config, pipeline

import anaphora
from anaphora.bench.transformers_door import measure
from anaphora.engine.engine import Engine
from anaphora.engine.models.catalog import CATALOG, DEFAULT_MODEL
from anaphora.engine.models.fetch import default_cache_dir, is_fetched
from anaphora.engine.models.loading import load_model
from anaphora.engine.prompt_cache import PromptCache, _max_context
from anaphora.engine.settings import EngineSettings
from anaphora.errors import (
    AnaphoraError,
    EngineFailure,
    Overloaded,
    PromptTooLong,
    RequestError,
    SettingsError,
)
from anaphora.testing.random_models import CACHEABLE_FAMILIES, UNCACHEABLE_FAMILIES, random_model

CACHE_DIR = Path(os.environ.get("ANAPHORA_CACHE_DIR") or default_cache_dir())
MIB = 1 << 20
BYTES_PER_TOKEN = 512  # of the tiny Llama: 2 layers, 2 key heads of 16, keys and values, float32


def tokens(num_tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 380, (1, num_tokens), generator=torch.Generator().manual_seed(seed))


def joined(*parts: Tensor) -> Tensor:
    return torch.cat(parts, dim=1)


def greedy(model: Any, prompt: Tensor, *, num_new: int = 8, **options: Any) -> Tensor:
    generate = type(model).generate
    answer: Tensor = generate(
        model, prompt, max_new_tokens=num_new, do_sample=False, eos_token_id=None, pad_token_id=0, **options
    )
    return answer


def assert_same_answer(model: Any, found: Tensor, expected: Tensor) -> None:
    if torch.equal(found, expected):
        return
    first = int((found != expected)[0].nonzero()[0, 0])
    with torch.no_grad():
        best = model(expected[:, :first]).logits[0, -1].topk(2).values
    assert float(best[0] - best[1]) <= 1e-3, "another answer, and not for rounding"


def attached(prompts: PromptCache, model: Any, prompt: Tensor, **options: Any) -> anaphora.Receipt:
    """Generate with the cache, compare with a run without, and give the receipt."""
    with prompts.attach(prompt) as cache:
        found = greedy(model, prompt, cache=cache, **options)
    assert_same_answer(model, found, greedy(model, prompt, **options))
    prompts.check()
    return cache.receipt


@pytest.fixture(scope="module")
def shared_model() -> Any:
    return random_model("llama").model


@pytest.fixture
def model(shared_model: Any) -> Any:
    return shared_model


@pytest.fixture
def prompts(model: Any) -> Iterator[PromptCache]:
    with PromptCache(model, max_bytes=MIB) as cache:
        yield cache
        counts = cache.counts()
        assert counts.leased == 0, "a lease was left open"
        cache.check()


@pytest.mark.parametrize("family", CACHEABLE_FAMILIES)
def test_every_family_answers_as_without_the_cache_and_computes_only_what_is_new(family: str) -> None:
    model = random_model(family).model
    system, question, other = tokens(40, 1), tokens(9, 2), tokens(7, 3)
    with PromptCache(model, max_bytes=4 * MIB) as prompts:
        cold = attached(prompts, model, joined(system, question))
        assert (cold.num_reused_tokens, cold.num_computed_tokens, cold.num_generated_tokens) == (0, 49, 8)
        assert (cold.num_written_tokens, cold.source, cold.stop_reason) == (56, "none", "nothing_cached")
        hit = attached(prompts, model, joined(system, other))
        assert (hit.num_reused_tokens, hit.num_computed_tokens, hit.stop_reason) == (40, 7, "diverged")
        assert hit.source == "device"
        again = attached(prompts, model, joined(system, question))
        assert (again.num_computed_tokens, again.stop_reason, again.num_written_tokens) == (1, "whole_prompt", 0)
        turn = joined(greedy(model, joined(system, question)), other)
        assert attached(prompts, model, turn).num_reused_tokens == 56
        assert attached(prompts, model, tokens(12, 4)).num_reused_tokens == 0


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_every_tail_length_is_exact(family: str) -> None:
    model, prefix = random_model(family).model, tokens(30, 5)
    with PromptCache(model, max_bytes=4 * MIB) as prompts:
        attached(prompts, model, prefix, num_new=1)
        for num_tail in range(1, 65):
            receipt = attached(prompts, model, joined(prefix, tokens(num_tail, 100 + num_tail)), num_new=2)
            assert receipt.num_reused_tokens >= 30
            assert receipt.num_reused_tokens + receipt.num_computed_tokens == 30 + num_tail


def test_deprecated_argument_name_works_as_well(prompts: PromptCache, model: Any) -> None:
    prompt = tokens(20)
    for num_computed in (20, 1):
        with prompts.attach(prompt) as cache, pytest.warns(FutureWarning, match="past_key_values"):
            found = greedy(model, prompt, past_key_values=cache)
        assert torch.equal(found, greedy(model, prompt))
        assert cache.receipt.num_computed_tokens == num_computed


def test_model_called_by_hand_reuses_too(prompts: PromptCache, model: Any) -> None:
    prompt = tokens(20)
    with torch.no_grad():
        expected = model(prompt).logits[:, -1]
        with prompts.attach(prompt) as cache:
            model(prompt, cache=cache)
        with prompts.attach(prompt) as cache:
            num_cached = cache.get_seq_length()
            found = model(prompt[:, num_cached:], None, None, cache).logits[:, -1]
    assert num_cached == 19
    assert torch.allclose(found, expected, atol=1e-4)


def test_layers_read_views_of_the_pool(prompts: PromptCache, model: Any) -> None:
    # No step copies the cache: what attention gets is the pool's own memory.
    seen = []
    prompt = tokens(20)
    with prompts.attach(prompt) as cache:
        pool = cache.store.pool.keys[0]
        update = cache.layers[0].update

        def watched(*args: Any, **options: Any) -> Any:
            seen.append(update(*args, **options))
            return seen[-1]

        cache.layers[0].update = watched
        greedy(model, prompt, num_new=5, cache=cache)
    assert [keys.shape[2] for keys, _ in seen] == [20, 21, 22, 23, 24]
    assert {keys.untyped_storage().data_ptr() for keys, _ in seen} == {pool.untyped_storage().data_ptr()}


def test_random_prompts_over_a_small_pool_stay_exact(model: Any) -> None:
    # Evictions, moves and prefixes in several extents: 128 slots for prompts of up to 60 tokens.
    choose = random.Random(3)
    parts = [tokens(choose.randrange(1, 20), seed) for seed in range(6)]
    num_reused = num_moved = 0
    with PromptCache(model, max_bytes=128 * BYTES_PER_TOKEN) as prompts:
        for _ in range(60):
            prompt = joined(*(choose.choice(parts[:3]) for _ in range(2)), choose.choice(parts))
            with prompts.attach(prompt, num_new_tokens=3) as cache:
                num_moved += bool(cache.room.num_reused and not cache.room.num_shared)
                found = greedy(model, prompt, num_new=3, cache=cache)
            assert_same_answer(model, found, greedy(model, prompt, num_new=3))
            prompts.check()
            num_reused += cache.receipt.num_reused_tokens
            assert cache.receipt.num_reused_tokens + cache.receipt.num_computed_tokens == prompt.shape[1]
    assert num_reused > 300
    assert num_moved > 5


def test_sequence_that_outgrows_its_room_grows_in_place_or_moves(model: Any) -> None:
    prompt, num_new = tokens(20), 30
    with PromptCache(model, max_bytes=128 * BYTES_PER_TOKEN) as prompts:
        for in_the_way in (False, True):
            cache = prompts.attach(prompt, num_new_tokens=1)
            first = cache.room.first_slot
            other = prompts.attach(tokens(30, 1), num_new_tokens=1) if in_the_way else None
            with cache:
                found = greedy(model, prompt, num_new=num_new, cache=cache)
                assert (cache.room.first_slot != first) == in_the_way
            assert_same_answer(model, found, greedy(model, prompt, num_new=num_new))
            assert cache.receipt.num_generated_tokens == num_new
            if other is not None:
                other.close()
            prompts.check()
            prompts.clear()


def test_sequence_that_cannot_grow_is_refused_and_keeps_what_it_has(model: Any) -> None:
    prompt = tokens(20)
    with PromptCache(model, max_bytes=64 * BYTES_PER_TOKEN) as prompts:
        cache = prompts.attach(prompt, num_new_tokens=1)
        with prompts.attach(tokens(30, 1), num_new_tokens=1), torch.no_grad():
            model(prompt, cache=cache)
            with pytest.raises(Overloaded, match="num_new_tokens"):
                model(tokens(20, 2), cache=cache)
        cache.close()
        assert attached(prompts, model, prompt, num_new=1).num_computed_tokens == 1


def test_bytes_are_a_hard_cap_and_too_long_a_prompt_is_refused(model: Any) -> None:
    with PromptCache(model, max_bytes=64 * BYTES_PER_TOKEN + 100) as prompts:
        assert prompts.size_bytes == 64 * BYTES_PER_TOKEN
        with pytest.raises(PromptTooLong, match="max_bytes"):
            prompts.attach(tokens(60), num_new_tokens=5)
        with prompts.attach(tokens(30), num_new_tokens=10), pytest.raises(Overloaded, match="while others"):
            prompts.attach(tokens(30), num_new_tokens=10)
        assert torch.equal(prompts.generate(tokens(60), max_new_tokens=9, do_sample=False), greedy_of(model, 60, 9))
        assert prompts.counts().leased == 0


def greedy_of(model: Any, num_tokens: int, num_new: int) -> Tensor:
    answer: Tensor = type(model).generate(model, tokens(num_tokens), max_new_tokens=num_new, do_sample=False)
    return answer


def test_prefix_is_given_up_where_no_run_beside_it_is_long_enough(model: Any) -> None:
    # [ another prompt, evictable | the prefix | attached meanwhile ]: 30 slots in one run need the prefix's own.
    prefix, prompt = tokens(20, 2), joined(tokens(20, 2), tokens(5, 9))
    with PromptCache(model, max_bytes=64 * BYTES_PER_TOKEN) as prompts:
        for earlier in (tokens(20, 1), prefix):
            with prompts.attach(earlier, num_new_tokens=1) as cache:
                greedy(model, earlier, num_new=1, cache=cache)
        with prompts.attach(tokens(16, 3), num_new_tokens=5), prompts.attach(prompt, num_new_tokens=5) as cache:
            prompts.check()
            found = greedy(model, prompt, num_new=5, cache=cache)
        assert_same_answer(model, found, greedy(model, prompt, num_new=5))
        assert (cache.receipt.num_reused_tokens, cache.receipt.num_written_tokens) == (0, 29)
        prompts.check()


def test_keys_past_the_context_are_not_kept() -> None:
    model = random_model("llama", max_context=48).model
    with PromptCache(model, max_bytes=MIB) as prompts:
        receipt = attached(prompts, model, tokens(44), num_new=10)
        assert receipt.num_written_tokens == 48
        with pytest.raises(PromptTooLong, match="up to 48"):
            prompts.attach(tokens(49))


def test_context_of_long_rope_is_the_length_below_which_keys_stay_the_same() -> None:
    factors = [1.0] * 8
    rope = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "rope_theta": 1e4}
    config = Phi3Config(
        hidden_size=64,
        num_attention_heads=4,
        pad_token_id=0,
        max_position_embeddings=512,
        original_max_position_embeddings=128,
        rope_parameters={**rope, "original_max_position_embeddings": 128},
    )
    assert _max_context(config) == 128


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}])
def test_several_sequences_are_refused_and_nothing_is_kept(
    prompts: PromptCache, model: Any, options: dict[str, Any]
) -> None:
    prompt = tokens(20)
    with pytest.raises(RequestError, match="one sequence"), prompts.attach(prompt) as cache:
        model.generate(prompt, max_new_tokens=2, cache=cache, **options)
    assert prompts.counts().evictable == 0


def test_batch_is_refused_with_what_to_do(prompts: PromptCache, model: Any) -> None:
    batch = torch.cat([tokens(20, 1), tokens(20, 2)])
    with pytest.raises(RequestError, match="row by row"):
        prompts.attach(batch)
    with pytest.raises(RequestError, match="2 rows"), prompts.attach(batch[:1]) as cache:
        greedy(model, batch, cache=cache)
    with pytest.raises(RequestError, match="token ids"):
        prompts.attach("text")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="shape"):
        prompts.attach(batch[:, :0])


def test_padding_is_refused(prompts: PromptCache, model: Any) -> None:
    prompt = joined(torch.zeros((1, 4), dtype=torch.int64), tokens(16))
    mask = torch.ones_like(prompt)
    mask[0, :4] = 0
    with pytest.raises(RequestError, match="without padding"), prompts.attach(prompt) as cache:
        greedy(model, prompt, attention_mask=mask, cache=cache)


def test_other_inputs_that_keys_may_depend_on_are_refused(prompts: PromptCache, model: Any) -> None:
    prompt = tokens(10)
    embeddings = model.get_input_embeddings()(prompt)
    with torch.no_grad(), prompts.attach(prompt) as cache:
        with pytest.raises(RequestError, match="inputs_embeds"):
            model(inputs_embeds=embeddings, cache=cache)
        with pytest.raises(RequestError, match="positions 5 to 14"):
            model(prompt, position_ids=torch.arange(5, 15)[None], cache=cache)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2},
        {"num_return_sequences": 2},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"attention_mask": torch.tensor([[0] * 5 + [1] * 15])},
        {"pad_token_id": int(tokens(20)[0, 3])},
        {"position_ids": torch.arange(20)[None]},
    ],
)
def test_generate_runs_plain_what_it_cannot_reuse(prompts: PromptCache, model: Any, options: dict[str, Any]) -> None:
    defaults = {"max_new_tokens": 4, "do_sample": "num_return_sequences" in options, "pad_token_id": 0}
    torch.manual_seed(0)
    expected = type(model).generate(model, tokens(20), **{**defaults, **options})
    torch.manual_seed(0)
    assert torch.equal(prompts.generate(tokens(20), **{**defaults, **options}), expected)
    assert prompts.counts().evictable == 0


def test_generate_takes_batches_and_keeps_single_rows(prompts: PromptCache, model: Any) -> None:
    batch = torch.cat([tokens(20, 1), tokens(20, 2)])
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    assert torch.equal(prompts.generate(batch, **options), type(model).generate(model, batch, **options))
    assert prompts.counts().evictable == 0
    single = {"input_ids": batch[:1], "attention_mask": torch.ones_like(batch[:1])}
    for _ in range(2):
        assert torch.equal(prompts.generate(**single, **options), greedy(model, batch[:1], num_new=4))
    assert prompts.counts().evictable == 23


def test_sampling_draws_the_same_tokens(prompts: PromptCache, model: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "top_k": 20, "pad_token_id": 0}
    for _ in range(2):
        torch.manual_seed(5)
        expected = type(model).generate(model, tokens(20), **options)
        torch.manual_seed(5)
        assert torch.equal(prompts.generate(tokens(20), **options), expected)


def test_pipeline_reuses_through_an_exchanged_generate() -> None:
    loaded = random_model("llama")
    with PromptCache(loaded.model, max_bytes=MIB) as prompts:
        ask = pipeline("text-generation", model=loaded.model, tokenizer=loaded.tokenizer)
        options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}
        plain = ask("Once upon a time", **options)
        loaded.model.generate = prompts.generate
        assert [ask("Once upon a time", **options) for _ in range(2)] == [plain, plain]
        assert prompts.counts().evictable > 10


def test_assisted_generation_takes_its_drafts_back(prompts: PromptCache, model: Any) -> None:
    prompt = joined(tokens(12), tokens(12))
    attached(prompts, model, prompt)
    for options in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": random_model("llama", seed=1).model}):
        receipt = attached(prompts, model, joined(prompt, tokens(5)), **options)
        assert receipt.num_reused_tokens >= 24
    assert attached(prompts, model, joined(prompt, tokens(5))).num_computed_tokens == 1


def test_crop_into_the_shared_prefix_leaves_the_prefix_as_it_is(prompts: PromptCache, model: Any) -> None:
    prompt = tokens(20)
    with torch.no_grad(), prompts.attach(prompt) as cache:
        model(prompt, cache=cache)
    with torch.no_grad(), prompts.attach(joined(prompt, tokens(3))) as cache:
        assert cache.room.num_shared == 20
        before = [layer.clone() for layer in cache.store.pool.keys]
        shared = cache.room.lease.extents[0]
        cache.crop(-10)
        assert cache.get_seq_length() == 10
        cache.crop(8)
        assert cache.get_seq_length() == 8
        cache.crop(0)
        model(prompt[:, 8:], cache=cache)
        cache.reset()
        model(prompt, cache=cache)
        after = cache.store.pool.keys
        assert all(
            torch.equal(old[:, shared.start : shared.start + 20], new[:, shared.start : shared.start + 20])
            for old, new in zip(before, after, strict=True)
        )
    assert attached(prompts, model, prompt).num_computed_tokens == 1


def test_exception_in_the_block_keeps_nothing_and_gives_the_room_back(prompts: PromptCache, model: Any) -> None:
    cache = prompts.attach(tokens(20))
    with pytest.raises(IndexError), cache:
        greedy(model, tokens(20), cache=cache)[0, 1000]
    assert cache.receipt.num_written_tokens == 0
    counts = prompts.counts()
    assert (counts.leased, counts.evictable) == (0, 0)


def compute_half_then_fail(model: Any, prompt: Any, cache: Any) -> None:
    """Run the first ten tokens, and the rest up to a failure in the second layer."""

    def fail(*ignored: Any) -> None:
        raise KeyError("the second layer fails")

    model(prompt[:, :10], cache=cache)
    handle = model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(KeyError):
        model(prompt[:, 10:], cache=cache)
    handle.remove()


def test_pass_that_failed_half_way_is_computed_again(prompts: PromptCache, model: Any) -> None:
    prompt = tokens(20)
    with torch.no_grad(), prompts.attach(prompt) as cache:
        compute_half_then_fail(model, prompt, cache)
        found = greedy(model, prompt, cache=cache)
    assert_same_answer(model, found, greedy(model, prompt))
    assert attached(prompts, model, prompt).num_computed_tokens == 1


def test_half_computed_pass_is_not_kept(prompts: PromptCache, model: Any) -> None:
    prompt = tokens(20)
    with torch.no_grad(), prompts.attach(prompt) as cache:
        compute_half_then_fail(model, prompt, cache)
    assert cache.receipt.num_written_tokens == 10


def test_use_after_the_block_is_an_error(prompts: PromptCache, model: Any) -> None:
    with prompts.attach(tokens(20)) as cache:
        greedy(model, tokens(20), cache=cache)
    for use in (lambda: greedy(model, tokens(20), cache=cache), lambda: cache.crop(-1), cache.reset):
        with pytest.raises(AnaphoraError, match="given back"):
            use()
    cache.close()
    prompts.close()
    with pytest.raises(RequestError, match="closed"):
        prompts.attach(tokens(20))


def test_what_one_sequence_cannot_do_is_refused(prompts: PromptCache, model: Any) -> None:
    with prompts.attach(tokens(20)) as cache:
        for use in (
            lambda: cache.reorder_cache(torch.zeros(1)),
            lambda: cache.batch_repeat_interleave(2),
            lambda: cache.batch_select_indices(torch.zeros(1)),
            lambda: copy.deepcopy(cache),
        ):
            with pytest.raises(RequestError, match=r"one sequence|copied"):
                use()


def test_another_prompt_than_the_attached_one_is_an_error(prompts: PromptCache, model: Any) -> None:
    attached(prompts, model, tokens(20))
    with pytest.raises(RequestError, match="same input_ids"), prompts.attach(joined(tokens(20), tokens(5))) as cache:
        greedy(model, joined(tokens(20), tokens(5, 1)), cache=cache)
    with pytest.raises(RequestError, match="no tokens"), prompts.attach(joined(tokens(20), tokens(5))) as cache:
        greedy(model, tokens(6, 1), cache=cache)


def test_whole_prompt_that_differs_within_the_cached_prefix_is_an_error(prompts: PromptCache, model: Any) -> None:
    prompt, other = tokens(20), tokens(20)
    other[0, 3] += 1
    attached(prompts, model, prompt)
    with torch.no_grad(), prompts.attach(prompt) as cache:
        positions = torch.arange(20)[None]
        with pytest.raises(RequestError, match="not those that this cache holds"):
            model(other, position_ids=positions, cache=cache, logits_to_keep=1)
        found = model(prompt, position_ids=positions, cache=cache, logits_to_keep=1).logits
        assert torch.allclose(found, model(prompt).logits[:, -1:], atol=1e-4)


def test_transposed_weights_are_watched_too() -> None:
    model = random_model("llama").model
    weight = model.model.layers[0].self_attn.o_proj.weight
    weight.data = weight.data.t().contiguous().t()
    with PromptCache(model, max_bytes=MIB) as prompts:
        attached(prompts, model, tokens(20))
        weight.data.mul_(1.5)
        assert attached(prompts, model, tokens(20)).num_reused_tokens == 0


def test_answer_up_to_max_length_is_reserved_for(prompts: PromptCache, model: Any) -> None:
    for _ in range(2):
        found = prompts.generate(tokens(20), max_length=40, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert torch.equal(found, greedy(model, tokens(20), num_new=20))
    assert prompts.counts().evictable == 39


def test_another_model_or_a_part_of_one_is_an_error(prompts: PromptCache, model: Any) -> None:
    other = random_model("llama", seed=1).model
    for wrong in (other, model.model):
        with torch.no_grad(), pytest.raises(RequestError, match="made for"), prompts.attach(tokens(20)) as cache:
            wrong(tokens(20), cache=cache)


def test_layer_that_hands_in_nothing_is_an_error(prompts: PromptCache) -> None:
    with prompts.attach(tokens(20)) as cache:
        cache.begin({"input_ids": tokens(20)})
        with pytest.raises(EngineFailure, match=r"Layers \[0, 1\]"):
            cache.end()


def test_keys_of_another_shape_type_or_with_gradients_are_an_error(prompts: PromptCache) -> None:
    good = torch.zeros((1, 2, 20, 16))
    with prompts.attach(tokens(20)) as cache:
        cache.begin({"input_ids": tokens(20)})
        with pytest.raises(EngineFailure, match="handed in"):
            cache.update(good[:, :, :5], good, 0)
        with pytest.raises(RequestError, match="autocast"):
            cache.update(good.half(), good.half(), 0)
        with pytest.raises(RequestError, match="no_grad"):
            cache.update(good.requires_grad_(), good, 0)


def change_in_place(model: Any) -> None:
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)


def change_behind_the_back(model: Any) -> None:
    model.model.layers[0].mlp.up_proj.weight.data.mul_(1.5)


def change_by_optimizer(model: Any) -> None:
    model.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tokens(8), labels=tokens(8)).loss.backward()
    optimizer.step()
    model.requires_grad_(False)


def load_other_weights(model: Any) -> None:
    model.load_state_dict(random_model("llama", seed=9).model.state_dict())


def assign_other_weights(model: Any) -> None:
    model.load_state_dict(random_model("llama", seed=9).model.state_dict(), assign=True)


def exchange_a_layer(model: Any) -> None:
    model.model.layers[0] = random_model("llama", seed=9).model.model.layers[0]


def switch_an_adapter(model: Any) -> None:
    model.model.layers[0].mlp.up_proj._active_adapter = ["other"]


def edit_the_settings(model: Any) -> None:
    model.config.rms_norm_eps = 1e-3


CHANGES = [
    change_in_place,
    change_behind_the_back,
    change_by_optimizer,
    load_other_weights,
    assign_other_weights,
    exchange_a_layer,
    switch_an_adapter,
    edit_the_settings,
]


@pytest.mark.parametrize("change", CHANGES)
def test_keys_of_changed_weights_are_never_used(change: Any) -> None:
    model = random_model("llama").model
    prompt = tokens(20)
    with PromptCache(model, max_bytes=MIB) as prompts:
        attached(prompts, model, prompt)
        assert attached(prompts, model, prompt).num_reused_tokens == 19
        change(model)
        assert attached(prompts, model, prompt).num_reused_tokens == 0
        assert attached(prompts, model, prompt).num_reused_tokens == 19
        assert prompts.counts().evictable == 27


def test_weights_changed_within_the_block_keep_nothing() -> None:
    model = random_model("llama").model
    with PromptCache(model, max_bytes=MIB) as prompts:
        with prompts.attach(tokens(20)) as cache:
            greedy(model, tokens(20), cache=cache)
            change_in_place(model)
        assert cache.receipt.num_written_tokens == 0
        assert prompts.counts().evictable == 0


def test_training_mode_is_refused_and_generate_runs_plain() -> None:
    model = random_model("llama").model
    with PromptCache(model, max_bytes=MIB) as prompts:
        model.train()
        with pytest.raises(RequestError, match="eval"):
            prompts.attach(tokens(20))
        prompts.generate(tokens(20), max_new_tokens=2, do_sample=False)
        assert prompts.counts().evictable == 0
    with pytest.raises(SettingsError, match="eval"):
        PromptCache(model)


def test_inference_mode_is_fine_for_running_but_not_for_loading(model: Any) -> None:
    with torch.inference_mode():
        prompts = PromptCache(model, max_bytes=MIB)
        attached(prompts, model, tokens(20))
    assert attached(prompts, model, tokens(20)).num_computed_tokens == 1
    prompts.close()
    with torch.inference_mode():
        loaded_inside = random_model("llama").model
    with pytest.raises(SettingsError, match="outside"):
        PromptCache(loaded_inside)


def test_threads_share_one_cache(prompts: PromptCache, model: Any) -> None:
    system = tokens(60, 7)
    asked = [joined(system, tokens(5, seed)) for seed in range(8)]

    def answer(prompt: Tensor) -> tuple[Tensor, int]:
        with prompts.attach(prompt, num_new_tokens=8) as cache:
            return greedy(model, prompt, cache=cache), cache.room.num_reused

    answer(system)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(answer, asked))
    for prompt, (found, num_reused) in zip(asked, answers, strict=True):
        assert_same_answer(model, found, greedy(model, prompt))
        assert num_reused >= 60


def test_dropped_cache_gives_its_room_back(prompts: PromptCache, model: Any) -> None:
    cache = prompts.attach(tokens(20))
    assert prompts.counts().leased > 0
    del cache
    gc.collect()
    assert prompts.counts().leased == 0


def test_hooks_go_with_the_prompt_cache() -> None:
    model = random_model("llama").model
    prompts = PromptCache(model, max_bytes=MIB)
    attached(prompts, model, tokens(20))
    assert model._forward_pre_hooks
    del prompts
    gc.collect()
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_two_prompt_caches_over_one_model_do_not_mix(prompts: PromptCache, model: Any) -> None:
    with PromptCache(model, max_bytes=MIB) as other:
        attached(prompts, model, tokens(20))
        assert attached(other, model, tokens(20)).num_reused_tokens == 0
        assert attached(prompts, model, tokens(20)).num_reused_tokens == 19


def test_clear_forgets_what_was_cached(prompts: PromptCache, model: Any) -> None:
    attached(prompts, model, tokens(20))
    assert prompts.clear() == 27
    assert attached(prompts, model, tokens(20)).num_reused_tokens == 0


@pytest.mark.parametrize("family", UNCACHEABLE_FAMILIES)
def test_model_that_cannot_be_cached_is_refused_with_the_reason(family: str) -> None:
    loaded = random_model(family)
    with pytest.raises(SettingsError) as raised:
        PromptCache(loaded.model)
    assert str(raised.value) == f"{loaded.spec.not_cacheable_because}."


def test_model_whose_scores_change_with_a_cache_is_refused() -> None:
    model = random_model("llama").model

    def forget_the_past(module: Any, args: Any, named: dict[str, Any]) -> Any:
        positions = named["position_ids"] * 2 if named["position_ids"][0, 0] else named["position_ids"]
        return args, {**named, "position_ids": positions, "position_embeddings": module_rope(positions)}

    def module_rope(positions: Tensor) -> Any:
        return model.model.rotary_emb(torch.zeros(1, 1, 64), positions)

    for layer in model.model.layers:
        layer.register_forward_pre_hook(forget_the_past, with_kwargs=True)
    with pytest.raises(SettingsError, match="differ from a full pass"):
        PromptCache(model)
    gc.collect()
    assert not model._forward_hooks


def test_too_few_bytes_and_models_of_an_engine_are_refused(model: Any) -> None:
    with pytest.raises(SettingsError, match="the least is 48 tokens"):
        PromptCache(model, max_bytes=1000)
    loaded = random_model("llama")
    settings = EngineSettings(kv_pool_bytes=MIB, kernels="torch")  # native kernels leave the model as it is
    with Engine(loaded, settings), pytest.raises(SettingsError, match="belongs to an Engine"):
        PromptCache(loaded.model)
    with torch.device("meta"):
        nowhere = type(model)(model.config).eval()
    with pytest.raises(SettingsError, match="one device"):
        PromptCache(nowhere)


@pytest.mark.skipif(
    not is_fetched(CATALOG[DEFAULT_MODEL], cache_dir=CACHE_DIR), reason="the default model is not in the cache folder"
)
def test_default_model_answers_as_without_the_cache() -> None:
    loaded = load_model(DEFAULT_MODEL, cache_dir=CACHE_DIR, device=torch.device("cpu"), progress=False)
    system = "You answer questions about a camera store. " + "Returns are accepted within 30 days. " * 10
    first, second = (
        loaded.tokenizer(system + question, return_tensors="pt").input_ids
        for question in ("Can I return a lens?", "Do you ship abroad?")
    )
    with anaphora.PromptCache(loaded.model, max_bytes=64 * MIB) as prompts:
        assert attached(prompts, loaded.model, first, num_new=12).num_reused_tokens == 0
        hit = attached(prompts, loaded.model, second, num_new=12)
        assert hit.num_computed_tokens < 12
        assert attached(prompts, loaded.model, first, num_new=12).num_computed_tokens == 1


def test_bench_of_this_door_runs_and_answers_alike(model: Any) -> None:
    numbers = measure(model, num_prefix=100, num_question=5, num_new=4, num_repeats=1)
    assert numbers["same_tokens"] == 1.0
    assert numbers["cold_to_hit"] == numbers["cold_ms"] / numbers["hit_ms"]
    assert numbers["decode_ratio"] > 0
