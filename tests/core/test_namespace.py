"""Isolation by digest: every field counts, and no two different sets of fields meet."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from anaphora.core.namespace import namespace_of, shared_namespace_of


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


names = st.binary(max_size=4)


@given(st.tuples(names, names, names, names), st.tuples(names, names, names, names))
def test_namespaces_are_equal_only_where_every_field_is(one, other):
    spaces = [
        namespace_of(model_digest=model, tenant=tenant.decode("latin-1"), salt=salt, adapter_digest=adapter)
        for model, tenant, salt, adapter in (one, other)
    ]
    assert (spaces[0] == spaces[1]) == (one == other)


@given(names)
def test_an_adapter_named_like_a_tenants_salt_is_another_key(name):
    text = name.decode("latin-1")
    plain = namespace_of(model_digest=b"m", tenant="t")
    kinds = [
        namespace_of(model_digest=b"m", tenant="t", salt=name),
        namespace_of(model_digest=b"m", tenant="t", adapter_digest=name),
        namespace_of(model_digest=b"m", tenant="t" + text),
        namespace_of(model_digest=b"m" + name, tenant="t"),
    ]
    assert len({plain, *kinds}) == (5 if name else 1)


@given(names, names, names)
def test_what_is_shared_is_never_a_tenants_namespace(model, salt, tenant):
    shared = shared_namespace_of(model_digest=model, adapter_digest=salt)
    name = tenant.decode("latin-1")
    assert shared != namespace_of(model_digest=model, tenant=name, salt=salt)
    assert shared != namespace_of(model_digest=model, tenant=name, adapter_digest=salt)
    assert shared != namespace_of(model_digest=model, tenant="shared", adapter_digest=salt)
