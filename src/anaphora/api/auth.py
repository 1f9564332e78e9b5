"""Who is asking: API keys to tenants. The key alone decides; nothing a client may choose does."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from anaphora.engine.request import DEFAULT_TENANT, Tenant
from anaphora.errors import NotAuthenticated


@dataclass(frozen=True, slots=True)
class Keys:
    """Known keys, as digests. Without any, everyone is the default tenant."""

    tenants: Mapping[bytes, Tenant]

    def tenant_of(self, headers: Mapping[str, str]) -> Tenant:
        """The tenant whose key the request carries, in `Authorization: Bearer` or `x-api-key`.

        Raises: NotAuthenticated.
        Cost: one comparison with every key, whichever fits, so that time says nothing about keys.
        """
        if not self.tenants:
            return DEFAULT_TENANT
        key = key_of(headers)
        if key is None:
            raise NotAuthenticated("No API key was given. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
        digest = digest_of(key)
        found: Tenant | None = None
        for known, tenant in self.tenants.items():
            if hmac.compare_digest(known, digest):
                found = tenant
        if found is None:
            raise NotAuthenticated("This API key is not known here.")
        return found


def keys_of(tenants: Mapping[str, str]) -> Keys:
    """Keys from a mapping of key to tenant name."""
    return Keys({digest_of(key): Tenant(tenant) for key, tenant in tenants.items()})


def key_of(headers: Mapping[str, str]) -> str | None:
    """The key a request carries, if any."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return headers.get("x-api-key") or None


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
