"""The engine as its users see it: answers, receipts, several answers to one prompt, ends, tenants, streams, asyncio."""

import asyncio
import gc
import threading
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_world import (
    ByHand,
    Cold,
    check_is_idle,
    check_receipt,
    cold_copy,
    random_tokens,
    request_for,
    small_engine,
)
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

from anaphora.engine.engine import Engine
from anaphora.engine.models.catalog import CATALOG, DEFAULT_MODEL
from anaphora.engine.models.describe import loaded_model
from anaphora.engine.models.fetch import default_cache_dir, is_fetched
from anaphora.engine.models.loading import load_model
from anaphora.engine.request import Sampling, Tenant
from anaphora.engine.settings import EngineSettings
from anaphora.testing.random_models import UNCACHEABLE_FAMILIES, random_model

FIXED = Sampling(temperature=0.0, max_tokens=8, ignore_end=True)
VOCABULARY = Path(__file__).parents[3] / "shared" / "data" / "gpt2-tokenizer"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with small_engine("llama", num_slots=4096) as running:
        yield running


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.mark.skipif(not VOCABULARY.is_dir(), reason="GPT-2's vocabulary is not beside the checkout")
def test_seed_case_computes_8_of_417_and_7_of_416_tokens_with_the_scores_of_a_full_pass() -> None:
    tokenizer = GPT2Tokenizer.from_pretrained(str(VOCABULARY))

    def model() -> GPT2LMHeadModel:
        torch.manual_seed(0)
        config = GPT2Config(n_embd=64, n_layer=2, n_head=4, initializer_range=0.2)
        return GPT2LMHeadModel(config).eval()

    system = "You answer questions about a camera store. " + "Returns are accepted within 30 days with a receipt. " * 40
    questions = {" Question: Can I return a lens?": (8, 417), " Question: Do you ship abroad?": (7, 416)}
    system_tokens = tokenizer(system).input_ids
    assert len(system_tokens) == 409
    loaded = loaded_model(
        model(), tokenizer, name="seed", weights="0" * 64, dtype=torch.float32, device=torch.device("cpu")
    )
    cold = model()
    with small_engine(loaded, num_slots=2048) as engine:
        for question, (num_computed, num_prompt) in questions.items():
            tenant = Tenant(question)  # of its own: the two questions have their first two tokens in common
            engine.generate(system_tokens, max_tokens=0, tenant=tenant)
            tokens = [*system_tokens, *tokenizer(question).input_ids]
            found = engine.generate(tokens, temperature=0.0, max_tokens=1, num_logprobs=20, tenant=tenant)
            assert found.receipt.num_computed_tokens == num_computed
            assert found.receipt.num_prompt_tokens == num_prompt
            check_receipt(found)
            with torch.inference_mode():
                scores = torch.log_softmax(cold(torch.tensor([tokens]), use_cache=False).logits[0, -1], dim=0)
            (entry,) = found.completions[0].logprobs
            best = torch.topk(scores, 20)
            assert [one[0] for one in entry.top] == best.indices.tolist()
            np.testing.assert_allclose([one[3] for one in entry.top], best.values, atol=2e-5)


def test_further_answers_share_the_prompt_and_its_one_computation(rng: np.random.Generator) -> None:
    hand = ByHand("llama")
    prompt = random_tokens(rng, 40)
    sampling = Sampling(seed=3, max_tokens=12, num_sequences=4, ignore_end=True)
    stream = hand.add(prompt, sampling)
    hand.step()
    assert len(hand.stepper.scheduler.running) == 4
    held = [running.lease.extents[0] for running in hand.stepper.scheduler.running if running.lease is not None]
    assert len({extent.start for extent in held}) == 1, "answers hold the prompt in different slots"
    hand.run()
    first = stream.result()
    assert first.receipt.num_computed_tokens == 40
    assert first.receipt.num_generated_tokens == 48
    assert hand.stepper.stats.num_steps == 12
    assert len({completion.token_ids for completion in first.completions}) == 4
    again = hand.answer(prompt, sampling)
    assert again.receipt.num_computed_tokens == 1
    assert again.completions == first.completions
    hand.check_is_idle()


def test_seeded_answers_do_not_depend_on_what_else_runs(engine: Engine, rng: np.random.Generator) -> None:
    prompts = [random_tokens(rng, 12) for _ in range(4)]
    samplings = [Sampling(seed=i, temperature=0.7, top_p=0.9, max_tokens=16, num_sequences=2) for i in range(4)]
    alone = [engine.generate(p.tolist(), s).completions for p, s in zip(prompts, samplings, strict=True)]
    streams = [engine.submit(request_for(p, s)) for p, s in zip(prompts, samplings, strict=True)]
    assert [stream.result().completions for stream in streams] == alone


def test_more_answers_than_seats_and_a_pool_too_small_for_all_at_once(rng: np.random.Generator) -> None:
    cold, hand = cold_copy("llama"), ByHand("llama", num_slots=256, max_sequences=4)
    prompt = random_tokens(rng, 60)
    stream = hand.add(prompt, Sampling(temperature=0.0, max_tokens=60, num_sequences=9, ignore_end=True))
    rival = random_tokens(rng, 50)
    other = hand.add(rival, Sampling(temperature=0.0, max_tokens=60, ignore_end=True))
    hand.run()
    cold.check(prompt, stream.result(), max_tokens=60)
    cold.check(rival, other.result(), max_tokens=60)
    hand.check_is_idle()


def test_no_answer_wanted_computes_the_prompt_and_keeps_it(engine: Engine, rng: np.random.Generator) -> None:
    prompt = random_tokens(rng, 20).tolist()
    found = engine.generate(prompt, max_tokens=0, num_sequences=3)
    assert [(one.text, one.token_ids, one.finish_reason) for one in found.completions] == [("", (), "length")] * 3
    check_receipt(found)
    assert found.receipt.num_written_tokens == 20
    assert found.receipt.time_to_first_token_s == 0.0
    assert engine.generate(prompt, max_tokens=0).receipt.num_computed_tokens == 1


def test_written_tokens_are_counted_even_where_a_sequence_was_preempted(rng: np.random.Generator) -> None:
    hand = ByHand("llama", num_slots=256)
    streams = [hand.add(random_tokens(rng, 40), Sampling(seed=1, max_tokens=60, ignore_end=True)) for _ in range(5)]
    hand.run()
    assert hand.stepper.scheduler.num_preemptions > 0
    for stream in streams:
        receipt = stream.result().receipt
        assert receipt.num_written_tokens >= 40 + 60 - 1  # more where evicted tokens were written again


def test_stop_reasons_say_what_is_so(rng: np.random.Generator) -> None:
    hand = ByHand("llama")
    tokens = random_tokens(rng, 10)
    other = tokens.copy()
    other[9] = 300
    cases = [
        (tokens[:1], 0, "nothing_cached"),  # one token, cold
        (tokens[:1], 0, "whole_prompt"),  # one token, cached: it runs again
        (tokens[:5], 1, "ended"),
        (tokens, 5, "ended"),
        (other, 9, "diverged"),  # all but the last token is cached, and the last is another one
        (tokens[:9], 8, "whole_prompt"),
        (np.append(tokens, 300).astype(np.int32), 10, "ended"),  # all but the last token is cached
    ]
    for prompt, num_reused, reason in cases:
        receipt = hand.answer(prompt, Sampling(max_tokens=0)).receipt
        assert (receipt.num_reused_tokens, receipt.stop_reason) == (num_reused, reason)


def test_answer_ends_at_the_models_end_a_token_of_the_request_or_not_at_all(rng: np.random.Generator) -> None:
    hand = ByHand("llama")
    (end,) = hand.loaded.spec.end_token_ids
    prompt = random_tokens(rng, 10)
    plain = hand.answer(prompt, FIXED).completions[0].token_ids
    ending = hand.answer(prompt, Sampling(temperature=0.0, max_tokens=8, logit_bias={end: 1e9})).completions[0]
    assert (ending.token_ids, ending.text, ending.finish_reason) == ((end,), "", "stop")
    going_on = hand.answer(prompt, Sampling(temperature=0.0, max_tokens=8, logit_bias={end: 1e9}, ignore_end=True))
    assert (going_on.completions[0].token_ids, going_on.completions[0].finish_reason) == ((end,) * 8, "length")
    for ignore_end in (False, True):
        stopped = hand.answer(
            prompt, Sampling(temperature=0.0, max_tokens=8, stop_token_ids=(plain[3],), ignore_end=ignore_end)
        ).completions[0]
        assert stopped.finish_reason == "stop"
        assert stopped.token_ids == plain[: plain.index(plain[3]) + 1]


def test_stop_string_ends_the_text_before_it_and_no_piece_of_it_is_streamed(engine: Engine) -> None:
    prompt = engine.tokenise("tell me ")
    sampling = Sampling(seed=5, max_tokens=60, ignore_end=True, logit_bias=dict.fromkeys(range(128, 256), -50.0))
    whole = engine.generate(prompt, sampling).text
    for stop in (whole[20:24], whole[7:8], whole[30:45]):
        pieces = []
        stream = engine.stream(prompt, sampling, stop=(stop, "never to be met"))
        for delta in stream:
            pieces.append(delta.text)
            assert stop not in "".join(pieces)
            assert whole.startswith("".join(pieces))
        assert "".join(pieces) == whole[: whole.index(stop)]
        assert (delta.finish_reason, delta.stop_string) == ("stop_string", stop)
        assert stream.receipt is not None
        assert 0 < stream.receipt.num_generated_tokens <= 60


def test_tenants_share_nothing(engine: Engine, rng: np.random.Generator) -> None:
    prompt = [320, *random_tokens(rng, 29).tolist()]
    first, second = Tenant("first"), Tenant("second")
    engine.generate(prompt, FIXED, tenant=first)
    other = engine.generate(prompt, FIXED, tenant=second)
    assert (other.receipt.num_reused_tokens, other.receipt.stop_reason) == (0, "nothing_cached")
    assert engine.generate(prompt, FIXED).receipt.num_reused_tokens == 0
    assert engine.generate(prompt, FIXED, tenant=first).receipt.num_computed_tokens == 1


def test_logprobs_of_the_answer_are_those_of_a_cold_model(engine: Engine, rng: np.random.Generator) -> None:
    cold = cold_copy("llama")
    prompt = random_tokens(rng, 15).tolist()
    for _ in range(2):  # cold, then cached
        found = engine.generate(prompt, FIXED, num_logprobs=3).completions[0]
        expected = torch.log_softmax(cold.logits([*prompt, *found.token_ids]), dim=-1)[14:-1]
        for entry, token_id, row in zip(found.logprobs, found.token_ids, expected, strict=True):
            best = torch.topk(row, 3)
            assert entry.token_id == token_id
            assert entry.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
            assert [one[0] for one in entry.top] == best.indices.tolist()
            np.testing.assert_allclose([one[3] for one in entry.top], best.values, atol=1e-4)


@pytest.mark.parametrize("family", UNCACHEABLE_FAMILIES)
def test_models_that_cannot_be_cached_answer_right_and_say_so(family: str, rng: np.random.Generator) -> None:
    cold = cold_copy(family)
    prompts = [random_tokens(rng, int(n)) for n in rng.integers(20, 300, 8)]
    with small_engine(family, num_slots=4096, max_step_tokens=64) as engine:
        assert "Reuse: none" in engine.start_up_lines[1]
        for _ in range(2):
            streams = [engine.submit(request_for(prompt, FIXED)) for prompt in prompts]
            for prompt, stream in zip(prompts, streams, strict=True):
                found = stream.result()
                cold.check(prompt, found, max_tokens=8)
                assert found.receipt.stop_reason == "not_cacheable"
                assert found.receipt.num_reused_tokens == 0
        both = engine.generate(prompts[0].tolist(), FIXED, num_sequences=2).completions
        assert both[0] == both[1]
        check_is_idle(engine)


def test_prompts_may_be_text_messages_lists_or_arrays(engine: Engine) -> None:
    text = "hello there"
    ids = engine.tokenise(text)
    assert ids.dtype == np.int32
    assert engine.tokenise(ids).tolist() == engine.tokenise(ids.tolist()).tolist() == ids.tolist()
    messages = engine.tokenise([{"role": "user", "content": text}])
    assert engine.tokenizer.decode(messages) == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert engine.generate(ids, FIXED).completions == engine.generate(text, FIXED).completions


def test_deltas_add_up_and_only_the_last_of_each_answer_says_why(engine: Engine, rng: np.random.Generator) -> None:
    stream = engine.submit(request_for(random_tokens(rng, 9), Sampling(seed=2, max_tokens=10, num_sequences=3)))
    deltas = []
    for delta in stream:
        assert stream.receipt is not None
        deltas.append(delta)
    for index in range(3):
        own = [delta for delta in deltas if delta.sequence_index == index]
        assert [delta.finish_reason is None for delta in own] == [True] * (len(own) - 1) + [False]
        assert 1 <= len(own) <= 10
    assert list(stream) == []


def test_asyncio_streams_arrive_in_order_and_together(engine: Engine, rng: np.random.Generator) -> None:
    cold = cold_copy("llama")
    prompts = [random_tokens(rng, int(n)).tolist() for n in rng.integers(1, 60, 20)]

    async def one(prompt: list[int]) -> list[int]:
        return [token async for delta in engine.stream(prompt, FIXED) for token in delta.token_ids]

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*(one(prompt) for prompt in prompts))

    for prompt, answer in zip(prompts, asyncio.run(all_of_them()), strict=True):
        assert len(answer) == 8
        cold.check_answer(prompt, answer)


def test_cancelled_task_aborts_its_request(engine: Engine, rng: np.random.Generator) -> None:
    aborted_before = engine.stats().num_aborted

    async def cancel() -> None:
        task = asyncio.create_task(engine.agenerate(random_tokens(rng, 9).tolist(), max_tokens=450, ignore_end=True))
        while not engine.stats().num_running:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    check_is_idle(engine)
    assert engine.stats().num_aborted == aborted_before + 1
    found = asyncio.run(engine.agenerate(random_tokens(rng, 9).tolist(), FIXED))
    check_receipt(found)


def test_reader_whose_event_loop_is_gone_disturbs_nobody(engine: Engine, rng: np.random.Generator) -> None:
    stream = engine.submit(request_for(random_tokens(rng, 9), Sampling(max_tokens=300, ignore_end=True)))

    async def read_one() -> None:
        reader = stream.__aiter__()
        await anext(reader)

    asyncio.run(read_one())
    assert engine.generate(random_tokens(rng, 9).tolist(), FIXED).receipt.num_generated_tokens == 8
    rest = list(stream)
    assert rest[-1].finish_reason == "length"
    check_is_idle(engine)


def test_blocking_readers_in_many_threads_each_get_their_own(engine: Engine, rng: np.random.Generator) -> None:
    cold = cold_copy("llama")
    prompts = [random_tokens(rng, 20).tolist() for _ in range(12)]
    answers: dict[int, tuple[int, ...]] = {}

    def ask(index: int) -> None:
        answers[index] = engine.generate(prompts[index], FIXED).completions[0].token_ids

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, prompt in enumerate(prompts):
        cold.check_answer(prompt, answers[index])


def test_idle_engine_holds_nothing_and_its_counts_add_up(engine: Engine, rng: np.random.Generator) -> None:
    for _ in range(10):
        engine.generate(random_tokens(rng, int(rng.integers(1, 80))).tolist(), FIXED)
    check_is_idle(engine)
    stats = engine.stats()
    assert stats.num_prompt_tokens == stats.num_reused_tokens + stats.num_computed_tokens
    assert stats.num_requests == stats.num_finished + stats.num_aborted + stats.num_failed
    assert stats.num_written_tokens - stats.num_evicted_tokens == stats.num_evictable_slots


def test_closed_and_forgotten_engine_gives_its_pool_back() -> None:
    engine = small_engine("llama")
    engine.generate([1, 2, 3], FIXED)
    pool = weakref.ref(engine._stepper._runner.attention.pool)  # type: ignore[attr-defined]
    assert pool() is not None
    engine.close()
    del engine
    gc.collect()
    assert pool() is None


def test_context_may_be_shorter_than_the_models(rng: np.random.Generator) -> None:
    with small_engine("llama", max_context=32) as engine:
        found = engine.generate(random_tokens(rng, 20).tolist(), temperature=0.0, ignore_end=True)
        assert found.receipt.num_generated_tokens == 12
        assert found.completions[0].finish_reason == "length"


needs_default_model = pytest.mark.skipif(
    not is_fetched(CATALOG[DEFAULT_MODEL], cache_dir=default_cache_dir()),
    reason="the default model is not in the cache folder",
)


@needs_default_model
def test_default_model_answers_every_tail_length_around_a_prefix_like_a_cold_model(rng: np.random.Generator) -> None:
    served, untouched = (
        load_model(DEFAULT_MODEL, cache_dir=default_cache_dir(), device=torch.device("cpu"), progress=False)
        for _ in range(2)
    )
    cold, size = Cold(untouched), served.spec.vocab_size
    prefix = random_tokens(rng, 16, vocab_size=size)
    with Engine(served, EngineSettings(kv_pool_bytes=512 << 20)) as engine:
        engine.generate(prefix.tolist(), temperature=0.0, max_tokens=1)
        for num_tail in range(1, 65):
            tail = random_tokens(rng, num_tail, vocab_size=size)
            tail[0] = num_tail  # so that no two tails open alike
            prompt = np.concatenate([prefix, tail])
            found = engine.generate(prompt.tolist(), temperature=0.0, max_tokens=2, ignore_end=True)
            assert found.receipt.num_computed_tokens == num_tail
            cold.check(prompt, found, max_tokens=2)
        check_is_idle(engine)
    print(f"{DEFAULT_MODEL}: {cold.num_near_ties} near ties in {cold.num_tokens_compared} tokens")


@needs_default_model
def test_default_model_reuses_prompt_and_reply_in_the_next_turn_of_a_chat() -> None:
    settings = EngineSettings(kv_pool_bytes=64 << 20)
    with Engine.load(settings=settings, progress=False) as engine:
        messages = [
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": "Name three primary colours."},
        ]
        prompt = engine.tokenise(messages)
        first = engine.generate(messages, temperature=0.0, max_tokens=40)
        again = engine.generate(messages, temperature=0.0, max_tokens=40)
        assert first.receipt.num_computed_tokens == len(prompt)
        assert again.receipt.num_computed_tokens == 1
        assert again.completions == first.completions
        reply = first.completions[0]
        messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "And two more?"}]
        turn = engine.tokenise(messages)
        known = [*prompt.tolist(), *reply.token_ids[:-1]]
        assert turn[: len(known)].tolist() == known, "the reply's tokens are not those of its text"
        second = engine.generate(messages, temperature=0.0, max_tokens=8)
        assert second.receipt.num_reused_tokens == len(prompt) + len(reply.token_ids) - 1
        check_receipt(second)


def test_random_models_of_one_seed_are_one_model() -> None:
    """The judge of all exactness tests has to have the engine's weights."""
    assert random_model("llama").spec.digest == random_model("llama").spec.digest
