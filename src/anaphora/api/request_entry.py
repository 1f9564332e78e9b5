"""What `GET /v1/anaphora/requests/{id}` tells of a remembered request."""

from typing import Any

from anaphora.api.account import Account
from anaphora.api.explaining import excerpts, told
from anaphora.explain.memory import Asked
from anaphora.explain.why import Miss


def entry_of(asked: Asked) -> dict[str, Any]:
    """What is remembered of a request, for its own tenant."""
    miss, account = asked.facts.get("miss"), asked.facts.get("account")
    entry: dict[str, Any] = {
        "id": asked.request_id,
        "request_id": asked.facts["request_id"],
        "object": "anaphora.request",
        "created": int(float(str(asked.facts["unix_time"]))),
        "endpoint": asked.facts["endpoint"],
        "model": asked.model,
        "state": "failed" if asked.has_failed else "running" if account is None else "finished",
        "prompt_tokens": asked.num_tokens,
    }
    if isinstance(account, Account):
        entry["anaphora"] = account.extension()
    elif isinstance(miss, Miss):
        entry["anaphora"] = {"miss": told(miss)}
    if isinstance(miss, Miss):
        entry["excerpts"] = excerpts(miss)
    return entry
