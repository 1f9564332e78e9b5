"""Loads and writes beside running requests: nobody waits for them who need not, and they give way. Method: a tier that
waits for the test stands between the engine and its folder."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from durable_world import GREEDY8, cold_judge, engine_at, until
from engine_world import Cold, random_tokens, request_for
from gated_tier import GatedTier

from anaphora.engine.durable import set_up
from anaphora.engine.durable.rates import Rates
from anaphora.engine.request import Sampling
from anaphora.errors import RequestTimeout
from anaphora.tiers.keys import START
from anaphora.tiers.record import Miss, MissReason, Record

RNG = np.random.default_rng(60)
PROMPT = random_tokens(RNG, 600)
OTHER = random_tokens(RNG, 40)


@pytest.fixture(scope="module")
def cold() -> Cold:
    return cold_judge()


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> list[GatedTier]:
    """The gated tiers of the engines that the test starts, the last one last."""
    made: list[GatedTier] = []
    opened = set_up.open_disk_tier

    def open_gated(folder: Path, *, cap_bytes: int) -> GatedTier:
        made.append(GatedTier(opened(folder, cap_bytes=cap_bytes)))
        return made[-1]

    monkeypatch.setattr(set_up, "open_disk_tier", open_gated)
    return made


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A folder in which an engine has left the prompt."""
    with engine_at(tmp_path) as engine:
        engine.generate(PROMPT, GREEDY8)
    return tmp_path


def test_a_request_that_loads_blocks_no_other(stored: Path, gates: list[GatedTier], cold: Cold):
    with engine_at(stored) as engine:
        gate = gates[-1]
        gate.may_load.clear()
        loading = engine.submit(request_for(PROMPT, GREEDY8))
        assert gate.is_loading.wait(60)
        cold.check(OTHER, engine.generate(OTHER, GREEDY8), max_tokens=8)
        gate.may_load.set()
        answer = loading.result()
        cold.check(PROMPT, answer, max_tokens=8)
        assert answer.receipt.num_loaded_tokens == 599


def test_requests_that_want_the_same_load_it_once(stored: Path, gates: list[GatedTier], cold: Cold):
    longer = np.concatenate([PROMPT, OTHER])
    with engine_at(stored) as engine:
        gate = gates[-1]
        gate.may_load.clear()
        streams = [engine.submit(request_for(tokens, GREEDY8)) for tokens in (PROMPT, PROMPT, longer)]
        until(engine, lambda: engine.stats().num_waiting == 3)
        gate.may_load.set()
        answers = [stream.result() for stream in streams]
        for tokens, answer in zip((PROMPT, PROMPT, longer), answers, strict=True):
            cold.check(tokens, answer, max_tokens=8)
            assert answer.receipt.num_loaded_tokens >= 599
        assert [a.receipt.num_computed_tokens for a in answers[:2]] == [1, 1]
        assert set(gate.loads.values()) == {1}


def test_an_abort_while_loading_frees_everything(stored: Path, gates: list[GatedTier], cold: Cold):
    with engine_at(stored) as engine:
        gate = gates[-1]
        gate.may_load.clear()
        stream = engine.submit(request_for(PROMPT, GREEDY8))
        assert gate.is_loading.wait(60)
        stream.abort()
        until(engine, lambda: engine.stats().num_leased_slots == 0)
        assert engine.stats().num_waiting == 0
        gate.may_load.set()
        cold.check(PROMPT, engine.generate(PROMPT, GREEDY8), max_tokens=8)


def test_one_of_two_that_wait_may_leave(stored: Path, gates: list[GatedTier], cold: Cold):
    with engine_at(stored) as engine:
        gate = gates[-1]
        gate.may_load.clear()
        first, second = (engine.submit(request_for(PROMPT, GREEDY8)) for _ in range(2))
        until(engine, lambda: engine.stats().num_waiting == 2)
        first.abort()
        gate.may_load.set()
        answer = second.result()
        cold.check(PROMPT, answer, max_tokens=8)
        assert answer.receipt.num_loaded_tokens == 599


def test_a_time_limit_holds_while_loading(stored: Path, gates: list[GatedTier]):
    with engine_at(stored) as engine:
        gates[-1].may_load.clear()
        with pytest.raises(RequestTimeout):
            engine.submit(request_for(PROMPT, GREEDY8, timeout_s=0.2)).result()
        gates[-1].may_load.set()


def test_a_load_gives_way_to_a_running_request(stored: Path, gates: list[GatedTier], cold: Cold):
    """The load holds 600 of 700 slots; an answer grows over the rest, and nobody is preempted."""
    with engine_at(stored, num_slots=700) as engine:
        gate = gates[-1]
        gate.may_load.clear()
        loading = engine.submit(request_for(PROMPT, GREEDY8))
        assert gate.is_loading.wait(60)
        long = Sampling(temperature=0.0, max_tokens=300, ignore_end=True)
        cold.check(OTHER, engine.generate(OTHER, long), max_tokens=300)
        assert engine.stats().num_preemptions == 0
        gate.may_load.set()
        answer = loading.result()
        cold.check(PROMPT, answer, max_tokens=8)
        assert answer.receipt.num_loaded_tokens == 0


def test_writes_give_way_and_are_counted(tmp_path: Path, gates: list[GatedTier], cold: Cold):
    prompts = [random_tokens(RNG, 300) for _ in range(4)]
    with engine_at(tmp_path, num_slots=640) as engine:
        gate = gates[-1]
        gate.may_store.clear()
        for prompt in prompts:
            cold.check(prompt, engine.generate(prompt, GREEDY8), max_tokens=8)
        stats = engine.stats()
        assert stats.num_preemptions == 0
        gate.may_store.set()
        assert engine.flush()
        assert engine.stats().lower.num_dropped_tokens > 0


def test_a_full_queue_drops_what_comes_then(tmp_path: Path, gates: list[GatedTier], cold: Cold):
    """512 of 2,048 slots may wait for the writer: one prompt is being stored, one waits, the third is dropped."""
    prompts = [random_tokens(RNG, 400) for _ in range(3)]
    with engine_at(tmp_path) as engine:
        gate = gates[-1]
        gate.may_store.clear()
        engine.generate(prompts[0], GREEDY8)
        assert gate.is_storing.wait(60)
        for prompt in prompts[1:]:
            engine.generate(prompt, GREEDY8)
        until(engine, lambda: engine.stats().lower.num_dropped_tokens > 0)
        gate.may_store.set()
        assert engine.flush()
        lower = engine.stats().lower
        assert (lower.num_stored_tokens, lower.num_dropped_tokens) == (2 * 407, 407)


@pytest.mark.parametrize(("number", "num_loaded"), [(0, 0), (1, 256), (2, 512)])
def test_a_record_that_fails_is_a_miss_from_there_on(
    stored: Path, gates: list[GatedTier], cold: Cold, number: int, num_loaded: int
):
    with engine_at(stored) as engine:
        gates[-1].answers[number] = Miss(MissReason.DAMAGED)
        answer = engine.generate(PROMPT, GREEDY8)
        cold.check(PROMPT, answer, max_tokens=8)
        assert answer.receipt.num_loaded_tokens == num_loaded
        assert engine.stats().lower.num_failed_loads == 1


def test_a_record_of_other_tokens_is_not_used_whatever_the_index_says(stored: Path, gates: list[GatedTier], cold: Cold):
    with engine_at(stored) as engine:
        gate = gates[-1]
        namespace = gate.all()[0].namespace
        real = gate.load(gate.following(namespace, START)[0].key)
        assert isinstance(real, Record)
        tokens = real.tokens.copy()
        tokens[100] += 1
        gate.answers[1] = Record(real.namespace, real.parent, tokens, real.layout, real.kv)
        answer = engine.generate(PROMPT, GREEDY8)
        cold.check(PROMPT, answer, max_tokens=8)
        assert answer.receipt.num_loaded_tokens == 0


def test_a_disk_that_is_slower_than_computing_is_not_read(stored: Path, gates: list[GatedTier], cold: Cold):
    with engine_at(stored) as engine:
        assert engine._durable is not None
        engine._durable._rates = Rates()
        engine._durable._rates.load_bytes_per_s = 1000.0
        answer = engine.generate(PROMPT, GREEDY8)
        assert answer.receipt.num_loaded_tokens == 0
        cold.check(PROMPT, answer, max_tokens=8)
        assert not gates[-1].loads


@pytest.mark.parametrize("seed", range(3))
def test_random_conversations_over_a_small_pool_and_a_small_disk(tmp_path: Path, cold: Cold, seed: int):
    """Restarts, evictions from both, shared openings, several at once: every answer is the cold one."""
    rng = np.random.default_rng(seed)
    trunks = [random_tokens(rng, 350) for _ in range(3)]
    record_bytes = 256 * 256  # of this model: 256 bytes a token
    for _ in range(3):
        with engine_at(tmp_path, num_slots=800, cap_bytes=9 * record_bytes) as engine:
            for _ in range(4):
                prompts = [
                    np.concatenate([trunks[rng.integers(3)][: rng.integers(20, 350)], random_tokens(rng, 9)])
                    for _ in range(rng.integers(1, 4))
                ]
                streams = [engine.submit(request_for(prompt, GREEDY8)) for prompt in prompts]
                for prompt, stream in zip(prompts, streams, strict=True):
                    cold.check(prompt, stream.result(), max_tokens=8)
            assert engine.stats().num_failed == 0


def test_what_nobody_asked_for_gives_way_to_a_request_that_waits(stored: Path, gates: list[GatedTier], cold: Cold):
    """Half of the pool is being filled from disk, and the first request needs more than the other half."""
    prompt = random_tokens(RNG, 900)
    with engine_at(stored, num_slots=1300) as engine:
        gate = gates[-1]
        gate.may_load.clear()
        assert not engine.preload()
        assert gate.is_loading.wait(60)
        cold.check(prompt, engine.generate(prompt, GREEDY8), max_tokens=8)
        gate.may_load.set()
        assert engine.preload(wait_s=60)
        assert engine.generate(PROMPT, GREEDY8).receipt.num_computed_tokens == 1


def test_a_fault_of_our_own_in_a_thread_costs_no_answer_and_holds_no_slot(
    stored: Path, gates: list[GatedTier], cold: Cold, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    with engine_at(stored) as engine:
        for name in ("load", "store"):
            monkeypatch.setattr(gates[-1], name, fail)
        for _ in range(2):
            cold.check(OTHER, engine.generate(OTHER, GREEDY8), max_tokens=8)
            answer = engine.generate(np.concatenate([PROMPT[:500], OTHER]), GREEDY8)
            assert answer.receipt.num_loaded_tokens == 0
        assert engine.flush()
    assert "Loading from disk failed" in caplog.text
    assert "Storing on disk failed" in caplog.text


def test_what_was_written_just_now_holds_no_room(tmp_path: Path, cold: Cold):
    """The writer is done with a prompt, and the engine's thread has not heard of it when the next request needs all."""
    first, second = random_tokens(RNG, 400), random_tokens(RNG, 600)
    with engine_at(tmp_path, num_slots=700) as engine:
        durable, post = engine._durable, engine._durable._post  # type: ignore[union-attr]
        late: list[Callable[[], None]] = []
        durable._post = late.append  # type: ignore[union-attr, assignment]
        cold.check(first, engine.generate(first, GREEDY8), max_tokens=8)
        until(engine, lambda: bool(late))
        cold.check(second, engine.generate(second, GREEDY8), max_tokens=8)
        durable._post = post  # type: ignore[union-attr]
        for order in late:
            post(order)
