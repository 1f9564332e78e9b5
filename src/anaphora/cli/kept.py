"""What `anaphora cache` does with a folder of records, and prints."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from anaphora.engine.durable.pieces import RECORD_TOKENS
from anaphora.errors import AnaphoraError
from anaphora.tiers.archive import import_archive, origin_of_archive, write_archive
from anaphora.tiers.base import Known, Origin
from anaphora.tiers.disk import DiskTier
from anaphora.tiers.disk_index import INDEX_ERRORS
from anaphora.tiers.keys import RecordKey
from anaphora.tiers.record import Record
from anaphora.tiers.survey import Prefix, Survey

NAME_LETTERS = 12
"""Shown of a name: enough that two of a million records hardly ever share them."""

_NO_CAP = 2**62


class NotKept(AnaphoraError):
    """There is no such prompt, or no such folder, or several prompts are meant."""


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt as `ls` tells it."""

    name: str
    model: str
    tenant: str
    num_tokens: int
    num_records: int
    size_bytes: int
    is_pinned: bool

    @classmethod
    def of(cls, prefix: Prefix) -> "Row":
        origin = prefix.origin
        model = "unknown" if origin is None else origin.model
        return cls(
            prefix.key.hex()[:NAME_LETTERS],
            model,
            _tenant(origin),
            prefix.num_tokens,
            len(prefix.records),
            prefix.size_bytes,
            prefix.is_pinned,
        )


class Kept:
    """An open folder. A server may use it at the same time."""

    def __init__(self, folder: Path, *, cap_bytes: int | None) -> None:
        """Open it. Without a cap nothing is evicted for one.

        Raises: NotKept if there is none, or if it can't be used.
        """
        self._console = Console(highlight=False)
        if not folder.is_dir() and cap_bytes is None:
            raise NotKept(f"Nothing is kept: there is no folder {folder}.")
        try:
            self._tier = DiskTier(folder, cap_bytes=cap_bytes or _NO_CAP)
        except (OSError, *INDEX_ERRORS) as error:
            raise NotKept(f"{folder} can't be used: {error}.") from error

    def __enter__(self) -> "Kept":
        return self

    def __exit__(self, *exception: object) -> None:
        self._tier.close()

    def show_list(self, *, as_json: bool) -> None:
        """Print the prompts."""
        survey = self._survey()
        rows = [Row.of(prefix) for prefix in survey.prefixes()]
        if as_json:
            self._console.print_json(json.dumps([_as_json(row) for row in rows]))
            return
        table = Table()
        for heading in ("name", "model", "tenant", "tokens", "records", "MiB", "pinned"):
            table.add_column(heading, justify="right" if heading in ("tokens", "records", "MiB") else "left")
        for row in rows:
            size = f"{row.size_bytes / 2**20:,.1f}"
            pinned = "yes" if row.is_pinned else ""
            table.add_row(row.name, row.model, row.tenant, f"{row.num_tokens:,}", f"{row.num_records:,}", size, pinned)
        self._console.print(table)
        self._console.print(_total(survey.records, f"in {len(rows):,} prompts"))

    def show_prompt(self, name: str) -> None:
        """Print one prompt and its records."""
        prefix = self._survey().prefix(self._key(name))
        row = Row.of(prefix)
        self._console.print(f"{prefix.key.hex()}\nmodel {row.model}, tenant {row.tenant}, {row.num_tokens:,} tokens")
        table = Table()
        for heading in ("tokens", "record", "MiB", "part", "pinned"):
            table.add_column(heading)
        start = 0
        for record in prefix.records:
            stop = start + len(record.tokens)
            part = "shared" if record.origin is not None and record.origin.tenant is None else "tenant's"
            table.add_row(
                f"{start:,} to {stop:,}",
                record.key.hex()[:NAME_LETTERS],
                f"{record.size_bytes / 2**20:,.1f}",
                part,
                "yes" if record.is_pinned else "",
            )
            start = stop
        self._console.print(table)

    def evict(self, names: Sequence[str]) -> None:
        """Delete records and what hangs from them."""
        survey = self._survey()
        doomed = {one.key: one for name in names for one in survey.from_there_on(self._key(name))}
        gone = self._delete(doomed.values())
        self._console.print(f"Deleted {_total(gone)}.")
        if len(gone) < len(doomed):
            self._console.print(f"{len(doomed) - len(gone)} records stay: pinned, or in front of a pinned one.")

    def clear(self, tenant: str | None) -> None:
        """Delete everything, or all of a tenant's."""
        survey = self._survey()
        if tenant is None:
            doomed = [one for prefix in survey.prefixes() for one in survey.from_there_on(prefix.records[0].key)]
        else:
            doomed = survey.of_tenant(tenant)
        for one in doomed:
            self._tier.unpin(one.key)
        self._console.print(f"Deleted {_total(self._delete(doomed))}.")

    def pin(self, name: str) -> None:
        """Keep a prompt."""
        prefix = self._survey().prefix(self._key(name))
        if not self._tier.pin(prefix.key):
            raise NotKept("The index can't be written.")
        self._console.print(f"Pinned {prefix.num_tokens:,} tokens, {prefix.size_bytes / 2**20:,.1f} MiB.")

    def unpin(self, name: str) -> None:
        """Let a prompt go."""
        prefix = self._survey().prefix(self._key(name))
        for record in prefix.records:
            if record.is_pinned and not self._tier.unpin(record.key):
                raise NotKept("The index can't be written.")
        self._console.print(f"Not pinned any more: {prefix.num_tokens:,} tokens.")

    def verify(self) -> bool:
        """Read everything; answer whether all of it is whole."""
        known = self._survey().records
        with self._console.status("Reading"):
            bad = [one for one in known if not isinstance(self._tier.load(one.key), Record)]
        for one in bad:
            self._console.print(f"damaged, deleted: {one.key.hex()}")
        self._console.print(f"{len(known) - len(bad):,} records whole, {len(bad):,} damaged.")
        return not bad

    def export(self, name: str, file: Path) -> None:
        """Write a prompt to a file."""
        prefix = self._survey().prefix(self._key(name))
        origin = prefix.origin
        if origin is None or not prefix.is_whole():
            raise NotKept("Whose prompt this is, or how it begins, is not known any more.")
        try:
            size = write_archive(file, origin, self._loaded(prefix))
        except OSError as error:
            raise NotKept(f"{file} can't be written: {error}.") from error
        self._console.print(f"Wrote {prefix.num_tokens:,} tokens, {size / 2**20:,.1f} MiB, to {file}.")

    def take_in(self, file: Path, *, tenant: str | None, model: Origin) -> None:
        """Take in a prompt from a file, for a model."""
        try:
            told = origin_of_archive(file)
            origin = Origin(model.model_digest, model.model, told.tenant or "" if tenant is None else tenant)
            num_tokens = import_archive(file, self._tier, origin=origin, record_tokens=RECORD_TOKENS)
        except OSError as error:
            raise NotKept(f"{file} can't be read: {error}.") from error
        self._console.print(f"Took in {num_tokens:,} tokens for tenant {_tenant(origin)}.")

    def _loaded(self, prefix: Prefix) -> Iterator[Record]:
        for one in prefix.records:
            record = self._tier.load(one.key)
            if not isinstance(record, Record):
                raise NotKept(f"A record of it can't be read: {record.reason.value}.")
            yield record

    def _survey(self) -> Survey:
        return Survey(self._tier.all())

    def _key(self, name: str) -> RecordKey:
        found = self._survey().named(name)
        if not found:
            raise NotKept(f"No prompt is named {name}. `anaphora cache ls` lists them.")
        if len(found) > 1:
            raise NotKept(f"{len(found)} records are named {name}...; give more letters.")
        return found[0]

    def _delete(self, doomed: Iterable[Known]) -> list[Known]:
        """Delete records, ends first; what is in front of one that stays has to stay."""
        gone: list[Known] = []
        needed: set[RecordKey] = set()
        for one in doomed:
            if one.key in needed or not self._tier.delete(one.key):
                needed.add(one.parent)
            else:
                gone.append(one)
        return gone


def _tenant(origin: Origin | None) -> str:
    if origin is None:
        return "unknown"
    return "(shared)" if origin.tenant is None else origin.tenant or "(default)"


def _total(records: Sequence[Known], more: str = "") -> str:
    num_tokens, size = sum(len(one.tokens) for one in records), sum(one.size_bytes for one in records)
    return f"{num_tokens:,} tokens, {size / 2**20:,.1f} MiB, {len(records):,} records{' ' + more if more else ''}"


def _as_json(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "model": row.model,
        "tenant": row.tenant,
        "tokens": row.num_tokens,
        "records": row.num_records,
        "bytes": row.size_bytes,
        "pinned": row.is_pinned,
    }
