"""Replays, against an LRU of thirty lines that knows nothing of trees, nodes, leases or slots."""

from collections import OrderedDict

import pytest
from builders import random_trace, trace_of

from anaphora.core.policy import POLICIES
from anaphora.sim.load import load_trace
from anaphora.sim.replay import Plan, replay, replay_all
from anaphora.sim.routing import routers
from anaphora.sim.trace import Trace, TraceError, TraceRequest


def reference_lru(trace, size):
    """Hits of each request. A cached token is a key made of all tokens up to it."""
    cached, answers = OrderedDict(), []
    for request in trace.requests:
        prefix, keys = None, []
        for token in request.tokens().tolist():
            prefix = hash((request.tenant, prefix, token))
            keys.append(prefix)
        if len(keys) > size:
            answers.append(None)
            continue
        num_hit = next((place for place, key in enumerate(keys) if key not in cached), len(keys))
        num_hit = min(num_hit, len(keys) - 1)  # the last token is computed
        for key in reversed(keys[:num_hit]):
            cached.move_to_end(key)
        while len(cached) > size - (len(keys) - num_hit):
            cached.popitem(last=False)
        for key in reversed(keys):
            cached[key] = None
            cached.move_to_end(key)
        answers.append(num_hit)
    return answers


def hits(trace, size, policy="lru"):
    result = replay(trace, Plan(policy, size))
    return result.total.num_hit, result.total.num_refused


@pytest.mark.parametrize("seed", range(40))
def test_lru_equals_the_reference_on_random_prompts(seed):
    trace = random_trace(seed)
    for size in (3, 8, 13, 30, 200):
        expected = reference_lru(trace, size)
        assert hits(trace, size) == (sum(one or 0 for one in expected), expected.count(None))


def test_lru_equals_the_reference_on_a_real_hour(data):
    trace = load_trace(data("mooncake"))
    slice_ = Trace("slice", trace.requests[:40], trace.block_tokens)
    for size in (60_000, 130_000):
        expected = reference_lru(slice_, size)
        assert sum(one or 0 for one in expected) > 0
        assert hits(slice_, size) == (sum(one or 0 for one in expected), expected.count(None))


def test_lru_equals_the_reference_on_a_real_agent(data):
    trace = load_trace(data("weka-claude-code") / "trace_0719.json.gz")
    slice_ = Trace("slice", trace.requests[:5], trace.block_tokens)
    longest = max(request.num_tokens for request in slice_.requests)
    for size in (longest - 1, longest):
        expected = reference_lru(slice_, size)
        assert hits(slice_, size) == (sum(one or 0 for one in expected), expected.count(None))


def test_the_report_counts_what_happened():
    result = replay(trace_of("abcd", "abcx", "abcd", "wxyz"), Plan("lru", 6))
    assert result.total.num_requests == 4
    assert result.total.num_tokens == 16
    assert result.total.num_hit == 3 + 3
    assert result.hit_rate == 6 / 16
    assert result.num_evicted == 3
    assert result.num_cached == 6


def test_whole_blocks_hit_no_more_than_tokens():
    prompts = trace_of("abcdef", "abcdxy").requests
    result = replay(Trace("blocks", prompts, block_tokens=3), Plan("lru", 100))
    assert (result.total.num_hit, result.num_whole_hit) == (4, 3)
    assert result.whole_hit_rate == 3 / 12


def test_tenants_share_nothing_and_are_counted_apart():
    mine, yours = trace_of("abc", tenant="mine", session="m").requests, trace_of("abc", "abc", tenant="yours").requests
    result = replay(Trace("two", mine + yours, block_tokens=1), Plan("lru", 100))
    assert result.tenants["mine"].num_hit == 0
    assert result.tenants["yours"].num_hit == 2
    assert result.sessions["m"].num_requests == 1
    assert "" not in result.sessions


def test_a_prompt_larger_than_the_cache_is_refused_and_evicts_nothing():
    result = replay(trace_of("abc", "abcdefghij", "abc"), Plan("lru", 5))
    assert result.total.num_refused == 1
    assert result.num_evicted == 0
    assert result.total.num_hit == 2


def test_leases_held_for_the_recorded_time_refuse_what_does_not_fit_beside_them():
    long = TraceRequest(0.0, trace_of("abcd").requests[0].tokens(), service_s=10.0)
    during, after = trace_of("wxyz", "wxyz").requests
    trace = Trace("held", (long, TraceRequest(5.0, during.prompt), TraceRequest(11.0, after.prompt)), block_tokens=1)
    assert replay(trace, Plan("lru", 6)).total.num_refused == 0
    assert replay(trace, Plan("lru", 6, holds_leases=True)).total.num_refused == 1


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_replays_to_the_same_result_twice_and_hits_all_it_can_where_there_is_room(policy):
    trace = random_trace(1)
    assert hits(trace, 12, policy) == hits(trace, 12, policy)
    assert hits(trace, 10_000, policy) == hits(trace, 10_000, "lru")


def test_policies_and_sizes_are_run_in_order():
    found = replay_all(trace_of("abc", "abd"), ["lru", "lfu"], [5, 50])
    assert [(one.policy, one.size) for one in found] == [("lru", 5), ("lfu", 5), ("lru", 50), ("lfu", 50)]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan("lru", 0), "holds nothing"),
        (Plan("mru", 5), "'mru' is unknown. Choose one of: lru"),
        (Plan("lru", 5, num_replicas=0), "serve nothing"),
    ],
)
def test_what_cannot_be_replayed_is_one_clear_error(plan, reason):
    with pytest.raises(TraceError, match=reason):
        replay(trace_of("abc"), plan)


def test_an_empty_trace_is_one_clear_error():
    with pytest.raises(TraceError, match="empty"):
        replay(Trace("none", (), block_tokens=1), Plan("lru", 5))


def sessions(num_sessions, num_turns, *, num_tokens=1024):
    """Sessions of growing prompts, one turn of each in a round."""
    requests = []
    for turn in range(1, num_turns + 1):
        for session in range(num_sessions):
            text = "".join(chr(0x4E00 + session) * num_tokens for _ in range(turn))
            requests.append(TraceRequest(float(len(requests)), trace_of(text).requests[0].tokens()))
    return Trace("sessions", tuple(requests), block_tokens=1)


def test_affinity_keeps_a_session_where_it_was_and_round_robin_does_not():
    trace = sessions(5, 6)
    rates = {
        name: replay(trace, Plan("lru", 10_000, 2, router=make)).hit_rate for name, make in routers(seed=0).items()
    }
    assert rates["affinity"] > rates["round-robin"]
    assert rates["affinity"] > rates["random"]


def test_a_cap_sends_some_of_a_flood_elsewhere():
    trace = trace_of(*("x" * 2_000 for _ in range(40)))
    make = routers(seed=0)
    flooded = replay(trace, Plan("lru", 10_000, 4, router=make["affinity"]))
    capped = replay(trace, Plan("lru", 10_000, 4, router=make["affinity-cap"]))
    assert [one.num_requests for one in flooded.replicas] == [40, 0, 0, 0]
    assert min(one.num_requests for one in capped.replicas) > 0
    assert sum(one.num_requests for one in capped.replicas) == 40


def test_random_routing_is_the_same_for_the_same_seed():
    trace = sessions(3, 4)

    def shares(seed):
        result = replay(trace, Plan("lru", 10_000, 3, router=routers(seed)["random"]))
        return [one.num_requests for one in result.replicas]

    assert shares(1) == shares(1)
    assert shares(1) != shares(2)
