"""Isolation by digest: every field counts, and no two different sets of fields meet."""

import itertools

from anaphora.core.namespace import namespace_of


def test_equal_fields_give_the_same_namespace():
    first = namespace_of(model_digest=b"m", tenant="t", salt=b"s", adapter_digest=b"a")
    assert first == namespace_of(model_digest=b"m", tenant="t", salt=b"s", adapter_digest=b"a")
    assert len(first) == 32


def test_a_namespace_is_the_same_in_every_process_and_version():
    assert namespace_of(model_digest=b"m", tenant="t").hex() == (
        "dae6131ef7ccb513f910551a64e47b268e702b070c21d3d0140ab019a616da93"
    )


def test_no_two_different_sets_of_fields_collide_by_moving_bytes_between_them():
    values = ["", "a", "b", "ab", "ba", "aba", "salt", "tenant", "\x00"]
    spaces = {
        namespace_of(model_digest=m.encode(), tenant=t, salt=s.encode(), adapter_digest=a.encode())
        for m, t, s, a in itertools.product(values, repeat=4)
    }
    assert len(spaces) == len(values) ** 4


def test_tenants_with_broken_unicode_are_kept_apart():
    names = ["\ud800", "\ud801", "?", "\ufffd"]
    assert len({namespace_of(model_digest=b"m", tenant=name) for name in names}) == 4
