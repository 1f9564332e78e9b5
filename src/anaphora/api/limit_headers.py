"""The headers that tell a client how much room there is, in each host's own names. Pure.

A host counts requests and tokens a minute; here the limits are what fits at once: requests that run or wait, and tokens
of keys and values. What is cached and can be evicted is room. Nothing has to be waited out, so the reset is now while
there is room, and a second from now while there is none.
"""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from anaphora.api.errors import Protocol
from anaphora.engine.request import Tenant

OPENAI_VERSION = "2020-10-01"
"""The version of OpenAI's API that all its clients speak."""

_ORGANIZATIONS = uuid.UUID("6f0e3b1c-6f6e-5d0b-9f5e-0c6c5a1d7a11")
"""A name space of our own."""


@dataclass(frozen=True, slots=True)
class Room:
    """How much fits, and how much of it is left."""

    num_requests: int
    num_requests_left: int
    num_tokens: int
    num_tokens_left: int


def limit_headers(protocol: Protocol, room: Room, now: datetime) -> dict[str, str]:
    """Limits, what is left, and when there is more."""
    kinds = {
        "requests": (room.num_requests, max(0, room.num_requests_left)),
        "tokens": (room.num_tokens, max(0, room.num_tokens_left)),
    }
    headers: dict[str, str] = {}
    if protocol is Protocol.OPENAI:
        for kind, (limit, left) in kinds.items():
            values = {"limit": str(limit), "remaining": str(left), "reset": "0s" if left else "1s"}
            headers |= {f"x-ratelimit-{name}-{kind}": value for name, value in values.items()}
        return headers
    kinds |= {"input-tokens": kinds["tokens"], "output-tokens": kinds["tokens"]}
    for kind, (limit, left) in kinds.items():
        reset = (now if left else now + timedelta(seconds=1)).astimezone(UTC)
        values = {"limit": str(limit), "remaining": str(left), "reset": reset.strftime("%Y-%m-%dT%H:%M:%SZ")}
        headers |= {f"anthropic-ratelimit-{kind}-{name}": value for name, value in values.items()}
    return headers


def host_headers(protocol: Protocol, tenant: Tenant | None, processing_s: float) -> dict[str, str]:
    """What each host says of itself and of who asked. Organizations have ids that say nothing; None: nobody known."""
    whose = None if tenant is None else uuid.uuid5(_ORGANIZATIONS, tenant)
    if protocol is Protocol.ANTHROPIC:
        return {} if whose is None else {"anthropic-organization-id": str(whose)}
    headers = {"openai-processing-ms": str(round(processing_s * 1000)), "openai-version": OPENAI_VERSION}
    return headers if whose is None else {**headers, "openai-organization": f"org-{whose.hex}"}
