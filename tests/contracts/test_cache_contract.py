"""Both variants of the cache, against the cache contract."""

from anaphora.core.cache import Cache, PrefixCache
from anaphora.core.no_reuse import NoReuse
from anaphora.testing.cache_contract import CacheContract


class TestPrefixCache(CacheContract):
    def make_cache(self, num_slots: int) -> Cache:
        return PrefixCache(num_slots, clock=lambda: 0.0)


class TestNoReuse(CacheContract):
    def make_cache(self, num_slots: int) -> Cache:
        return NoReuse(num_slots, clock=lambda: 0.0)
