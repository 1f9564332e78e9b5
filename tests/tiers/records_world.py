"""Small records for tests of the tiers. Their bytes follow from their tokens, so that any load can be judged."""

import hashlib

import numpy as np

from anaphora.core.namespace import Namespace
from anaphora.tiers.keys import START, RecordKey
from anaphora.tiers.record import LayerShape, Layout, Record, pieces

SPACE = Namespace(b"s" * 32)
LAYOUT = Layout("float32", (LayerShape(1, 2, 3), LayerShape(2, 4, 4)))


def make_record(
    text: str, *, parent: RecordKey = START, namespace: Namespace = SPACE, layout: Layout = LAYOUT
) -> Record:
    """A record of one token a letter; its keys and values follow from what stands in front and the letters."""
    tokens = np.array([ord(letter) for letter in text], dtype=np.int32)
    seed = hashlib.sha256(namespace + parent + tokens.tobytes()).digest()
    num_bytes = layout.kv_bytes(len(tokens))
    kv = np.frombuffer(hashlib.shake_256(seed).digest(num_bytes), dtype=np.uint8)
    return Record(namespace, parent, tokens, layout, kv)


def file_bytes(record: Record) -> bytes:
    return b"".join(pieces(record))


def same(one: Record, other: Record) -> bool:
    return file_bytes(one) == file_bytes(other)
