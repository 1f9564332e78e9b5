"""The served models, in the shape of the API that asks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from anaphora.errors import UnknownModel


@dataclass(frozen=True, slots=True)
class ServedModels:
    """One model, under every name it is served as."""

    names: tuple[str, ...]
    created: int  # seconds since 1970
    max_context: int  # tokens

    def check(self, name: str) -> None:
        """Raises: UnknownModel for any other name."""
        if name not in self.names:
            served = ", ".join(self.names)
            raise UnknownModel(f"The model {name[:200]!r} is not served here. Served: {served}.", field="model")

    def openai_entry(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "anaphora",
            "max_model_len": self.max_context,
        }

    def openai_list(self) -> dict[str, Any]:
        return {"object": "list", "data": [self.openai_entry(name) for name in self.names]}

    def anthropic_entry(self, name: str) -> dict[str, Any]:
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": datetime.fromtimestamp(self.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycle": "active",
            "max_input_tokens": self.max_context,
            "max_tokens": self.max_context,
        }

    def anthropic_list(self, *, after_id: str | None, before_id: str | None, limit: int) -> dict[str, Any]:
        """A page of the list. An id that is not served starts it anew."""
        names: Sequence[str] = self.names
        if after_id in names:
            names = names[names.index(after_id) + 1 :]
        if before_id in names:
            names = names[: names.index(before_id)]
        page = names[:limit]
        return {
            "data": [self.anthropic_entry(name) for name in page],
            "has_more": len(names) > len(page),
            "first_id": page[0] if page else None,
            "last_id": page[-1] if page else None,
        }
