"""Which records to take: pure, the same for every tier."""

from collections.abc import Iterable, Sequence

from anaphora.core.index import common_length
from anaphora.tiers.base import Entry, Known
from anaphora.tiers.keys import RecordKey, Tokens


def nearest_of(entries: Iterable[Entry], tokens: Tokens) -> Entry | None:
    """Choose the entry that shares most of its first tokens with these. None: none shares any."""
    best, most = None, 0
    for entry in entries:
        shared = common_length(entry.tokens, tokens)
        if shared > most:
            best, most = entry, shared
    return best


def of_model(known: Iterable[Known], model_digest: bytes) -> list[Known]:
    """Leave out the records of other models, and those of which nobody said whose they are."""
    return [one for one in known if one.origin is not None and one.origin.model_digest == model_digest]


def with_parents_first(latest_first: Sequence[Known], *, max_bytes: int) -> list[Known]:
    """Choose what was used last, each record with all that stand in front of it, as far as the bytes allow.

    A record whose prefix is not there can't be reached, and is left out. Cost: O(records).
    """
    by_key = {one.key: one for one in latest_first}
    chosen: dict[RecordKey, Known] = {}
    num_left = max_bytes
    for one in latest_first:
        way = _way_to(one, by_key, chosen)
        size_bytes = sum(record.size_bytes for record in way)
        if size_bytes <= num_left:
            num_left -= size_bytes
            chosen |= {record.key: record for record in way}
    return list(chosen.values())


def _way_to(one: Known, by_key: dict[RecordKey, Known], chosen: dict[RecordKey, Known]) -> list[Known]:
    """List the records from the last chosen one in front of it, first tokens first; nothing if one is missing."""
    way: list[Known] = []
    here: Known | None = one
    while here is not None and here.key not in chosen:
        way.append(here)
        if not any(here.parent):
            break
        here = by_key.get(here.parent)
    return [] if here is None else way[::-1]
