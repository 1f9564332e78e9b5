"""Names of records. Equal keys mean: same namespace, same tokens, same tokens in front of them.

    tokens   |0 ......... 255|256 ....... 511|512 ... 600|      records of 256 tokens; the rest is not a record yet
    key        k1 = H(space, START, t[0:256])
                               k2 = H(space, k1, t[256:512])

A key is a digest of bytes alone: no hash of Python's, no address, no seed goes into it. So it is the same in every
process, on every host and after every restart.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NewType

import numpy as np
from numpy.typing import NDArray

from anaphora.core.namespace import Namespace

RecordKey = NewType("RecordKey", bytes)
"""32 bytes that name a record."""

Tokens = NDArray[np.int32]

KEY_BYTES = 32
START = RecordKey(bytes(KEY_BYTES))
"""The parent of a record that begins at token 0."""


@dataclass(frozen=True, slots=True)
class Link:
    """One record of a chain: its key, its parent's, and the tokens `[start, stop)` that it covers."""

    key: RecordKey
    parent: RecordKey
    start: int
    stop: int


def record_key(namespace: Namespace, parent: RecordKey, tokens: Tokens) -> RecordKey:
    """Derive the key of the record that follows `parent` with these tokens.

    The first two fields have a fixed length, which the digest's input begins with; so no two different
    inputs give it the same bytes. Cost: O(tokens).
    """
    if len(namespace) != KEY_BYTES or len(parent) != KEY_BYTES:
        raise ValueError(f"a namespace and a parent have {KEY_BYTES} bytes, not {len(namespace)} and {len(parent)}")
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"anaphora.record1")
    digest.update(namespace)
    digest.update(parent)
    digest.update(token_bytes(tokens))
    return RecordKey(digest.digest())


def chain(namespace: Namespace, tokens: Tokens, *, record_tokens: int) -> Iterator[Link]:
    """Yield the links of a prompt, first tokens first; tokens beyond the last full record have none.

    Cost: O(tokens), spread over the links.
    """
    if record_tokens < 1:
        raise ValueError(f"a record holds at least one token, not {record_tokens}")
    parent = START
    for start in range(0, len(tokens) - record_tokens + 1, record_tokens):
        stop = start + record_tokens
        key = record_key(namespace, parent, tokens[start:stop])
        yield Link(key, parent, start, stop)
        parent = key


def token_bytes(tokens: Tokens) -> bytes:
    """Write tokens as bytes: four each, the smallest first, on every machine."""
    return tokens.astype("<i4", copy=False).tobytes()


def tokens_from(data: bytes | memoryview) -> Tokens:
    """Read tokens that `token_bytes` wrote."""
    return np.frombuffer(data, dtype="<i4").astype(np.int32, copy=False)
