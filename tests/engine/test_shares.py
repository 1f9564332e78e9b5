"""Lifetimes, quotas, priorities and shared prefixes through the engine: what requests ask for and receipts say."""

import dataclasses

import numpy as np
import pytest
from engine_world import ByHand, check_is_idle, request_for, small_engine

from anaphora.core.cache import CacheLimits, PrefixCache
from anaphora.engine.request import Generation, Keep, Sampling, Tenant
from anaphora.engine.settings import EngineSettings
from anaphora.engine.shares import cache_limits
from anaphora.errors import RequestError, SettingsError

ONE = Sampling(temperature=0.0, max_tokens=1)
RED, BLUE = Tenant("red"), Tenant("blue")


def prompt(num_tokens: int, *, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 200, num_tokens)]


def ask(engine, tokens, *, tenant=RED, **changes) -> Generation:
    request = dataclasses.replace(request_for(tokens, ONE, tenant=tenant), **changes)
    return engine.submit(request).result()


def reused(engine, tokens, **changes) -> int:
    return ask(engine, tokens, **changes).receipt.num_reused_tokens


def flood(engine, *, tenant=RED, num_requests: int = 6) -> None:
    for seed in range(100, 100 + num_requests):
        ask(engine, prompt(100, seed=seed), tenant=tenant)


def test_what_a_request_asks_to_keep_outlives_a_flood_and_the_receipt_says_so():
    with small_engine("llama", num_slots=512, max_context=256) as engine:
        receipt = ask(engine, prompt(100), keep=(Keep(60, lifetime_s=300.0),)).receipt
        assert (receipt.retention, receipt.num_kept_tokens) == ("kept", 60)
        flood(engine)
        assert engine.stats().num_retained_slots == 60
        assert reused(engine, prompt(100)) == 60
        stats = engine.stats()
        assert stats.num_slots == (
            stats.num_free_slots + stats.num_evictable_slots + stats.num_leased_slots + stats.num_retained_slots
        )


def test_a_wish_that_can_not_be_granted_is_said_in_the_receipt():
    with small_engine("llama", num_slots=512, max_context=256, retention_bytes=80 * _slot_bytes()) as engine:
        slots = 80
        wishes = (Keep(1, lifetime_s=60.0), Keep(slots + 1, lifetime_s=60.0))
        receipt = ask(engine, prompt(slots + 1), keep=wishes).receipt
        assert (receipt.retention, receipt.num_kept_tokens) == ("partly_kept", 1)
        receipt = ask(engine, prompt(slots + 1), keep=wishes[1:]).receipt
        assert (receipt.retention, receipt.num_kept_tokens) == ("refused", 0)
        assert ask(engine, prompt(9)).receipt.retention == "none"


def test_promises_never_stop_the_longest_request_that_is_allowed():
    with small_engine("llama", num_slots=300, max_context=256) as engine:
        for seed in range(4):
            ask(engine, prompt(30, seed=seed), keep=(Keep(30, lifetime_s=3600.0),))
        assert engine.stats().num_retained_slots == 30
        assert ask(engine, prompt(255, seed=9)).completions[0].finish_reason is not None


def test_where_the_pool_is_no_larger_than_a_request_nothing_is_promised():
    with small_engine("llama", num_slots=256) as engine:
        assert ask(engine, prompt(30), keep=(Keep(30, lifetime_s=60.0),)).receipt.retention == "refused"


def test_without_reuse_nothing_is_promised():
    with small_engine("llama", cache=False) as engine:
        assert ask(engine, prompt(30), keep=(Keep(30, lifetime_s=60.0),)).receipt.retention == "refused"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"keep": (Keep(0, lifetime_s=60.0),)}, "keep"),
        ({"keep": (Keep(31, lifetime_s=60.0),)}, "keep"),
        ({"keep": (Keep(5, lifetime_s=0.0),)}, "keep"),
        ({"keep": (Keep(5, lifetime_s=float("inf")),)}, "keep"),
        ({"priority": "urgent"}, "priority"),
    ],
)
def test_wishes_without_a_meaning_are_refused_with_their_field(changes, field):
    with small_engine("llama") as engine, pytest.raises(RequestError) as caught:
        ask(engine, prompt(30), **changes)
    assert caught.value.field == field


def test_low_work_goes_before_what_was_used_longer_ago():
    with small_engine("llama", num_slots=320, max_context=256) as engine:
        ask(engine, prompt(100))
        ask(engine, prompt(100, seed=1), priority="low")
        ask(engine, prompt(200, seed=2))
        assert reused(engine, prompt(100)) == 99


def test_a_flood_of_one_tenant_leaves_the_quota_of_another_alone():
    loaded_bytes = 120 * _slot_bytes()
    quotas = {"red": loaded_bytes, "blue": loaded_bytes}
    with small_engine("llama", num_slots=512, max_context=256, tenant_quotas=quotas) as engine:
        ask(engine, prompt(100), tenant=BLUE)
        flood(engine, tenant=RED, num_requests=10)
        assert reused(engine, prompt(100), tenant=BLUE) == 99


def test_a_shared_prefix_is_computed_once_for_all_tenants_and_nothing_behind_it_is_shared():
    with small_engine("llama") as engine:
        engine.share(prompt(50))
        assert reused(engine, [*prompt(50), 1, 2, 3], tenant=RED) == 0
        assert reused(engine, [*prompt(50), 1, 2, 3], tenant=BLUE) == 50
        assert reused(engine, [*prompt(50), 1, 2, 3], tenant=BLUE) == 52
        assert reused(engine, [*prompt(40), 1, 2, 3], tenant=BLUE) == 0
        check_is_idle(engine)


def test_without_a_declaration_tenants_share_nothing():
    with small_engine("llama") as engine:
        ask(engine, prompt(50), tenant=RED)
        receipt = ask(engine, prompt(50), tenant=BLUE).receipt
        assert (receipt.num_reused_tokens, receipt.stop_reason) == (0, "nothing_cached")


def test_an_empty_shared_prefix_is_refused():
    with small_engine("llama") as engine, pytest.raises(RequestError, match="at least one token"):
        engine.share([])


def test_quotas_that_do_not_fit_the_pool_are_a_settings_error():
    with pytest.raises(SettingsError, match="tenant_quotas"):
        small_engine("llama", num_slots=300, tenant_quotas={"red": 301 * _slot_bytes()})
    with pytest.raises(SettingsError, match="retention_bytes"):
        small_engine("llama", retention_bytes=-1)


def test_bytes_become_slots():
    settings = EngineSettings(tenant_quotas={"red": 1005}, default_quota_bytes=250, retention_bytes=399)
    limits = cache_limits(settings, num_slots=1000, slot_bytes=10, longest=500)
    assert limits.quotas.of("red") == 100
    assert limits.quotas.of("anyone") == 25
    assert limits.num_retainable == 39
    assert cache_limits(settings, num_slots=1000, slot_bytes=10, longest=970).num_retainable == 30
    assert cache_limits(EngineSettings(), num_slots=1000, slot_bytes=10, longest=500).num_retainable == 250


def test_a_promise_is_made_once_the_prompt_is_computed_even_if_its_answer_is_aborted():
    world = ByHand("llama", num_slots=512)
    world.cache = world.stepper.cache = world.stepper.scheduler._cache = PrefixCache(
        512, clock=lambda: world.now, limits=CacheLimits(num_retainable=200)
    )
    stream = world.add(prompt(50), Sampling(temperature=0.0, max_tokens=20), keep=(Keep(50, lifetime_s=60.0),))
    for _ in range(3):
        world.step()
    stream.abort()
    assert world.cache.counts().retained == 50
    assert stream.receipt is not None
    assert stream.receipt.retention == "kept"
    world.now = 60.0
    world.answer(prompt(5, seed=1), ONE)
    assert world.cache.counts().retained == 0


def _slot_bytes() -> int:
    with small_engine("llama", num_slots=256) as engine:
        return engine.stats().kv_pool_bytes // 256
