"""Keys and values cut anew: the same tokens in records that begin and end elsewhere. Pure."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from anaphora.core.namespace import Namespace
from anaphora.tiers.keys import START, Tokens
from anaphora.tiers.record import Layout, Record


def recut(records: Iterable[Record], *, namespace: Namespace, record_tokens: int) -> Iterator[Record]:
    """Yield the same tokens in records of a namespace, all of `record_tokens` but the last.

    All of one layout, first tokens first. Cost: a copy of the keys and values; two records in memory.
    """
    parent, rest = START, None
    for record in records:
        rest = record if rest is None else _joined(rest, record)
        while len(rest.tokens) >= record_tokens:
            head = _part(rest, 0, record_tokens, namespace)
            yield (full := Record(namespace, parent, head.tokens, head.layout, head.kv))
            parent, rest = full.key, _part(rest, record_tokens, len(rest.tokens), namespace)
    if rest is not None and len(rest.tokens):
        yield Record(namespace, parent, rest.tokens, rest.layout, rest.kv)


def _joined(one: Record, other: Record) -> Record:
    assert one.layout == other.layout, "records of one prompt have one layout"
    tokens = np.concatenate([one.tokens, other.tokens])
    return _record(tokens, one.layout, [(one, 0, len(one.tokens)), (other, 0, len(other.tokens))], one.namespace)


def _part(record: Record, start: int, stop: int, namespace: Namespace) -> Record:
    return _record(record.tokens[start:stop], record.layout, [(record, start, stop)], namespace)


def _record(tokens: Tokens, layout: Layout, parts: list[tuple[Record, int, int]], namespace: Namespace) -> Record:
    """Put parts of records together. Its parent is not set: only its tokens, keys and values count."""
    runs: list[NDArray[np.uint8]] = []
    for index in range(len(layout.layers)):
        for which in (0, 1):
            taken = [record.layer(index)[which][:, start:stop] for record, start, stop in parts]
            runs.append(np.concatenate(taken, axis=1).reshape(-1).view(np.uint8))
    return Record(namespace, START, tokens, layout, np.concatenate(runs) if runs else np.empty(0, np.uint8))
