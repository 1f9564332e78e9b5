"""Which policy evicts where none is named. On its own, so that settings can be read without loading the policies."""

DEFAULT_POLICY = "blend"
"""Never below LRU on any recorded trace at any size tried, and of such policies the one that hits most
(docs/experiments.md)."""
