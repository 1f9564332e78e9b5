"""Least recently used: the order itself. What any policy must do is in the policy contract."""

import pytest

from anaphora.core.policy import POLICIES, LeastRecentlyUsed
from anaphora.testing.policy_contract import Entry


def test_the_entry_admitted_first_is_chosen_first():
    policy, entries = LeastRecentlyUsed(), [Entry() for _ in range(3)]
    for entry in entries:
        policy.admit(entry)
    order = []
    while len(policy):
        order.append(policy.choose())
        policy.withdraw(order[-1])
    assert order == entries


def test_use_puts_an_entry_last():
    policy, used, unused = LeastRecentlyUsed(), Entry(), Entry()
    policy.admit(used)
    policy.admit(unused)
    policy.withdraw(used)
    policy.admit(used)
    assert policy.choose() is unused


def test_the_tail_of_a_split_keeps_its_place():
    policy, tail, newer, head = LeastRecentlyUsed(), Entry(), Entry(), Entry()
    policy.admit(tail)
    policy.admit(newer)
    policy.split(head, tail)
    policy.withdraw(head)
    assert policy.choose() is tail


def test_admitting_twice_is_our_bug():
    policy, entry = LeastRecentlyUsed(), Entry()
    policy.admit(entry)
    with pytest.raises(AssertionError, match="admitted twice"):
        policy.admit(entry)


def test_splitting_what_is_not_held_is_our_bug():
    with pytest.raises(AssertionError, match="not held here"):
        LeastRecentlyUsed().split(Entry(), Entry())


def test_policies_are_found_by_name():
    assert isinstance(POLICIES["lru"](), LeastRecentlyUsed)
