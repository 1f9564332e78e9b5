"""What every eviction policy must do. Subclass `PolicyContract` in a test file, once for each policy.

class TestMyPolicy(PolicyContract):
    def make_policy(self) -> Policy:
        return MyPolicy()
"""

import random
from typing import Protocol

from anaphora.core.policy import Policy


class Entry:
    """A stand-in for an index node."""

    def __init__(self, parent: "Entry | None" = None, *, num_tokens: int = 1) -> None:
        self.parent = parent
        self.num_tokens = num_tokens
        self.children: list[Entry] = []
        self.num_leases = 0
        self.note: object = None
        self.used_at = 0.0
        if parent is not None:
            parent.children.append(self)

    @property
    def is_leaf(self) -> bool:
        return not self.children

    @property
    def fingerprint(self) -> int:
        return id(self)

    @property
    def path(self) -> "list[Entry]":
        """This entry and those above it, leaf first."""
        return [self, *self.parent.path] if self.parent else [self]


class _MakesPolicies(Protocol):
    def make_policy(self) -> Policy: ...


class PolicyContract:
    """Tests that any policy passes. `make_policy` returns a new, empty one."""

    def test_a_new_policy_is_empty(self: _MakesPolicies) -> None:
        policy = self.make_policy()
        assert len(policy) == 0
        assert Entry() not in policy

    def test_it_holds_what_was_admitted_until_it_is_withdrawn(self: _MakesPolicies) -> None:
        policy, kept, gone = self.make_policy(), Entry(), Entry()
        policy.admit(kept)
        policy.admit(gone)
        policy.withdraw(gone)
        assert kept in policy
        assert gone not in policy
        assert len(policy) == 1
        assert policy.choose() is kept

    def test_choosing_changes_nothing(self: _MakesPolicies) -> None:
        policy, entries = self.make_policy(), [Entry(num_tokens=n) for n in (3, 1, 2)]
        for entry in entries:
            policy.admit(entry)
        assert policy.choose() is policy.choose()
        assert len(policy) == 3

    def test_it_chooses_the_leaf_before_its_ancestors(self: _MakesPolicies) -> None:
        policy, root = self.make_policy(), Entry()
        leaf = Entry(Entry(root, num_tokens=5), num_tokens=9)
        for entry in leaf.path:
            policy.admit(entry)
        assert [_evict(policy) for _ in range(3)] == leaf.path

    def test_a_split_head_is_held_and_the_tail_stays(self: _MakesPolicies) -> None:
        policy, tail = self.make_policy(), Entry()
        policy.admit(tail)
        head = Entry()
        tail.parent, head.children = head, [tail]
        policy.split(head, tail)
        assert head in policy
        policy.withdraw(head)
        assert head not in policy
        assert policy.choose() is tail

    def test_over_random_use_it_chooses_unleased_leaves_only_and_in_the_end_all_of_them(
        self: _MakesPolicies,
    ) -> None:
        for seed in range(20):
            rng, policy = random.Random(seed), self.make_policy()
            entries = [Entry()]
            policy.admit(entries[0])
            for _ in range(200):
                if rng.random() < 0.4 or not entries:
                    entries.append(_publish(policy, rng.choice([*entries, None])))
                elif rng.random() < 0.6:
                    leased = rng.choice(entries).path
                    _lease(policy, leased)
                    _release(policy, leased)
                else:
                    entries.remove(_evict(policy))
                assert len(policy) == len(entries)
            while entries:
                entries.remove(_evict(policy))
            assert len(policy) == 0


def _publish(policy: Policy, parent: Entry | None) -> Entry:
    """Hang a new entry below one that is leased for it, then release the path."""
    above = parent.path if parent else []
    _lease(policy, above)
    entry = Entry(parent)
    _release(policy, [entry, *above])
    return entry


def _lease(policy: Policy, path: list[Entry]) -> None:
    for entry in path:
        policy.withdraw(entry)
        entry.num_leases += 1


def _release(policy: Policy, path: list[Entry]) -> None:
    for entry in path:
        entry.num_leases = 0
        entry.used_at += 1.0
        policy.admit(entry)


def _evict(policy: Policy) -> Entry:
    victim = policy.choose()
    assert isinstance(victim, Entry)
    assert victim.is_leaf, "chose a node that others hang from"
    assert victim.num_leases == 0, "chose a leased node"
    policy.withdraw(victim)
    if victim.parent is not None:
        victim.parent.children.remove(victim)
    return victim
