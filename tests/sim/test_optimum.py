"""Segments, the offline optimum and reuse distances, against brute force over tokens."""

from functools import cache

import numpy as np
import pytest
from builders import random_trace, trace_of

from anaphora.core.policy import POLICIES
from anaphora.sim.history import NEVER, history_of, reuse_distances
from anaphora.sim.optimum import optimal_hits
from anaphora.sim.replay import Plan, replay


def prefixes(text):
    return frozenset(text[:end] for end in range(1, len(text) + 1))


def best_by_search(prompts, size):
    """The most tokens that any choice of what to keep can hit. Tries all: for tiny traces."""

    @cache
    def best(index, cached):
        if index == len(prompts):
            return 0
        text = prompts[index]
        if len(text) > size:
            return best(index + 1, cached)
        wanted = prefixes(text)
        num_hit = next((end for end in range(len(text)) if text[: end + 1] not in cached), len(text))
        found = min(num_hit, len(text) - 1)
        return found + max(best(index + 1, kept) for kept in shrunk(cached | wanted, wanted))

    def shrunk(cached, wanted):
        if len(cached) <= size:
            return {cached}
        answers = set()
        for one in cached - wanted:
            if not any(other != one and other.startswith(one) for other in cached):
                answers |= shrunk(cached - {one}, wanted)
        return answers

    return best(0, frozenset())


@pytest.mark.parametrize("seed", range(30))
def test_no_choice_of_what_to_keep_hits_more(seed):
    trace = random_trace(seed, num_requests=7, longest=4)
    prompts = [bytes(one.tokens().astype(np.uint8)).decode() for one in trace.requests]
    history = history_of(trace.requests)
    for size in (3, 4, 6):
        assert sum(optimal_hits(history, size)) == best_by_search(prompts, size)


@pytest.mark.parametrize("seed", range(10))
def test_no_policy_hits_more_than_the_optimum(seed):
    trace = random_trace(seed, num_requests=80, alphabet="abc", longest=9)
    history = history_of(trace.requests)
    for size in (9, 15, 40):
        bound = sum(optimal_hits(history, size))
        for policy in POLICIES:
            assert replay(trace, Plan(policy, size)).total.num_hit <= bound


def test_segments_are_what_every_request_uses_whole_or_not_at_all():
    history = history_of(trace_of("abcdef", "abcxy", "abc").requests)
    assert [[int(history.sizes[one]) for one in path] for path in history.paths] == [[3, 3], [3, 2], [3]]
    assert history.working_set == 8
    assert [uses.tolist() for uses in history.next_uses(100)] == [[1, NEVER], [2, NEVER], [NEVER]]


def test_requests_that_can_never_run_are_no_uses():
    history = history_of(trace_of("ab", "abcdef", "ab").requests)
    assert history.next_uses(5)[0].tolist() == [2]
    assert optimal_hits(history, 5) == [0, 0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_reuse_distances_equal_those_found_token_by_token(seed):
    """The distance is the number of distinct tokens from one use to the next, of one prompt tails before heads."""
    trace = random_trace(seed, num_requests=40, alphabet="abc", longest=6)
    stack, counts, num_first = [], {}, 0
    for request in trace.requests:
        text = bytes(request.tokens().astype(np.uint8)).decode()
        path = [text[:end] for end in range(1, len(text) + 1)]
        for prefix in path:
            if prefix in stack:
                place = (len(stack) - stack.index(prefix)).bit_length()
                counts[place] = counts.get(place, 0) + 1
            else:
                num_first += 1
        stack = [one for one in stack if one not in path] + path[::-1]
    found = reuse_distances(history_of(trace.requests))
    assert found.num_first == num_first
    assert {place: count for place, count in enumerate(found.counts) if count} == counts
    assert found.bounds == tuple(2**place for place in range(len(found.counts)))
