"""One prompt in one file, to take to another machine.

magic        8    "ANAPHORX"
length       8    of what follows
origin            JSON: model_digest in hexadecimal, model, tenant
record            length 8, then the record in its own format; as many as there are
"""

import json
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from anaphora.core.namespace import namespace_of
from anaphora.errors import AnaphoraError
from anaphora.tiers.base import Origin, Outcome, Tier
from anaphora.tiers.record import Miss, Record, pieces, read_head, read_record
from anaphora.tiers.recut import recut

MAGIC = b"ANAPHORX"
_LENGTH = struct.Struct("<Q")


class NotImported(AnaphoraError):
    """A file is no archive, is damaged, or is another model's."""


def write_archive(path: Path, origin: Origin, records: Iterable[Record]) -> int:
    """Write records of one prompt, first tokens first, to a new file. Returns its bytes.

    Raises: OSError; FileExistsError rather than write over something.
    """
    told = {"model_digest": origin.model_digest.hex(), "model": origin.model, "tenant": origin.tenant}
    front = json.dumps(told).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(MAGIC + _LENGTH.pack(len(front)) + front)
        for record in records:
            file.write(_LENGTH.pack(record.size_bytes))
            for piece in pieces(record):
                file.write(piece)
        return file.tell()


def origin_of_archive(path: Path) -> Origin:
    """Read whose prompt an archive holds.

    Raises: NotImported, OSError.
    """
    with path.open("rb") as file:
        return _origin(file, path)


def import_archive(path: Path, tier: Tier, *, origin: Origin, record_tokens: int) -> int:
    """Store an archive's prompt for a tenant of the same model. Returns the tokens that are in the tier now.

    Records are verified, cut as this version cuts them, and named anew in the tenant's namespace.
    Raises: NotImported, OSError. What was stored before an error stays: each record is whole by itself.
    """
    with path.open("rb") as file:
        told = _origin(file, path)
        if told.model_digest != origin.model_digest:
            raise NotImported(
                f"{path} is of another model: {told.model} ({told.model_digest.hex()[:12]}), not {origin.model} "
                f"({origin.model_digest.hex()[:12]}). Its keys and values would be wrong here."
            )
        assert origin.tenant is not None, "what is shared has no tenant to import it for"
        namespace = namespace_of(model_digest=origin.model_digest, tenant=origin.tenant)
        num_tokens = 0
        for record in recut(_records(file, path), namespace=namespace, record_tokens=record_tokens):
            outcome = tier.store(record)
            if outcome not in (Outcome.STORED, Outcome.ALREADY_STORED):
                raise NotImported(f"Only the first {num_tokens:,} tokens could be stored: {outcome.value}.")
            num_tokens += len(record.tokens)
        tier.introduce(namespace, origin)
    return num_tokens


def _origin(file: BinaryIO, path: Path) -> Origin:
    try:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError
        told = json.loads(file.read(_length(file)))
        digest, model, tenant = bytes.fromhex(told["model_digest"]), told["model"], told["tenant"]
        if not isinstance(model, str) or not isinstance(tenant, str | None):
            raise ValueError
    except (ValueError, KeyError, TypeError, struct.error, MemoryError, OverflowError):
        raise NotImported(f"{path} is no archive of a cached prompt.") from None
    return Origin(digest, model, tenant)


def _records(file: BinaryIO, path: Path) -> Iterator[Record]:
    """Read and verify the records, which have to follow one another."""
    parent = None
    while head := file.read(_LENGTH.size):
        try:
            data = file.read(_LENGTH.unpack(head)[0])
        except (struct.error, MemoryError, OverflowError):
            raise NotImported(f"{path} is damaged.") from None
        record = _record(data)
        if record is None or (parent is not None and record.parent != parent):
            raise NotImported(f"{path} is damaged.")
        yield record
        parent = record.key
    if parent is None:
        raise NotImported(f"{path} holds no record.")


def _record(data: bytes) -> Record | None:
    head = read_head(memoryview(data))
    if isinstance(head, Miss):
        return None
    found = read_record(data, head.key)
    return None if isinstance(found, Miss) else found


def _length(file: BinaryIO) -> int:
    length: int = _LENGTH.unpack(file.read(_LENGTH.size))[0]
    return length
