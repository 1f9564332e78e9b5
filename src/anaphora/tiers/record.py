"""The unit that lower tiers keep: the keys and values of a run of tokens, and its file format.

    offset
    0      magic        8    "ANAPHORA"
    8      version      4    of this format
    12     num_layers   4
    16     num_tokens   8
    24     dtype       16    a name, padded with zeros
    40     namespace   32
    72     parent      32    key of the record in front, zeros at token 0
    104    layers      12    x num_layers: num_kv_heads, key_dim, value_dim
           tokens       4    x num_tokens
           kv                per layer: keys [num_kv_heads, num_tokens, key_dim], then values
           checksum    16    XXH3-128 of everything before

All numbers are little-endian. The lengths of all fields follow from the first 40 bytes and the layers, and the data
has to be exactly as long. Reading is total: any bytes give a record or a `Miss`, and a record only if the checksum
holds and its own key is the one asked for.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import xxhash
from numpy.typing import NDArray

from anaphora.core.namespace import Namespace
from anaphora.tiers.keys import RecordKey, Tokens, record_key, token_bytes, tokens_from

MAGIC = b"ANAPHORA"
VERSION = 2
CHECKSUM_BYTES = 16

_FRONT = struct.Struct("<8sIIQ16s32s32s")
_LAYER = struct.Struct("<III")

DTYPES: dict[str, np.dtype[np.generic]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),  # NumPy has no bfloat16: its bits
    "int8": np.dtype("i1"),
}


class MissReason(Enum):
    ABSENT = "absent"
    NOT_A_RECORD = "not a record"
    OTHER_VERSION = "other version"
    TRUNCATED = "truncated"  # or longer than it says
    DAMAGED = "damaged"  # the checksum does not hold
    OTHER_KEY = "other key"  # a whole record, but not the one asked for
    UNREADABLE = "unreadable"  # the place refused to give its bytes


@dataclass(frozen=True, slots=True)
class Miss:
    """Why there is no record."""

    reason: MissReason


@dataclass(frozen=True, slots=True)
class LayerShape:
    num_kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def values_per_token(self) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the bytes of a record's keys and values are laid out."""

    dtype: str  # one of DTYPES
    layers: tuple[LayerShape, ...]

    def kv_bytes(self, num_tokens: int) -> int:
        """Bytes of keys and values of that many tokens, over all layers."""
        return num_tokens * sum(one.values_per_token for one in self.layers) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Keys and values of a run of tokens that follows `parent`. Raises ValueError if the parts don't fit together."""

    namespace: Namespace
    parent: RecordKey
    tokens: Tokens
    layout: Layout
    kv: NDArray[np.uint8]  # [layout.kv_bytes(num_tokens)]

    def __post_init__(self) -> None:
        if self.layout.dtype not in DTYPES:
            raise ValueError(f"no such dtype here: {self.layout.dtype!r}; one of {', '.join(DTYPES)}")
        expected = self.layout.kv_bytes(len(self.tokens))
        if self.kv.shape != (expected,):
            raise ValueError(f"keys and values of this layout take {expected} bytes, not {self.kv.shape}")

    @property
    def key(self) -> RecordKey:
        """The record's name. Cost: O(tokens)."""
        return record_key(self.namespace, self.parent, self.tokens)

    @property
    def size_bytes(self) -> int:
        """Bytes of the record in its file format."""
        head = _FRONT.size + _LAYER.size * len(self.layout.layers) + 4 * len(self.tokens)
        return head + len(self.kv) + CHECKSUM_BYTES

    def layer(
        self, layer_index: int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:  # [num_kv_heads, num_tokens, key_dim], [.., value_dim]
        """View one layer's keys and values, without a copy. A prefix of the record is a slice of axis 1."""
        before = Layout(self.layout.dtype, self.layout.layers[:layer_index]).kv_bytes(len(self.tokens))
        shape, dtype = self.layout.layers[layer_index], DTYPES[self.layout.dtype]
        num_keys = shape.num_kv_heads * len(self.tokens) * shape.key_dim * dtype.itemsize
        num_values = shape.num_kv_heads * len(self.tokens) * shape.value_dim * dtype.itemsize
        keys = self.kv[before : before + num_keys].view(dtype)
        values = self.kv[before + num_keys : before + num_keys + num_values].view(dtype)
        return (
            keys.reshape(shape.num_kv_heads, len(self.tokens), shape.key_dim),
            values.reshape(shape.num_kv_heads, len(self.tokens), shape.value_dim),
        )


@dataclass(frozen=True, slots=True)
class Head:
    """The front of a record: everything but keys, values and checksum. Not verified."""

    namespace: Namespace
    parent: RecordKey
    tokens: Tokens
    layout: Layout
    num_bytes: int  # of the head itself

    @property
    def key(self) -> RecordKey:
        """The name that follows from what it says. Cost: O(tokens)."""
        return record_key(self.namespace, self.parent, self.tokens)

    @property
    def record_bytes(self) -> int:
        """Bytes of the whole record."""
        return self.num_bytes + self.layout.kv_bytes(len(self.tokens)) + CHECKSUM_BYTES


def pieces(record: Record) -> Iterator[bytes | memoryview]:
    """Yield a record in its file format, piece by piece; keys and values are not copied."""
    layout = record.layout
    front = _FRONT.pack(
        MAGIC, VERSION, len(layout.layers), len(record.tokens), layout.dtype.encode(), record.namespace, record.parent
    )
    layers = [_LAYER.pack(one.num_kv_heads, one.key_dim, one.value_dim) for one in layout.layers]
    head = front + b"".join(layers) + token_bytes(record.tokens)
    kv = np.ascontiguousarray(record.kv).data
    digest = xxhash.xxh3_128(head)
    digest.update(kv)
    yield head
    yield kv
    yield digest.digest()


def read_record(data: bytes | bytearray | memoryview, key: RecordKey) -> Record | Miss:
    """Read a record and verify it. Its keys and values are a view of `data`.

    Raises nothing, whatever the bytes are. Cost: one pass over the bytes, for the checksum.
    Why XXH3 and not blake2b, as for keys: it finds damage as surely, and reads as fast as memory gives. It is no
    proof against who can write to the folder, and no checksum without a secret is.
    """
    view = memoryview(data)
    head = read_head(view)
    if isinstance(head, Miss):
        return head
    if head.record_bytes != len(view):
        return Miss(MissReason.TRUNCATED)
    if xxhash.xxh3_128_digest(view[:-CHECKSUM_BYTES]) != view[-CHECKSUM_BYTES:]:
        return Miss(MissReason.DAMAGED)
    kv = np.frombuffer(view, dtype=np.uint8)[head.num_bytes : -CHECKSUM_BYTES]
    record = Record(head.namespace, head.parent, head.tokens, head.layout, kv)
    return record if record.key == key else Miss(MissReason.OTHER_KEY)


def read_head(view: memoryview) -> Head | Miss:
    """Read the front of a record from the first bytes of it. Raises nothing. Cost: O(tokens + layers)."""
    if len(view) < _FRONT.size:
        return Miss(MissReason.TRUNCATED)
    magic, version, num_layers, num_tokens, name, namespace, parent = _FRONT.unpack(view[: _FRONT.size])
    if magic != MAGIC:
        return Miss(MissReason.NOT_A_RECORD)
    if version != VERSION:
        return Miss(MissReason.OTHER_VERSION)
    dtype = name.rstrip(b"\0").decode("ascii", "replace")
    if dtype not in DTYPES:
        return Miss(MissReason.DAMAGED)
    tokens_at = _FRONT.size + _LAYER.size * num_layers
    num_bytes = tokens_at + 4 * num_tokens
    if num_bytes > len(view):
        return Miss(MissReason.TRUNCATED)
    layers = _layers(view[_FRONT.size : tokens_at])
    tokens = tokens_from(bytes(view[tokens_at:num_bytes]))
    return Head(Namespace(namespace), RecordKey(parent), tokens, Layout(dtype, tuple(layers)), num_bytes)


def _layers(view: memoryview) -> Sequence[LayerShape]:
    return [LayerShape(*numbers) for numbers in _LAYER.iter_unpack(view)]
