"""Lists of leaves by rank: order, parking of nodes with children, and the memory of what is gone."""

import pytest

from anaphora.core.leaf_lists import LeafLists, Memory
from anaphora.testing.policy_contract import Entry


def hang(parent, **names):
    return Entry(parent, **names)


def drop(lists, entry):
    lists.remove(entry)
    if entry.parent is not None:
        entry.parent.children.remove(entry)


def test_the_oldest_of_a_rank_comes_first():
    lists, entries = LeafLists(), [Entry() for _ in range(3)]
    for entry in entries:
        lists.add(entry, 7)
    assert lists.oldest(7) is entries[0]
    drop(lists, entries[0])
    assert lists.oldest(7) is entries[1]


def test_a_node_with_children_waits_for_them_and_is_then_the_oldest_again():
    lists, parent = LeafLists(), Entry()
    child, other = hang(parent), Entry()
    lists.add(parent, 0)
    lists.add(other, 0)
    lists.add(child, 1)
    assert lists.oldest(0) is other
    assert parent in lists
    drop(lists, child)
    assert lists.oldest(0) is parent
    drop(lists, parent)
    assert lists.oldest(0) is other


def test_a_parent_with_one_more_child_goes_on_waiting():
    lists, parent = LeafLists(), Entry()
    children = [hang(parent), hang(parent)]
    for entry in (parent, *children):
        lists.add(entry, 0)
    drop(lists, children[0])
    assert lists.oldest(0) is children[1]
    drop(lists, children[1])
    assert lists.oldest(0) is parent


def test_a_parked_node_can_be_taken_out():
    lists, parent = LeafLists(), Entry()
    child = hang(parent)
    lists.add(parent, 0)
    lists.add(child, 1)
    assert lists.oldest(0) is None
    lists.remove(child)
    lists.remove(parent)
    assert lists.oldest(0) is None
    assert len(lists) == 0


def test_tokens_are_counted_by_rank_as_they_came_in():
    lists, entry = LeafLists(), Entry(num_tokens=5)
    assert lists.num_tokens(1) == 0
    lists.add(entry, 1)
    entry.num_tokens = 3
    assert lists.num_tokens(1) == 5
    lists.move(entry, 2)
    assert (lists.num_tokens(1), lists.num_tokens(2)) == (0, 3)
    assert lists.ranks[1].is_empty


def test_admitting_twice_is_our_bug():
    lists, entry = LeafLists(), Entry()
    lists.add(entry, 0)
    with pytest.raises(AssertionError, match="admitted twice"):
        lists.add(entry, 0)


def test_memory_forgets_what_was_written_longest_ago():
    memory = Memory()
    limit = Memory.NUM_AT_LEAST
    for fingerprint in range(limit):
        memory.write(fingerprint, "note", num_nodes=0)
    memory.write(0, "again", num_nodes=0)
    memory.write(limit, "new", num_nodes=0)
    assert memory.read(0) == "again"
    assert memory.read(1) is None
    assert memory.read(2) == "note"


def test_memory_grows_with_the_nodes_that_are_held():
    memory, num_nodes = Memory(num_for_each_node=2), Memory.NUM_AT_LEAST
    for fingerprint in range(2 * num_nodes + 1):
        memory.write(fingerprint, "note", num_nodes=num_nodes)
    assert memory.read(0) is None
    assert memory.read(1) == "note"
