"""The index: token prefix -> extents. A radix tree for each namespace; its nodes hold whole runs of tokens.

root ── "the quick " ──┬── "brown fox"      a path from the root spells a cached prompt;
                       └── "red hen"        children differ in their first token

Below the end of a shared prefix each namespace goes on in a tree of its own, whose root is a graft:

shared root ── "SYSTEM" ──┬── (graft of one tenant) ── "hello"
                          └── (graft of another) ───── "good day"
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphora.core.extent import Extent, coalesce, count_slots, cut
from anaphora.core.namespace import Namespace
from anaphora.core.promise import Promise

Tokens = NDArray[np.int32]

FINGERPRINT_TOKENS = 64
"""Enough that few nodes share a fingerprint; few enough that a node that comes back longer has its old one."""

PLACE_TOKENS = 16
"""So many tokens in front of a place, with the one behind it, tell it from others well enough for what is only told."""

_NO_CHILDREN: Mapping[int, "Node"] = MappingProxyType({})
_NO_GRAFTS: Mapping[Namespace, "Node"] = MappingProxyType({})
NO_TOKENS: Tokens = np.empty(0, dtype=np.int32)


class Node:
    """A run of tokens and the slots in which their keys and values stand.

    `tokens` is the node's own memory, never a view into a request's buffer, which would keep that buffer
    alive. A root is a node without tokens; one with a parent is a graft.
    """

    __slots__ = (
        "children",
        "extents",
        "grafts",
        "is_cleared",
        "namespace",
        "note",
        "num_held",
        "num_kept",
        "num_leases",
        "parent",
        "priority",
        "promise",
        "tokens",
        "used_at",
    )

    def __init__(
        self, namespace: Namespace, parent: "Node | None", tokens: Tokens, extents: tuple[Extent, ...]
    ) -> None:
        self.namespace = namespace
        self.parent = parent
        self.tokens = tokens.copy()
        self.extents = extents
        self.children = _NO_CHILDREN  # first token -> node; a dict of its own only while there are any
        self.grafts = _NO_GRAFTS  # namespace -> root of its tree below this node
        self.num_leases = 0  # leases whose published part ends with this node
        self.num_held = 0  # num_leases + nodes below with num_held > 0; the node is leased while it is above 0
        self.promise: Promise | None = None  # to keep what ends with this node
        self.num_kept = 0  # 1 for its promise + nodes below with num_kept > 0; the node is kept while it is above 0
        self.priority = 0  # never above the parent's; see `Priority`
        self.note: object = None  # the policy's own; see `Evictable`
        self.used_at = 0.0  # the cache's clock when its last lease ended
        self.is_cleared = False  # no longer found by anyone; its slots are freed with its last lease
        if parent is not None:
            self.is_cleared = parent.is_cleared
            self._hang_below(parent)

    @property
    def key(self) -> int:
        """The first token, under which the parent finds this node."""
        return int(self.tokens[0])

    @property
    def graft_key(self) -> Namespace:
        """What the parent finds a graft by: nobody asks for that of a cleared one."""
        return Namespace(b"cleared %d" % id(self)) if self.is_cleared else self.namespace

    @property
    def is_root(self) -> bool:
        """Whether it has no tokens: the root of a tree, or a graft."""
        return not len(self.tokens)

    @property
    def below(self) -> Iterator["Node"]:
        """Children and grafts."""
        return chain(self.children.values(), self.grafts.values())

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def is_leaf(self) -> bool:
        return not self.children and not self.grafts

    @property
    def fingerprint(self) -> int:
        """A number made of the namespace, the first tokens and the parent's last: what a policy may remember of a node
        that is gone."""
        before = b"" if self.parent is None else self.parent.tokens[-FINGERPRINT_TOKENS:].tobytes()
        return hash((self.namespace, before, self.tokens[:FINGERPRINT_TOKENS].tobytes()))

    def split(self, num_tokens: int) -> "Node":
        """Move the first `num_tokens` tokens into a new node above this one, and return that.

        This node stays the tail, so whoever leases it still ends where it did. No slot moves.
        Cost: a copy of the tokens.
        """
        assert self.parent is not None, "a root has nothing to split"
        assert 0 < num_tokens < self.num_tokens
        front, back = cut(self.extents, num_tokens)
        head = Node(self.namespace, self.parent, self.tokens[:num_tokens], front)  # takes this node's key
        self.tokens, self.extents = self.tokens[num_tokens:].copy(), back
        self.parent = head
        self._hang_below(head)
        head.num_held = 1 if self.num_held else 0
        head.num_kept = 1 if self.num_kept else 0
        head.note, head.used_at, head.priority = self.note, self.used_at, self.priority
        return head

    def extend(self, tokens: Tokens, extents: tuple[Extent, ...]) -> None:
        """Add tokens at the end of a leaf. Cost: a copy of the node's tokens."""
        assert self.is_leaf, "the end of an inner node is not free"
        self.tokens = np.concatenate((self.tokens, tokens))
        self.extents = coalesce((*self.extents, *extents))

    def trim(self, num_tokens: int) -> tuple[Extent, ...]:
        """Cut the last `num_tokens` tokens off a leaf and return their slots.

        What is left of the tokens is a view of the node's own memory until half of that is wasted, so that
        trimming a long leaf bit by bit costs O(1) for each token, amortised.
        """
        assert self.is_leaf, "the end of an inner node is not free"
        assert 0 < num_tokens < self.num_tokens
        num_kept = self.num_tokens - num_tokens
        self.extents, dropped = cut(self.extents, num_kept)
        memory = self.tokens if self.tokens.base is None else self.tokens.base
        self.tokens = self.tokens[:num_kept]
        if 2 * num_kept < memory.size:
            self.tokens = self.tokens.copy()
        return dropped

    def absorb(self, child: "Node") -> None:
        """Take an only child's tokens and slots in; undoes a split. Cost: a copy of both nodes' tokens."""
        assert self.children == {child.key: child}, "only an only child can be absorbed"
        assert not child.num_held, "a lease ends there"
        child.detach()
        self.extend(child.tokens, child.extents)

    def detach(self) -> None:
        """Take this node out of its parent's children, or grafts."""
        parent, siblings = self.parent, self._siblings()
        assert parent is not None
        if self.is_root:
            del siblings[self.graft_key]
            parent.grafts = parent.grafts or _NO_GRAFTS
        else:
            del siblings[self.key]
            parent.children = parent.children or _NO_CHILDREN
        self.parent = None

    def mark_cleared(self) -> None:
        """Note that nobody finds this node any more."""
        if self.parent is None or not self.is_root:
            self.is_cleared = True
            return
        siblings = self._siblings()
        del siblings[self.graft_key]
        self.is_cleared = True
        siblings[self.graft_key] = self

    def _siblings(self) -> dict[Any, "Node"]:
        assert self.parent is not None
        siblings = self.parent.grafts if self.is_root else self.parent.children
        assert isinstance(siblings, dict), "the parent does not know this node"
        return siblings

    def _hang_below(self, parent: "Node") -> None:
        if self.is_root:
            if not isinstance(parent.grafts, dict):
                parent.grafts = {}
            parent.grafts[self.graft_key] = self
            return
        if not isinstance(parent.children, dict):
            parent.children = {}
        parent.children[self.key] = self


def new_root(namespace: Namespace) -> Node:
    """Build an empty tree for a namespace."""
    return Node(namespace, None, NO_TOKENS, ())


@dataclass(frozen=True, slots=True)
class Walk:
    """How far tokens could be followed down the tree."""

    node: Node  # the last node of which a token matched, or where the walk began
    num_within: int  # tokens of that node that matched; fewer than it has if the walk ended inside it
    num_tokens: int  # tokens that matched in all
    has_diverged: bool  # the tree goes on from here, with other tokens


def walk(start: Node, tokens: Tokens) -> Walk:
    """Follow tokens down the tree from the end of a node. Changes nothing.

    Cost: one vectorised comparison of the tokens, and O(1) for each node on the way.
    """
    node, num_within, position = start, start.num_tokens, 0
    spelled, size = tokens.tobytes(), tokens.itemsize  # so that a node that matches whole costs one call
    ids, num_tokens = memoryview(spelled).cast("i"), len(tokens)
    while position < num_tokens:
        child = node.children.get(ids[position])
        if child is None:
            break
        node = child
        if spelled.startswith(child.tokens.data, size * position):
            num_within = len(child.tokens)
            position += num_within
            continue
        num_within = common_length(child.tokens, tokens[position:])
        position += num_within
        break
    goes_on = num_within < node.num_tokens or bool(node.children)
    return Walk(node, num_within, position, has_diverged=goes_on and position < len(tokens))


def common_length(left: Tokens, right: Tokens) -> int:
    """Count the tokens that open both. Cost: one vectorised comparison."""
    length = min(len(left), len(right))
    if not length:
        return 0
    differs = left[:length] != right[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


def extents_up_to(node: Node, num_within: int) -> tuple[Extent, ...]:
    """List the slots of the path from the root to `num_within` tokens into a node, in token order.

    Cost: O(extents on the path).
    """
    pieces = [node.extents if num_within == node.num_tokens else cut(node.extents, num_within)[0]]
    above = node.parent
    while above is not None:
        pieces.append(above.extents)
        above = above.parent
    return coalesce(chain.from_iterable(reversed(pieces)))


def place_of(namespace: Namespace, tokens: Tokens, position: int) -> int:
    """A number for a place in a prompt: whose it is, a few tokens in front of it, and the one behind it."""
    before = tokens[max(0, position - PLACE_TOKENS) : position].tobytes()
    return hash((namespace, before, int(tokens[position])))


def place_in(node: Node, num_within: int) -> int:
    """The same for the place behind a node's first `num_within` tokens, which has others behind it."""
    before = node.tokens[max(0, num_within - PLACE_TOKENS) : num_within].tobytes()
    size, above = node.tokens.itemsize, node.parent
    while (num_missing := PLACE_TOKENS - len(before) // size) and above is not None:
        before = above.tokens[-num_missing:].tobytes() + before
        above = above.parent
    return hash((node.namespace, before, int(node.tokens[num_within])))


def check_node(node: Node) -> None:
    """Assert what must hold for one node and its children. Cost: O(children + extents)."""
    assert node.num_tokens == count_slots(node.extents), "a node's tokens and slots differ in number"
    assert node.extents == coalesce(node.extents), "a node's extents were not joined"
    assert node.num_held == node.num_leases + sum(1 for c in node.below if c.num_held > 0)
    assert node.num_kept == (node.promise is not None) + sum(1 for c in node.below if c.num_kept > 0)
    assert node.promise is None or (node.promise.node is node and not node.is_root), "a promise is for another node"
    assert not node.is_cleared or node.num_held > 0, "a cleared node outlived its leases"
    assert not node.is_cleared or not node.num_kept, "a promise outlived what it was for"
    assert node.parent is None or all(c.priority <= node.priority for c in node.below), "a priority above the parent's"
    assert node.tokens.base is None or node.tokens.base.size <= 2 * node.num_tokens, "memory is wasted"
    for key, child in node.children.items():
        assert child.num_tokens > 0, "a node without tokens"
        assert child.parent is node, "a child has another parent"
        assert child.key == key, "a child is not found by its first token"
        assert child.namespace == node.namespace, "namespaces mix in one tree"
        assert child.is_cleared == node.is_cleared, "a tree is cleared as a whole"
    for graft_key, graft in node.grafts.items():
        assert graft.is_root, "a graft with tokens"
        assert graft.parent is node, "a graft has another parent"
        assert graft.graft_key == graft_key, "a graft is not found by its namespace"
        assert graft.namespace != node.namespace, "a graft of its own tree"
        assert graft.is_cleared >= node.is_cleared, "a graft is cleared with what it hangs from"
        assert not graft.is_leaf, "an empty graft was kept"
        assert not graft.num_leases, "a lease ends in a graft"
