"""Files of OpenAI's API, as batches need them: requests to answer, and answers.

In memory, bounded, apart for each tenant.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from anaphora.engine.request import Tenant
from anaphora.errors import Overloaded, UnknownObject

MAX_TENANT_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class StoredFile:
    file_id: str
    name: str
    purpose: str  # batch, batch_output
    content: bytes
    created_at: int

    def shown(self) -> dict[str, Any]:
        """The file as the API shows it."""
        return {
            "id": self.file_id,
            "object": "file",
            "bytes": len(self.content),
            "created_at": self.created_at,
            "expires_at": None,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class FileStore:
    """Files by tenant and id. Belongs to the event loop."""

    def __init__(self, max_tenant_bytes: int = MAX_TENANT_BYTES) -> None:
        self._max_tenant_bytes = max_tenant_bytes
        self._files: OrderedDict[tuple[Tenant, str], StoredFile] = OrderedDict()  # oldest first

    def keep(self, tenant: Tenant, file: StoredFile) -> None:
        """Keep a file that somebody sent.

        Raises: Overloaded where the tenant's files leave no room.
        """
        used = sum(len(one.content) for (owner, _), one in self._files.items() if owner == tenant)
        if used + len(file.content) > self._max_tenant_bytes:
            raise Overloaded("There is no room for this file: delete others first.", retry_after_s=60.0)
        self._files[tenant, file.file_id] = file

    def keep_output(self, tenant: Tenant, file: StoredFile) -> None:
        """Keep what a batch was answered. Forgets the tenant's oldest files where there is no room."""
        own = [one for (owner, _), one in self._files.items() if owner == tenant]
        used = sum(len(one.content) for one in own) + len(file.content)
        while used > self._max_tenant_bytes and own:
            oldest = own.pop(0)
            used -= len(oldest.content)
            del self._files[tenant, oldest.file_id]
        self._files[tenant, file.file_id] = file

    def get(self, tenant: Tenant, file_id: str) -> StoredFile:
        """The file of that id.

        Raises: UnknownObject.
        """
        found = self._files.get((tenant, file_id))
        if found is None:
            raise UnknownObject(f"There is no file {file_id[:80]!r} here (any more).")
        return found

    def delete(self, tenant: Tenant, file_id: str) -> None:
        """Forget a file.

        Raises: UnknownObject.
        """
        self.get(tenant, file_id)
        del self._files[tenant, file_id]

    def all_of(self, tenant: Tenant) -> list[StoredFile]:
        """A tenant's files, newest first."""
        return [one for (owner, _), one in reversed(self._files.items()) if owner == tenant]
