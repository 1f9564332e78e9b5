"""Which tree a prompt is looked up in: one for each namespace, and one for each that shares a region below its end."""

from dataclasses import replace

from anaphora.core.index import NO_TOKENS, Node, Tokens, Walk, new_root, walk
from anaphora.core.namespace import Namespace
from anaphora.core.region import Regions


class Forest:
    """All trees of the index. It knows roots and grafts; what is leased, kept or evictable is not its business."""

    def __init__(self) -> None:
        self.roots: dict[Namespace, Node] = {}
        self._grafts: dict[Namespace, set[Node]] = {}  # those of cleared trees too, while a lease holds them
        self._shared_of: dict[Namespace, Namespace] = {}
        self._regions: dict[Namespace, Regions] = {}

    def connect(self, namespace: Namespace, shared: Namespace) -> None:
        """Let a namespace use the regions declared under another."""
        assert shared != namespace, "a shared namespace is nobody's own"
        assert self._shared_of.setdefault(namespace, shared) == shared, "a namespace shares with one other"

    def share(self, shared: Namespace, tokens: Tokens) -> None:
        """Declare a region."""
        self._regions.setdefault(shared, Regions()).add(tokens)

    def num_shared(self, namespace: Namespace, tokens: Tokens) -> int:
        """Count the tokens of the region that a prompt opens with, 0 if there is none."""
        shared = self._shared_of.get(namespace)
        regions = None if shared is None else self._regions.get(shared)
        return 0 if regions is None else regions.num_shared(tokens)

    def find(self, namespace: Namespace, tokens: Tokens, num_shared: int) -> Walk | None:
        """Follow a prompt down its tree, the shared one as far as it is shared. None: there is no tree."""
        root = self.roots.get(self._home_of(namespace, num_shared))
        if root is None:
            return None
        if not num_shared:
            return walk(root, tokens)
        found = walk(root, tokens[:num_shared])
        if found.num_tokens < num_shared or found.num_within < found.node.num_tokens:
            return found
        graft = found.node.grafts.get(namespace)
        if graft is None:
            return found
        beyond = walk(graft, tokens[num_shared:])
        if not beyond.num_tokens:  # nothing is ever leased up to a graft
            return replace(found, has_diverged=beyond.has_diverged)
        return replace(beyond, num_tokens=num_shared + beyond.num_tokens)

    def plant(self, namespace: Namespace, num_shared: int) -> Node:
        """Start the tree in which a prompt will be found. Returns its root."""
        home = self._home_of(namespace, num_shared)
        assert home not in self.roots, "a tree was planted twice"
        root = self.roots[home] = new_root(home)
        return root

    def graft(self, namespace: Namespace, above: Node) -> Node:
        """Start a namespace's tree below the end of a shared region. Returns its root."""
        graft = Node(namespace, above, NO_TOKENS, ())
        graft.priority = above.priority
        self._grafts.setdefault(namespace, set()).add(graft)
        return graft

    def remove(self, node: Node) -> None:
        """Take a root or node out. Nothing may hang below it."""
        assert node.is_leaf, "what hangs below would be lost"
        if node.parent is None:
            del self.roots[node.namespace]
            return
        if node.is_root:
            self._grafts[node.namespace].remove(node)
            if not self._grafts[node.namespace]:
                del self._grafts[node.namespace]
        node.detach()

    def hide(self, namespace: Namespace | None) -> list[Node]:
        """Let nobody find a namespace any more, or (None) anything. Returns the roots of what is hidden."""
        hidden = [root for name, root in self.roots.items() if namespace in (None, name)]
        for root in hidden:
            del self.roots[root.namespace]
        if namespace is not None:
            hidden += self._grafts.get(namespace, ())
        return hidden

    def check(self, found: set[Node]) -> None:
        """Assert that these are all grafts there are."""
        assert found == {graft for some in self._grafts.values() for graft in some}, "a graft got lost"
        assert all(self._grafts.values()), "a namespace without grafts was kept"

    def _home_of(self, namespace: Namespace, num_shared: int) -> Namespace:
        return self._shared_of[namespace] if num_shared else namespace
