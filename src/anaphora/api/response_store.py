"""Responses that were asked to be kept: what was said, so that a later request can go on from there.

In memory, bounded, apart for each tenant; the oldest go first, and all go when the server stops. Keeping a
response keeps no keys and values: these live by the cache's own rules.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anaphora.engine.request import Tenant
from anaphora.errors import RequestError, UnknownResponse

MAX_BYTES = 256 * 2**20
"""Some thousand long conversations."""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response and the items that led to it, earlier turns included."""

    items: tuple[Mapping[str, Any], ...]
    response: Mapping[str, Any]


class ResponseStore:
    """Kept responses by id. Changed on the event loop alone; looked up from any thread."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[tuple[Tenant, str], tuple[KeptResponse, int]] = OrderedDict()

    def keep(self, tenant: Tenant, items: Sequence[Mapping[str, Any]], response: Mapping[str, Any]) -> None:
        """Keep a response. Forgets the oldest where there is no room."""
        kept = KeptResponse(tuple(items), response)
        size = len(json.dumps([kept.items, kept.response], ensure_ascii=False))
        self._kept[tenant, response["id"]] = (kept, size)
        self._num_bytes += size
        while self._num_bytes > self._max_bytes and self._kept:
            _, (_, old) = self._kept.popitem(last=False)
            self._num_bytes -= old

    def get(self, tenant: Tenant, response_id: str) -> KeptResponse:
        """The response of that id.

        Raises: UnknownResponse.
        """
        found = self._kept.get((tenant, response_id))
        if found is None:
            raise UnknownResponse(f"There is no response {response_id[:80]!r} here (any more).")
        return found[0]

    def delete(self, tenant: Tenant, response_id: str) -> None:
        """Forget a response.

        Raises: UnknownResponse.
        """
        self.get(tenant, response_id)
        _, size = self._kept.pop((tenant, response_id))
        self._num_bytes -= size

    def items_to_continue(self, tenant: Tenant, response_id: str | None) -> tuple[Mapping[str, Any], ...]:
        """Everything said up to and including that response; nothing for None.

        Raises: RequestError naming the field.
        """
        if response_id is None:
            return ()
        try:
            kept = self.get(tenant, response_id)
        except UnknownResponse as error:
            raise RequestError(f"previous_response_id: {error}", field="previous_response_id") from None
        return (*kept.items, *kept.response["output"])
