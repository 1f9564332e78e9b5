"""What goes wrong for one request costs nobody else: failing passes, scores that are no numbers, aborts, limits.

Method: mostly steps made by hand (`engine_world.ByHand`), so that it is known who shares a step; a model is broken for
one token id, in the middle of its layers, or by making that token's state not a number.
"""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from engine_world import (
    ByHand,
    check_is_idle,
    check_receipt,
    cold_copy,
    random_tokens,
    request_for,
    small_engine,
)

from anaphora.core.namespace import namespace_of
from anaphora.engine.engine import Engine
from anaphora.engine.models.spec import LoadedModel
from anaphora.engine.plain_runner import PlainRunner
from anaphora.engine.request import DEFAULT_TENANT, Sampling
from anaphora.engine.settings import EngineSettings
from anaphora.engine.stream import Stream
from anaphora.errors import (
    EngineFailure,
    EngineStopped,
    Overloaded,
    PromptTooLong,
    RequestError,
    RequestTimeout,
    SettingsError,
)
from anaphora.testing.random_models import random_model

BAD = 383
FAMILIES = ["llama", "gemma3", "gpt2"]
FIXED = Sampling(temperature=0.0, max_tokens=8, ignore_end=True)
SAYS_BAD = Sampling(temperature=0.0, max_tokens=8, ignore_end=True, logit_bias={BAD: 1e9})


class Failing(Exception):
    """The model's own failure."""


def broken(family: str, how: str) -> LoadedModel:
    """Load a model that fails on the token BAD: "raise" in its last layer, or "nan" from its first on."""
    loaded = random_model(family)
    last = [
        module for name, module in loaded.model.named_modules() if name.endswith("layers.1") or name.endswith("h.1")
    ]

    def on_embedding(module: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        is_bad = args[0] == BAD
        module.has_bad = bool(is_bad.any())
        return output.masked_fill(is_bad[..., None], torch.nan) if how == "nan" else output

    def on_layer(module: Any, args: Any) -> None:
        if embedding.has_bad and how == "raise":
            raise Failing("token BAD")

    embedding = loaded.model.get_input_embeddings()
    embedding.has_bad = False
    embedding.register_forward_hook(on_embedding)
    (layer,) = last
    layer.register_forward_pre_hook(on_layer)
    return loaded


def num_cached(hand: ByHand, tokens: np.ndarray) -> int:
    namespace = namespace_of(model_digest=hand.loaded.spec.digest, tenant=DEFAULT_TENANT)
    return hand.cache.peek(namespace, tokens).num_tokens


def fails(stream: Stream) -> None:
    with pytest.raises(EngineFailure, match="failed on this request"):
        stream.result()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("how", ["raise", "nan"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_step_tokens", [8, 64, 512])
def test_failing_prompt_fails_alone_and_leaves_nothing_poisoned(
    family: str, how: str, max_step_tokens: int, rng: np.random.Generator
) -> None:
    cold, hand = cold_copy(family), ByHand(broken(family, how), max_step_tokens=max_step_tokens)
    prefix = random_tokens(rng, 30)
    bad = np.concatenate([prefix, [BAD], random_tokens(rng, 20)]).astype(np.int32)
    prompts = [np.concatenate([prefix[:n], random_tokens(rng, 12)]) for n in (0, 10, 30)]
    streams = [hand.add(prompts[0], FIXED), hand.add(bad, FIXED), *(hand.add(p, FIXED) for p in prompts[1:])]
    hand.run()
    fails(streams.pop(1))
    for prompt, stream in zip(prompts, streams, strict=True):
        cold.check(prompt, stream.result(), max_tokens=8)
    assert num_cached(hand, bad) <= 30
    assert hand.stepper.stats.num_failed == 1
    assert hand.stepper.stats.num_finished == 3
    hand.check_is_idle()
    late = np.concatenate([prefix, random_tokens(rng, 5)])
    cold.check(late, hand.answer(late, FIXED), max_tokens=8)


@pytest.mark.parametrize("how", ["raise", "nan"])
@pytest.mark.parametrize("family", FAMILIES)
def test_failing_reply_fails_alone_and_its_prompt_stays_good(family: str, how: str, rng: np.random.Generator) -> None:
    cold, hand = cold_copy(family), ByHand(broken(family, how))
    prompts = [random_tokens(rng, 20) for _ in range(3)]
    good, bad, last = (hand.add(p, s) for p, s in zip(prompts, (FIXED, SAYS_BAD, FIXED), strict=True))
    hand.run()
    fails(bad)
    for prompt, stream in ((prompts[0], good), (prompts[2], last)):
        cold.check(prompt, stream.result(), max_tokens=8)
    assert num_cached(hand, np.append(prompts[1], BAD).astype(np.int32)) == 20
    again = hand.answer(prompts[1], FIXED)
    assert again.receipt.num_computed_tokens == 1
    cold.check(prompts[1], again, max_tokens=8)
    hand.check_is_idle()


@pytest.mark.parametrize("family", ["mamba", "bloom"])
def test_failing_request_leaves_others_states_as_they_were(family: str, rng: np.random.Generator) -> None:
    """A recurrent state can't take a token back: sequences that were done in the failed step must not run twice."""
    loaded = random_model(family)
    cold = cold_copy(family)
    embedding = loaded.model.get_input_embeddings()

    def on_embedding(module: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if bool((args[0] == BAD).any()):
            raise Failing("token BAD")

    embedding.register_forward_hook(on_embedding)
    hand = ByHand(loaded, wrap=lambda runner: PlainRunner(loaded), min_first_chunk=512, max_step_tokens=600)
    prompts = [random_tokens(rng, 20) for _ in range(3)]
    streams = [hand.add(prompts[0], FIXED), hand.add(prompts[1], SAYS_BAD), hand.add(prompts[2], FIXED)]
    hand.run()
    fails(streams[1])
    for index in (0, 2):
        cold.check_answer(prompts[index], streams[index].result().completions[0].token_ids)
    assert not hand.stepper._runner._states  # type: ignore[attr-defined]
    hand.check_is_idle()


def test_failing_answer_fails_alone(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turning a token into text fails after the step is noted: others of the step still get their token, once."""
    cold, hand = cold_copy("llama"), ByHand("llama")
    look_up = hand.loaded.tokenizer.convert_ids_to_tokens

    def failing(token_id: int) -> str:
        if token_id == BAD - 3:
            raise Failing("no text")
        return str(look_up(token_id))

    monkeypatch.setattr(hand.loaded.tokenizer, "convert_ids_to_tokens", failing)
    prompts = [random_tokens(rng, 20) for _ in range(3)]
    says_it = Sampling(temperature=0.0, max_tokens=8, logit_bias={BAD - 3: 1e9})
    streams = [hand.add(p, s) for p, s in zip(prompts, (FIXED, says_it, FIXED), strict=True)]
    hand.run()
    fails(streams[1])
    for index in (0, 2):
        cold.check(prompts[index], streams[index].result(), max_tokens=8)
    hand.check_is_idle()


def test_fault_between_steps_costs_the_requests_in_flight_and_not_the_engine(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_engine("llama") as engine:
        scheduler = engine._stepper.scheduler
        schedule = scheduler.schedule

        def failing() -> Any:
            monkeypatch.setattr(scheduler, "schedule", schedule)
            raise AssertionError("a fault of our own")

        monkeypatch.setattr(scheduler, "schedule", failing)
        with pytest.raises(EngineFailure):
            engine.generate(random_tokens(rng, 9).tolist(), FIXED)
        assert engine.generate(random_tokens(rng, 9).tolist(), FIXED).receipt.num_generated_tokens == 8
        check_is_idle(engine)


def test_failed_integrity_check_empties_the_cache_and_serving_goes_on(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = random_tokens(rng, 40).tolist()
    checked = threading.Event()
    with small_engine("llama") as engine:
        cache = engine._stepper.cache

        def failing() -> None:
            monkeypatch.undo()
            checked.set()
            raise AssertionError("a count that is wrong")

        monkeypatch.setattr(cache, "check", failing)
        first = engine.generate(prompt, FIXED)
        assert checked.wait(timeout=60), "an idle engine checks its cache"
        second = engine.generate(prompt, FIXED)
        assert second.completions[0].token_ids == first.completions[0].token_ids
        assert second.receipt.num_reused_tokens == 0
        assert engine.generate(prompt, FIXED).receipt.num_reused_tokens == len(prompt) - 1
        assert engine.stats().num_failed_checks == 1
    assert "failed its integrity check" in caplog.text


def test_abort_while_waiting_in_prefill_and_in_decode(rng: np.random.Generator) -> None:
    cold, hand = cold_copy("llama"), ByHand("llama", max_step_tokens=8, max_sequences=2)
    prompts = [random_tokens(rng, n) for n in (4, 40, 10)]
    decoding, prefilling, waiting = (hand.add(prompt, FIXED) for prompt in prompts)
    hand.step()
    hand.step()
    for stream, reused in ((waiting, 0), (prefilling, 0), (decoding, 0)):
        stream.abort()
        hand.cache.check()
        result = stream.result()
        assert result.completions[0].finish_reason == "abort"
        assert result.receipt.num_reused_tokens == reused
        stream.abort()
    assert decoding.receipt is not None
    assert decoding.receipt.num_generated_tokens == 2
    assert hand.stepper.stats.num_aborted == 3
    assert hand.cache.counts().leased == 0
    after = hand.answer(prompts[1], FIXED)
    assert after.receipt.num_reused_tokens > 0  # what the leader had done before it left
    cold.check(prompts[1], after, max_tokens=8)
    hand.check_is_idle()


def test_leader_that_leaves_hands_its_chunks_over_to_a_follower(rng: np.random.Generator) -> None:
    cold, hand = cold_copy("qwen3"), ByHand("qwen3", max_step_tokens=8)
    prompt = random_tokens(rng, 60)
    leader = hand.add(prompt, FIXED)
    for _ in range(3):
        hand.step()
    follower = hand.add(prompt, FIXED)
    hand.step()
    leader.abort()
    hand.run()
    result = follower.result()
    cold.check(prompt, result, max_tokens=8)
    assert leader.result().completions[0].finish_reason == "abort"
    hand.check_is_idle()


def test_abort_of_several_answers_ends_the_running_and_the_queued(rng: np.random.Generator) -> None:
    hand = ByHand("llama", max_sequences=3)
    stream = hand.add(random_tokens(rng, 12), Sampling(seed=1, max_tokens=30, num_sequences=5, ignore_end=True))
    for _ in range(4):
        hand.step()
    stream.abort()
    result = stream.result()
    assert [one.finish_reason for one in result.completions] == ["abort"] * 5
    assert [len(one.token_ids) for one in result.completions] == [4, 4, 4, 0, 0]
    assert not hand.step()
    hand.check_is_idle()


def test_receipt_is_there_before_any_delta_even_of_an_abort(rng: np.random.Generator) -> None:
    hand = ByHand("llama")
    stream = hand.add(random_tokens(rng, 5), FIXED)
    seen: list[bool] = []
    put = stream.put
    stream.put = lambda item: (seen.append(stream.receipt is not None), put(item))[1]  # type: ignore[method-assign]
    stream.abort()
    assert seen == [True]
    check_receipt(stream.result())


def test_time_limit_ends_waiting_and_running_requests(rng: np.random.Generator) -> None:
    with small_engine("llama", max_sequences=1) as engine:
        slow = engine.submit(
            request_for(random_tokens(rng, 5), Sampling(max_tokens=400, ignore_end=True), timeout_s=0.05)
        )
        waiting = engine.submit(request_for(random_tokens(rng, 5), FIXED, timeout_s=0.0))
        patient = engine.submit(request_for(random_tokens(rng, 5), FIXED, timeout_s=600.0))
        for stream in (slow, waiting):
            with pytest.raises(RequestTimeout, match="limit"):
                stream.result()
        assert patient.result().completions[0].finish_reason == "length"
        check_is_idle(engine)
        assert engine.stats().num_failed == 2


class Gate:
    """Holds a model's forward pass until it is opened."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.opened.set()
        loaded.model.register_forward_pre_hook(self._wait)

    def _wait(self, module: Any, args: Any) -> None:
        self.entered.set()
        assert self.opened.wait(60)

    def shut(self) -> None:
        self.entered.clear()
        self.opened.clear()


def test_burst_during_one_step_is_refused_beyond_the_queue(rng: np.random.Generator) -> None:
    loaded = random_model("llama")
    gate = Gate(loaded)
    with small_engine(loaded, max_sequences=1, queue_length=3) as engine:
        gate.shut()
        prompt = random_tokens(rng, 6)
        streams = [engine.submit(request_for(prompt, FIXED))]
        assert gate.entered.wait(60)  # it runs; all others have to wait
        streams += [engine.submit(request_for(prompt, FIXED)) for _ in range(3)]
        for _ in range(2):
            with pytest.raises(Overloaded) as refused:
                engine.submit(request_for(prompt, FIXED))
            assert refused.value.retry_after_s > 0
        gate.opened.set()
        for stream in streams:
            assert stream.result().receipt.num_generated_tokens == 8
        assert engine.stats().num_refused == 2
        assert engine.generate(prompt.tolist(), FIXED).receipt.num_generated_tokens == 8
        check_is_idle(engine)


def test_several_answers_per_request_do_not_stretch_the_queue(rng: np.random.Generator) -> None:
    loaded = random_model("llama")
    gate = Gate(loaded)
    with small_engine(loaded, max_sequences=8, queue_length=2) as engine:
        many = Sampling(seed=0, max_tokens=100, num_sequences=8, ignore_end=True)
        first = engine.submit(request_for(random_tokens(rng, 6), many))
        next(iter(first))
        gate.shut()
        assert gate.entered.wait(60)  # all 8 seats are taken
        waiting = [engine.submit(request_for(random_tokens(rng, 6), FIXED)) for _ in range(2)]
        with pytest.raises(Overloaded):
            engine.submit(request_for(random_tokens(rng, 6), FIXED))
        gate.opened.set()
        for stream in waiting:
            assert stream.result().receipt.num_generated_tokens == 8


def test_aborted_waiting_requests_leave_the_queue(rng: np.random.Generator) -> None:
    with small_engine("llama", max_sequences=1, queue_length=2) as engine:
        for _ in range(10):
            streams = [engine.submit(request_for(random_tokens(rng, 5), FIXED)) for _ in range(2)]
            for stream in streams:
                stream.abort()
                stream.result()
        check_is_idle(engine)
        assert engine._num_joined_queue == engine._stepper.num_left_queue == 20


def test_closing_ends_requests_in_flight_and_refuses_new_ones(rng: np.random.Generator) -> None:
    engine = small_engine("llama", max_sequences=1)
    streams = [
        engine.submit(request_for(random_tokens(rng, 5), Sampling(max_tokens=400, ignore_end=True))) for _ in range(3)
    ]
    next(iter(streams[0]))
    engine.close()
    for stream in streams:
        with pytest.raises(EngineStopped):
            stream.result()
    with pytest.raises(EngineStopped):
        engine.submit(request_for([1, 2], FIXED))
    streams[0].abort()
    engine.close()
    check_is_idle(engine)


def test_racing_submits_aborts_and_a_close_leave_nobody_waiting(rng: np.random.Generator) -> None:
    engine = small_engine("llama", num_slots=256, max_step_tokens=16, queue_length=1000)
    prompts = [random_tokens(rng, int(n)).tolist() for n in rng.integers(1, 60, 30)]
    ended: list[str] = []
    are_many = threading.Event()

    def ask(index: int) -> None:
        for round_number in range(8):
            try:
                stream = engine.submit(request_for(prompts[(index * 5 + round_number) % 30], FIXED))
                if (index + round_number) % 3 == 0:
                    stream.abort()
                ended.append(stream.result().completions[0].finish_reason)
            except EngineStopped:
                ended.append("stopped")
            if len(ended) >= 30:
                are_many.set()

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    assert are_many.wait(60)
    engine.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(ended) == 64
    assert "abort" in ended
    assert "length" in ended
    check_is_idle(engine)


BAD_SAMPLING = [
    ("max_tokens", -1),
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_p", float("nan")),
    ("top_k", -1),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("presence_penalty", float("inf")),
    ("frequency_penalty", float("nan")),
    ("repetition_penalty", 0.0),
    ("num_logprobs", -1),
    ("num_logprobs", 21),
    ("num_prompt_logprobs", 21),
    ("num_sequences", 0),
    ("num_sequences", 129),
    ("seed", 0.5),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {384: 1.0}),
    ("logit_bias", {1: float("nan")}),
    ("max_tokens", 600),
]


@pytest.fixture(scope="module")
def engine() -> Any:
    with small_engine("llama") as running:
        yield running


@pytest.mark.parametrize(("field", "value"), BAD_SAMPLING, ids=str)
def test_senseless_sampling_is_refused_by_name(engine: Engine, field: str, value: object) -> None:
    with pytest.raises(RequestError) as refused:
        engine.generate([1, 2, 3], **{field: value})
    assert refused.value.field == field


@pytest.mark.parametrize("tokens", [[], [-1], [384], [1, 2**31 - 1], [2**40], [-(2**70)]], ids=str)
def test_senseless_prompt_is_refused_by_name(engine: Engine, tokens: list[int]) -> None:
    with pytest.raises(RequestError) as refused:
        engine.generate(tokens, FIXED)
    assert refused.value.field == "prompt"


def test_prompt_is_refused_one_token_beyond_the_context_and_not_before(engine: Engine) -> None:
    limit = engine.spec.max_context
    assert engine.generate([1] * (limit - 1), temperature=0.0).receipt.num_generated_tokens == 1
    assert engine.generate([1] * limit, max_tokens=0).receipt.num_generated_tokens == 0
    for num_tokens, max_tokens in ((limit, None), (limit, 1), (limit + 1, 0), (limit - 1, 2)):
        with pytest.raises(PromptTooLong):
            engine.generate([1] * num_tokens, max_tokens=max_tokens)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_step_tokens": 0},
        {"max_sequences": 0},
        {"queue_length": 0},
        {"max_context": -3},
        {"num_threads": 0},
        {"policy": "newest"},
        {"kv_pool_bytes": 10},
    ],
    ids=str,
)
def test_senseless_settings_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(changes))):
        Engine(random_model("llama"), EngineSettings(**changes))
