"""Shared regions: prefixes that the operator declared shared, such as a system prompt.

    tenant red    SYSTEM PROMPT | red's conversation          index    SYSTEM PROMPT ──┬── (red's tree)
    tenant blue   SYSTEM PROMPT | blue's conversation                   shared         └── (blue's tree)

A prompt that opens with all of a region shares exactly that; one that opens with a part of it shares nothing.
"""

import numpy as np

from anaphora.core.index import Tokens


class Regions:
    """The declared prefixes of one model. Longest first, so that the first that matches is the one that counts."""

    def __init__(self) -> None:
        self._prefixes: list[Tokens] = []

    def add(self, tokens: Tokens) -> None:
        """Declare a prefix shared."""
        assert tokens.size, "nothing can't be shared"
        if not any(np.array_equal(tokens, known) for known in self._prefixes):
            self._prefixes.append(tokens.copy())
            self._prefixes.sort(key=len, reverse=True)

    def num_shared(self, tokens: Tokens) -> int:
        """Count the tokens of the longest region that a prompt opens with, 0 if with none.

        Cost: one comparison for each region that opens with the same token.
        """
        for prefix in self._prefixes:
            if len(prefix) <= len(tokens) and prefix[0] == tokens[0] and np.array_equal(prefix, tokens[: len(prefix)]):
                return len(prefix)
        return 0
