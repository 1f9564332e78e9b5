"""One authenticated HTTP request, and what answers it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from anaphora.api.errors import Protocol
from anaphora.engine.request import Tenant


@dataclass(frozen=True, slots=True)
class Incoming:
    """One authenticated HTTP request, or a batch's line in the shape of one."""

    request: Request
    endpoint: str
    protocol: Protocol
    request_id: str
    tenant: Tenant
    started_s: float
    is_batched: bool = False  # it can wait, and what it leaves in the cache goes first


Handler = Callable[[Incoming], Awaitable[Response]]
