"""Isolation. Prompts share cache only inside one namespace: a digest of all that must be equal."""

import hashlib
from collections.abc import Mapping
from typing import NewType

Namespace = NewType("Namespace", bytes)
"""32 bytes. Equal only where model, adapter, tenant and salt are all equal."""


def namespace_of(*, model_digest: bytes, tenant: str, salt: bytes = b"", adapter_digest: bytes = b"") -> Namespace:
    """Derive the namespace of a model, an adapter, a tenant and a secret salt.

    Each field goes in with its name and both lengths in front, so no two different sets of fields give the
    same bytes to the hash. Lone surrogates in a tenant's name are kept apart too.
    """
    fields = {
        b"model": model_digest,
        b"adapter": adapter_digest,
        b"tenant": tenant.encode("utf-8", "surrogatepass"),
        b"salt": salt,
    }
    return _digest_of(fields, domain=b"anaphora.space.1")


def shared_namespace_of(*, model_digest: bytes, adapter_digest: bytes = b"") -> Namespace:
    """Derive the namespace of what the operator declared shared, for a model and an adapter. No tenant's equals it."""
    return _digest_of({b"model": model_digest, b"adapter": adapter_digest}, domain=b"anaphora.share.1")


def _digest_of(fields: Mapping[bytes, bytes], *, domain: bytes) -> Namespace:
    digest = hashlib.blake2b(digest_size=32, person=domain)
    for name, value in fields.items():
        digest.update(len(name).to_bytes(8, "little") + name)
        digest.update(len(value).to_bytes(8, "little") + value)
    return Namespace(digest.digest())
