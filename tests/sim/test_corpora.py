"""Traces made of published texts: the same seed gives the same trace; the sweep leaves a hot chat warm."""

from itertools import pairwise

import pytest

from anaphora.core.default_policy import DEFAULT_POLICY
from anaphora.sim import corpora
from anaphora.sim.experiment import rows_of
from anaphora.sim.replay import Plan, replay


def test_the_same_seed_gives_the_same_talks(data):
    first, again, other = (corpora.bfcl(data("bfcl"), seed=seed) for seed in (1, 1, 2))
    assert [one.time_s for one in first.requests] == [one.time_s for one in again.requests]
    assert [one.time_s for one in first.requests] != [one.time_s for one in other.requests]
    assert len(first.requests) > 3_000
    assert all(one.session for one in first.requests)


def test_every_answer_of_an_agent_is_a_request_that_goes_on_from_the_one_before(data):
    trace = corpora.tau_bench(data("tau-bench"))
    talk = [one.tokens() for one in trace.requests if one.session == "tau-bench 0"]
    assert len(talk) > 5
    assert all((later[: len(one)] == one).all() for one, later in pairwise(talk))


def test_subjects_share_their_few_shot_openings(data):
    trace = corpora.mmlu_cot(data("mmlu-cot"), num_requests=200)
    assert replay(trace, Plan("lru", 10**6)).hit_rate > 0.6


def chat_behind_the_sweep(policy, size):
    trace = corpora.scan_mix()
    last = trace.requests[-4:]
    result = replay(trace, Plan(policy, size))
    before = replay(type(trace)(trace.name, trace.requests[:-4], 1), Plan(policy, size))
    return (result.total.num_hit - before.total.num_hit) / sum(one.num_tokens - 500 for one in last)


@pytest.mark.parametrize("policy", [DEFAULT_POLICY, "odds", "slru", "arc", "lfu", "s3fifo"])
@pytest.mark.parametrize("size", [60_000, 200_000])
def test_a_hot_chat_is_warm_behind_a_sweep_of_documents(policy, size):
    """LRU keeps nothing of it: the first chat brings the system prompt back, and the others hit that alone."""
    assert chat_behind_the_sweep("lru", size) == 0.25
    assert chat_behind_the_sweep(policy, size) > 0.85


def test_the_table_has_a_line_for_each_size_and_the_optimum_last():
    rows = list(rows_of(corpora.scan_mix(num_documents=2, document_tokens=50), ["lru", "odds"], (0.5, 1.0)))
    assert len(rows) == 2
    cells = rows[1].strip("| ").split(" | ")
    assert cells[:2] == ["scan-mix", "100%"]
    assert cells[2] == cells[3] == cells[4]
