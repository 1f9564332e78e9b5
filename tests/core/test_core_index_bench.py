"""The index benchmark runs, and what it counts (not what it times) is as promised."""

from anaphora.bench.core_index import extents_per_lease, index_bytes_per_token


def test_a_lease_keeps_few_extents_in_a_full_pool():
    assert extents_per_lease(num_turns=600) < 25


def test_a_cached_token_costs_at_most_16_bytes_of_index():
    assert 4 < index_bytes_per_token(400_000) <= 16
