"""A record read back is the one written, or a miss with a name. Method: hypothesis cuts, flips and invents bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records_world import LAYOUT, SPACE, file_bytes, make_record, same

from anaphora.core.namespace import Namespace
from anaphora.tiers.keys import RecordKey
from anaphora.tiers.record import LayerShape, Layout, Miss, MissReason, Record, read_record

RECORD = make_record("abcde")
DATA = file_bytes(RECORD)


def test_a_record_comes_back_as_it_was():
    loaded = read_record(DATA, RECORD.key)
    assert isinstance(loaded, Record)
    assert same(loaded, RECORD)
    assert loaded.tokens.tolist() == RECORD.tokens.tolist()
    assert loaded.layout == LAYOUT
    assert len(DATA) == RECORD.size_bytes


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_layers_are_views_by_head_token_and_dimension(dtype: str):
    record = make_record("abcde", layout=Layout(dtype, LAYOUT.layers))
    (keys, values), (later_keys, later_values) = record.layer(0), record.layer(1)
    assert (keys.shape, values.shape) == ((1, 5, 2), (1, 5, 3))
    assert (later_keys.shape, later_values.shape) == ((2, 5, 4), (2, 5, 4))
    joined = b"".join(one.tobytes() for one in (keys, values, later_keys, later_values))
    assert joined == record.kv.tobytes()
    assert np.shares_memory(keys, record.kv)


@given(st.integers(0, len(DATA) - 1), st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_a_miss(at: int, bit: int):
    damaged = bytearray(DATA)
    damaged[at] ^= 1 << bit
    assert isinstance(read_record(bytes(damaged), RECORD.key), Miss)


def test_one_flipped_bit_in_each_byte_is_a_miss():
    for at in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[at] ^= 1 << at % 8
        assert isinstance(read_record(bytes(damaged), RECORD.key), Miss)


def test_every_truncation_is_a_miss():
    for length in range(len(DATA)):
        assert read_record(DATA[:length], RECORD.key) == Miss(MissReason.TRUNCATED)


@given(st.binary(max_size=300), st.booleans())
def test_bytes_that_nobody_wrote_are_a_miss(data: bytes, keeps_the_front: bool):
    start = DATA[:12] if keeps_the_front else b""
    assert isinstance(read_record(start + data, RECORD.key), Miss)


@given(st.integers(0, len(DATA)), st.integers(0, len(DATA)), st.binary(max_size=20))
def test_a_piece_replaced_by_other_bytes_is_a_miss_unless_it_is_the_same(start: int, stop: int, middle: bytes):
    data = DATA[:start] + middle + DATA[stop:]
    loaded = read_record(data, RECORD.key)
    assert isinstance(loaded, Record if data == DATA else Miss)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"x", MissReason.NOT_A_RECORD),
        (8, b"\3", MissReason.OTHER_VERSION),
        (24, b"x", MissReason.DAMAGED),
        (16, b"\6", MissReason.TRUNCATED),
        (len(DATA) - 1, b"", MissReason.TRUNCATED),
        (len(DATA), b"x", MissReason.TRUNCATED),
        (len(DATA) - 40, bytes([DATA[-40] ^ 1]), MissReason.DAMAGED),
    ],
)
def test_a_miss_says_why(at: int, value: bytes, reason: MissReason):
    assert read_record(DATA[:at] + value + DATA[at + 1 :], RECORD.key) == Miss(reason)


def test_a_whole_record_under_another_name_is_a_miss():
    for other in (
        make_record("abcdf"),
        make_record("abcde", parent=RecordKey(b"p" * 32)),
        make_record("abcde", namespace=Namespace(b"t" * 32)),
    ):
        assert read_record(file_bytes(other), RECORD.key) == Miss(MissReason.OTHER_KEY)


def test_parts_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="bytes"):
        Record(SPACE, RECORD.parent, RECORD.tokens, LAYOUT, RECORD.kv[:-1])
    with pytest.raises(ValueError, match="float64"):
        Record(SPACE, RECORD.parent, RECORD.tokens, Layout("float64", (LayerShape(1, 1, 1),)), RECORD.kv)
