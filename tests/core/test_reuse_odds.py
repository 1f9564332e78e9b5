"""Reuse odds: what is learned from the times between uses, and who goes first for it."""

import numpy as np
import pytest
from timed_entries import Timed, use

from anaphora.core.reuse_odds import NUM_AGES, NUM_PATHS_BETWEEN, ReuseOdds, worth_of


def test_of_what_was_used_once_the_oldest_goes_first():
    policy, entries = ReuseOdds(), [Timed(name) for name in range(4)]
    for time_s, entry in enumerate(entries):
        use(policy, entry, float(time_s))
    order = []
    while len(policy):
        order.append(policy.choose())
        policy.withdraw(order[-1])
    assert order == entries


def test_knowing_nothing_it_keeps_what_was_used_again():
    policy, again = ReuseOdds(), Timed("again")
    use(policy, again, 0.0)
    use(policy, again, 1.0)
    once = [Timed(name) for name in range(5)]
    for time_s, entry in enumerate(once, start=2):
        use(policy, entry, float(time_s))
    for entry in once:
        assert policy.choose() is entry
        policy.withdraw(entry)


def test_what_comes_once_goes_before_what_keeps_coming_back():
    policy, hot = ReuseOdds(), Timed("hot")
    for round_ in range(3 * NUM_PATHS_BETWEEN):
        use(policy, hot, 10.0 * round_)
        use(policy, Timed(round_), 10.0 * round_ + 9.0)
    assert policy.choose().name == 0
    victims = []
    while hot in policy:
        victims.append(policy.choose())
        policy.withdraw(victims[-1])
    assert victims[-1] is hot
    assert len(victims) > 2 * NUM_PATHS_BETWEEN


def test_what_was_evicted_is_known_again_by_its_fingerprint():
    policy = ReuseOdds()
    use(policy, Timed("back"), 0.0)
    policy.withdraw(policy.choose())
    again = Timed("back")
    use(policy, again, 8.0)
    assert again.note.num_uses == 2
    assert again.note.gap_s == 8.0
    use(policy, again, 12.0)
    assert again.note.gap_s == 7.0


def test_worth_is_the_chance_for_each_second_over_the_best_span():
    used = np.array([100.0, 100.0, 0.0])
    reused = np.zeros((3, NUM_AGES))
    reused[0, 2] = 50.0  # half of the first class comes back after 1 to 2 seconds
    worth = worth_of(used, reused)
    assert worth[0, 2] == pytest.approx(0.5 / (0.75 * 1.0))
    assert worth[0, 0] == pytest.approx(0.5 / (0.25 + 0.5 + 0.75))
    assert (worth[0, 3:] == 0).all()
    assert (worth[1:] == 0).all()


def test_a_split_head_is_in_the_class_of_its_tail():
    policy, tail, head = ReuseOdds(), Timed("tail"), Timed("head")
    use(policy, tail, 1.0)
    policy.split(head, tail)
    assert head.note == tail.note
