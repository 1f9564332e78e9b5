"""What one engine computed, the next one on the same folder loads. Method: engines of tiny random models one after
another on a temporary folder; every answer is judged by the cold model."""

from pathlib import Path

import numpy as np
import pytest
from durable_world import GREEDY8, cold_judge, engine_at, records_in
from engine_world import Cold, random_tokens, small_engine

from anaphora.engine.request import Generation, Tenant

RNG = np.random.default_rng(6)
PROMPT = random_tokens(RNG, 700)


@pytest.fixture(scope="module")
def cold() -> Cold:
    return cold_judge()


def numbers(answer: Generation) -> tuple[int, int, str]:
    receipt = answer.receipt
    return receipt.num_computed_tokens, receipt.num_loaded_tokens, receipt.source


def test_the_same_prompt_after_a_restart_computes_one_token(tmp_path: Path, cold: Cold):
    with engine_at(tmp_path) as engine:
        first = engine.generate(PROMPT, GREEDY8)
        assert numbers(first) == (700, 0, "none")
    with engine_at(tmp_path) as engine:
        again = engine.generate(PROMPT, GREEDY8)
        assert numbers(again) == (1, 699, "disk")
        cold.check(PROMPT, again, max_tokens=8)
        assert numbers(engine.generate(PROMPT, GREEDY8)) == (1, 0, "device")
        stats = engine.stats().lower
        assert (stats.num_loaded_tokens, stats.num_stored_tokens, stats.num_failed_loads) == (699, 0, 0)


@pytest.mark.parametrize("num_shared", [17, 255, 256, 257, 300, 511, 640, 699])
def test_a_match_ends_at_any_token_of_a_record(tmp_path: Path, cold: Cold, num_shared: int):
    other = np.concatenate([PROMPT[:num_shared], [(PROMPT[num_shared] + 1) % 256], random_tokens(RNG, 20)])
    with engine_at(tmp_path) as engine:
        engine.generate(PROMPT, GREEDY8)
    with engine_at(tmp_path) as engine:
        answer = engine.generate(other, GREEDY8)
        assert numbers(answer) == (21, num_shared, "disk")
        cold.check(other, answer, max_tokens=8)


def test_a_conversation_goes_on_and_its_short_last_record_is_replaced(tmp_path: Path, cold: Cold):
    """Turn by turn, a restart between each two; what is stored stays one chain without doubles."""
    tokens = PROMPT[:100]
    for turn in range(4):
        with engine_at(tmp_path) as engine:
            answer = engine.generate(tokens, GREEDY8)
            cold.check(tokens, answer, max_tokens=8)
            assert answer.receipt.num_computed_tokens == (100 if turn == 0 else 91)  # the last answer token was not fed
        said = np.asarray(answer.completions[0].token_ids, dtype=np.int32)
        tokens = np.concatenate([tokens, said, random_tokens(RNG, 90)])
    assert len(records_in(tmp_path)) == -(-(100 + 3 * 98 + 7) // 256)


def test_part_on_the_device_and_the_rest_on_disk_is_both(tmp_path: Path, cold: Cold):
    with engine_at(tmp_path) as engine:
        engine.generate(PROMPT, GREEDY8)
    with engine_at(tmp_path) as engine:
        opening = np.concatenate([PROMPT[:300], random_tokens(RNG, 5)])
        assert engine.generate(opening, GREEDY8).receipt.num_loaded_tokens == 300
        answer = engine.generate(PROMPT, GREEDY8)
        assert numbers(answer) == (1, 399, "both")
        cold.check(PROMPT, answer, max_tokens=8)


def test_what_was_evicted_from_the_pool_comes_back_from_disk(tmp_path: Path, cold: Cold):
    prompts = [random_tokens(RNG, 300) for _ in range(6)]
    with engine_at(tmp_path, num_slots=512) as engine:
        for prompt in prompts:
            engine.generate(prompt, GREEDY8)
            assert engine.flush()
        for prompt in prompts:
            answer = engine.generate(prompt, GREEDY8)
            cold.check(prompt, answer, max_tokens=8)
            assert answer.receipt.num_computed_tokens == 1
        assert engine.stats().lower.num_loaded_tokens >= 5 * 299 - 512


def test_tenants_load_nothing_of_each_other_but_what_is_shared(tmp_path: Path, cold: Cold):
    red, blue = Tenant("red"), Tenant("blue")
    with engine_at(tmp_path) as engine:
        engine.share(PROMPT[:400])
        engine.generate(PROMPT, GREEDY8, tenant=red)
    with engine_at(tmp_path) as engine:
        engine.share(PROMPT[:400])
        foreign = engine.generate(PROMPT, GREEDY8, tenant=blue)
        assert numbers(foreign) == (300, 400, "disk")
        cold.check(PROMPT, foreign, max_tokens=8)
    with engine_at(tmp_path) as engine:
        engine.share(PROMPT[:400])
        own = engine.generate(PROMPT, GREEDY8, tenant=red)
        assert numbers(own) == (1, 699, "disk")
        cold.check(PROMPT, own, max_tokens=8)
    with engine_at(tmp_path) as engine:  # shared no more
        assert numbers(engine.generate(PROMPT, GREEDY8, tenant=blue)) == (700, 0, "none")


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "gemma3"])
def test_other_families_come_back_exactly(tmp_path: Path, family: str):
    judge, prompt = cold_judge(family), random_tokens(RNG, 400)
    with engine_at(tmp_path, family) as engine:
        engine.generate(prompt, GREEDY8)
    with engine_at(tmp_path, family) as engine:
        answer = engine.generate(prompt, GREEDY8)
        assert answer.receipt.num_computed_tokens == 1
        judge.check(prompt, answer, max_tokens=8)


def test_another_models_records_are_not_found(tmp_path: Path):
    with engine_at(tmp_path) as engine:
        engine.generate(PROMPT, GREEDY8)
    with engine_at(tmp_path, "mistral") as engine:
        assert numbers(engine.generate(PROMPT, GREEDY8)) == (700, 0, "none")


def test_without_a_cap_nothing_is_stored(tmp_path: Path):
    with small_engine("llama", disk_cache_dir=tmp_path) as engine:
        engine.generate(PROMPT[:100], GREEDY8)
        assert engine.flush()
        assert engine.stats().lower.disk_cap_bytes == 0
    assert not list(tmp_path.iterdir())


def test_what_was_used_last_is_loaded_before_anybody_asks(tmp_path: Path, cold: Cold):
    old, new = random_tokens(RNG, 300), PROMPT
    with engine_at(tmp_path) as engine:
        for prompt in (old, new):
            engine.generate(prompt, GREEDY8)
    with engine_at(tmp_path, num_slots=1500) as engine:  # half of it holds the last prompt and no other
        assert engine.preload(wait_s=60)
        answer = engine.generate(new, GREEDY8)
        cold.check(new, answer, max_tokens=8)
        assert numbers(answer)[0] == 1
        assert engine.stats().lower.num_loaded_tokens == 707
        assert numbers(engine.generate(old, GREEDY8)) == (1, 299, "disk")


def test_tenants_records_are_loaded_for_them_before_they_ask(tmp_path: Path, cold: Cold):
    """Behind a region that all share; a tenant with a quota has it charged."""
    red, blue = Tenant("red"), Tenant("blue")
    quotas = {"tenant_quotas": {"red": 600 * 256}}
    questions = {tenant: np.concatenate([PROMPT[:300], random_tokens(RNG, 50)]) for tenant in (red, blue)}
    with engine_at(tmp_path, **quotas) as engine:
        engine.share(PROMPT[:300])
        for tenant, question in questions.items():
            engine.generate(question, GREEDY8, tenant=tenant)
    with engine_at(tmp_path, **quotas) as engine:
        engine.share(PROMPT[:300])
        assert engine.preload(wait_s=60)
        assert engine.stats().lower.num_loaded_tokens == 300 + 2 * 57
        for tenant, question in questions.items():
            answer = engine.generate(question, GREEDY8, tenant=tenant)
            assert numbers(answer) == (1, 0, "device")
            cold.check(question, answer, max_tokens=8)


def test_what_is_shared_no_more_is_not_loaded_before_anybody_asks(tmp_path: Path):
    private = random_tokens(RNG, 100)
    with engine_at(tmp_path) as engine:
        engine.share(PROMPT[:300])
        engine.generate(private, GREEDY8)
        engine.generate(PROMPT, GREEDY8)
    with engine_at(tmp_path) as engine:
        assert engine.preload(wait_s=60)
        assert engine.stats().lower.num_loaded_tokens == 107  # the other one, which is older
        assert engine.generate(PROMPT, GREEDY8).receipt.num_reused_tokens == 0


def test_two_engines_on_one_folder_reuse_what_the_other_computed(tmp_path: Path, cold: Cold):
    """Both have it open all the time, as two servers on one machine."""
    with engine_at(tmp_path) as one, engine_at(tmp_path) as other:
        one.generate(PROMPT, GREEDY8)
        assert one.flush()
        answer = other.generate(PROMPT, GREEDY8)
        assert numbers(answer) == (1, 699, "disk")
        cold.check(PROMPT, answer, max_tokens=8)
        longer = np.concatenate([PROMPT, random_tokens(RNG, 80)])
        other.generate(longer, GREEDY8)
        assert other.flush()
        answer = one.generate(longer, GREEDY8)
        cold.check(longer, answer, max_tokens=8)
        assert answer.receipt.num_computed_tokens == 1
        assert answer.receipt.num_loaded_tokens > 0
