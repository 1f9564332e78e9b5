"""What each counting policy evicts first. What any policy must do is in the policy contract."""

import pytest

from anaphora.core.counting import (
    ATTENTION_DEPTH,
    AdaptiveReplacement,
    GreedyDual,
    LeastFrequentlyUsed,
    SegmentedLRU,
    ThreeQueues,
)
from anaphora.core.policy import POLICIES
from anaphora.testing.policy_contract import Entry


class Named(Entry):
    """An entry that is known again after it was evicted."""

    def __init__(self, name, *, num_tokens=1):
        super().__init__(num_tokens=num_tokens)
        self.name = name

    @property
    def fingerprint(self):
        return hash(self.name)


def use(policy, entry, times=1):
    for _ in range(times):
        if entry in policy:
            policy.withdraw(entry)
        policy.admit(entry)


def evict(policy):
    victim = policy.choose()
    policy.withdraw(victim)
    return victim


@pytest.mark.parametrize("make", [LeastFrequentlyUsed, GreedyDual, SegmentedLRU, AdaptiveReplacement, ThreeQueues])
def test_what_was_used_again_outlives_a_sweep_of_what_comes_once(make):
    policy, hot = make(), Entry()
    use(policy, hot, 3)
    sweep = [Entry() for _ in range(10)]
    for entry in sweep:
        use(policy, entry)
    assert [evict(policy) for _ in range(10)] == sweep


def test_lfu_evicts_the_lowest_count_and_of_equal_counts_the_oldest():
    policy, twice, old, new = LeastFrequentlyUsed(), Entry(), Entry(), Entry()
    use(policy, twice, 2)
    use(policy, old)
    use(policy, new)
    assert [evict(policy) for _ in range(3)] == [old, new, twice]


def test_counts_stop_so_that_the_search_stays_short():
    policy, first, second = LeastFrequentlyUsed(), Entry(), Entry()
    use(policy, first, 500)
    use(policy, second, 100)
    assert policy.choose() is first


def test_greedy_dual_lets_old_counts_fade():
    policy, once_hot = GreedyDual(), Entry()
    use(policy, once_hot, 5)
    victims = []
    for _ in range(8):
        entry = Entry()
        use(policy, entry)
        victims.append(evict(policy))
        use(policy, entry) if entry is not victims[-1] else None
    assert once_hot not in victims[:3]
    for _ in range(8):
        use(policy, Entry(), 3)
        victims.append(evict(policy))
    assert once_hot in victims


def test_greedy_dual_keeps_what_is_dear_to_compute_again():
    policy, trunk = GreedyDual(), Entry(num_tokens=ATTENTION_DEPTH)
    deep, shallow = Entry(trunk), Entry()
    use(policy, deep)
    use(policy, trunk)
    use(policy, shallow)
    assert evict(policy) is shallow, "used last, and half as dear"
    assert evict(policy) is deep


def test_greedy_dual_finds_a_leaf_above_a_priority_of_parked_nodes_only():
    policy, parent = GreedyDual(), Entry()
    child = Entry(parent)
    use(policy, parent)
    use(policy, child, 3)
    assert policy.choose() is child
    policy.withdraw(child)
    parent.children.remove(child)
    assert policy.choose() is parent


def test_segmented_lru_takes_from_those_used_again_beyond_their_share():
    policy, again, once = SegmentedLRU(), [Entry() for _ in range(9)], Entry()
    for entry in again:
        use(policy, entry, 2)
    use(policy, once)
    assert evict(policy) is once
    assert policy.choose() in again


def test_segmented_lru_does_without_those_used_again_if_none_is_a_leaf():
    policy, parent = SegmentedLRU(), Entry(num_tokens=9)
    child = Entry(parent)
    use(policy, child)
    use(policy, parent, 2)
    assert policy.choose() is child


def test_adaptive_replacement_gives_room_to_the_list_that_is_missed():
    policy = AdaptiveReplacement()
    use(policy, Named("gone"))
    evict(policy)
    again, once = Named("again", num_tokens=3), Named("once")
    use(policy, again, 2)
    use(policy, once)
    assert policy.choose() is once
    use(policy, Named("gone"))
    assert policy.choose() is again


def test_adaptive_replacement_takes_room_back():
    policy = AdaptiveReplacement()
    for name in ("gone", "hot"):
        use(policy, Named(name), 1 + (name == "hot"))
    evict(policy), evict(policy)
    use(policy, Named("gone", num_tokens=5))
    use(policy, Named("once"))
    assert policy.choose().name == "once"
    use(policy, Named("hot", num_tokens=5))
    assert policy.choose().name == "once"


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "lru"])
def test_splitting_what_is_not_held_is_our_bug(name):
    with pytest.raises(AssertionError, match="not held here"):
        POLICIES[name]().split(Entry(), Entry())


def test_s3_fifo_spares_newcomers_below_their_share():
    policy, again, once = ThreeQueues(), [Entry(num_tokens=10) for _ in range(10)], Entry(num_tokens=10)
    for entry in again:
        use(policy, entry, 2)
    use(policy, once)
    assert policy.choose() is again[0]
    use(policy, Entry(num_tokens=10))
    assert policy.choose() is once


def test_s3_fifo_sends_what_was_used_to_the_end_as_often_as_it_was_used():
    policy, hot, warm, cold = ThreeQueues(), Entry(), Entry(), Entry()
    use(policy, hot, 50)
    use(policy, warm, 3)
    use(policy, cold, 2)
    assert [evict(policy) for _ in range(3)] == [cold, warm, hot]


def test_s3_fifo_puts_what_comes_back_into_the_main_queue():
    policy = ThreeQueues()
    use(policy, Named("back"))
    evict(policy)
    back, other = Named("back"), Named("other")
    use(policy, back)
    use(policy, other)
    assert evict(policy) is other
    assert evict(policy) is back


def test_s3_fifo_takes_a_newcomer_where_the_main_queue_has_no_leaf():
    policy, parent = ThreeQueues(), Entry(num_tokens=100)
    child = Entry(parent, num_tokens=1)
    use(policy, parent, 2)
    use(policy, child)
    assert policy.choose() is child


def test_s3_fifo_splits_into_the_tails_queue():
    policy, tail, head = ThreeQueues(), Entry(), Entry()
    use(policy, tail, 2)
    policy.split(head, tail)
    assert head.note == tail.note
    assert head in policy


@pytest.mark.parametrize("make", [LeastFrequentlyUsed, GreedyDual, SegmentedLRU, AdaptiveReplacement, ThreeQueues])
def test_nothing_but_leaves_under_lease_is_our_bug(make):
    policy, parent = make(), Entry()
    Entry(parent)
    use(policy, parent)
    with pytest.raises((AssertionError, IndexError)):
        policy.choose()
