"""Keys and values out of the pool and into it, bit by bit. Method: pools of random bits, scattered extents; a claim
that is taken back after some portions."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from anaphora.core.extent import Extent
from anaphora.core.namespace import Namespace
from anaphora.engine.durable.claim import Claim
from anaphora.engine.durable.pool_bytes import PoolBytes
from anaphora.tiers.keys import START
from anaphora.tiers.memory import Memory
from anaphora.tiers.record import Record

NUM_SLOTS, LAYERS = 64, 3
EXTENTS = [Extent(40, 5), Extent(3, 7), Extent(60, 1)]
SPACE = Namespace(b"s" * 32)


class TakenBack(Claim):
    """Taken back behind a number of portions."""

    def __init__(self, num_portions: int) -> None:
        super().__init__()
        self._num_left = num_portions

    def do(self, portion: Any) -> bool:
        if not self._num_left:
            self.withdraw()
        self._num_left -= 1
        return super().do(portion)


def random_pool(dtype: torch.dtype, *, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]

    def tensor() -> torch.Tensor:
        return torch.randint(-(2**15), 2**15 - 1, (2, NUM_SLOTS, 8), generator=generator).to(bits).view(dtype)

    return SimpleNamespace(keys=[tensor() for _ in range(LAYERS)], values=[tensor() for _ in range(LAYERS)])


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()]).numpy()


def slots_of(extents: list[Extent]) -> list[int]:
    return [slot for extent in extents for slot in range(extent.start, extent.stop)]


def record_from(pool: Any) -> Record:
    kv = PoolBytes(pool).copy_out(EXTENTS, Claim(), Memory())
    assert kv is not None
    tokens = np.arange(13, dtype=np.int32)
    return Record(SPACE, START, tokens, PoolBytes(pool).layout, kv)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_comes_out_goes_in_elsewhere_bit_by_bit(dtype: torch.dtype):
    source, target = random_pool(dtype, seed=1), random_pool(dtype, seed=2)
    before = [bits_of(tensor).copy() for tensor in (*target.keys, *target.values)]
    into = [Extent(10, 2), Extent(20, 6)]
    assert PoolBytes(target).copy_in(record_from(source), 4, into, Claim())
    tensors = zip((*source.keys, *source.values), (*target.keys, *target.values), before, strict=True)
    for given, taken, was in tensors:
        expected = was
        expected[:, slots_of(into)] = bits_of(given)[:, slots_of(EXTENTS)[4:12]]
        assert np.array_equal(bits_of(taken), expected)


@pytest.mark.parametrize("num_portions", range(2 * LAYERS))
def test_slots_that_were_taken_back_are_not_written_any_more(num_portions: int):
    source, target = random_pool(torch.float32, seed=1), random_pool(torch.float32, seed=2)
    before = [bits_of(tensor).copy() for tensor in (*target.keys, *target.values)]
    record = record_from(source)
    assert not PoolBytes(target).copy_in(record, 0, EXTENTS, TakenBack(num_portions))
    after = [bits_of(tensor) for tensor in (*target.keys, *target.values)]
    assert sum(not np.array_equal(one, other) for one, other in zip(before, after, strict=True)) == num_portions


@pytest.mark.parametrize("num_portions", range(2 * LAYERS))
def test_slots_that_were_taken_back_give_no_record(num_portions: int):
    pool = random_pool(torch.float32, seed=1)
    assert PoolBytes(pool).copy_out(EXTENTS, TakenBack(num_portions), Memory()) is None


def test_records_of_another_shape_do_not_fit():
    record = record_from(random_pool(torch.float32, seed=1))
    with pytest.raises(AssertionError, match="another shape"):
        PoolBytes(random_pool(torch.bfloat16, seed=2)).copy_in(record, 0, EXTENTS, Claim())
