"""Attention over pieces: every kernel and every merge equals one softmax over the whole.

Method: random shapes, lengths around the kernel's own thresholds, strided views of a pool, against an explicit
reference that knows nothing of pieces.
"""

import math

import numpy as np
import pytest
import torch
from engine_world import Slots
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anaphora.core.extent import Extent
from anaphora.engine.attention import CpuFlashKernel, ExtentAttention, MathKernel, Piece, Scores, _attend, merge
from anaphora.engine.kv_pool import KvPool, gather
from anaphora.engine.step import Rows, plan_step
from anaphora.testing.random_models import random_model

SPLIT = CpuFlashKernel.MIN_TOKENS_TO_SPLIT
LENGTHS = [1, 2, 3, 7, 64, 127, SPLIT - 1, SPLIT, SPLIT + 1, SPLIT + 2, 2 * SPLIT + 1]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), atol=2e-5, rtol=2e-5)


def strided(num_kv_heads: int, num_tokens: int, head_dim: int, generator: torch.Generator) -> Tensor:
    """Make a view into the middle of a larger pool, as the runner's are."""
    pool = torch.randn(num_kv_heads, num_tokens + 9, head_dim, generator=generator)
    return pool[:, 5 : 5 + num_tokens]


@pytest.mark.parametrize("num_tokens", LENGTHS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 1), (3, 3, 4), (2, 2, 7), (4, 1, 13)])
def test_flash_kernel_equals_plain_products_over_the_past(num_tokens: int, shape: tuple[int, int, int]) -> None:
    num_kv_heads, num_groups, num_rows = shape
    generator = torch.Generator().manual_seed(num_tokens)
    keys, values = (strided(num_kv_heads, num_tokens, 16, generator) for _ in range(2))
    # As the model gives it: [num_rows, num_heads, head_dim] in memory.
    query = torch.randn(num_rows, num_kv_heads, num_groups, 16, generator=generator).permute(1, 2, 0, 3)
    found = CpuFlashKernel().past(query, keys, values, 0.3)
    (expected,) = MathKernel().past(query, keys, values, 0.3)
    close(merge(found), expected.out)
    close(torch.logsumexp(torch.stack([piece.lse for piece in found]), dim=0), expected.lse)


@pytest.mark.parametrize("num_rows", [2, 3, 31, 64, 65, 200])
@pytest.mark.parametrize("num_groups", [1, 3])
def test_flash_kernel_equals_plain_products_among_new_rows(num_rows: int, num_groups: int) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    keys, values = (strided(2, num_rows, 16, generator) for _ in range(2))
    query = torch.randn(num_rows, 2, num_groups, 16, generator=generator).permute(1, 2, 0, 3)
    found, expected = (kernel.causal(query, keys, values, 0.25) for kernel in (CpuFlashKernel(), MathKernel()))
    close(found.out, expected.out)
    close(found.lse, expected.lse)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 1000))
def test_merged_pieces_are_one_softmax(lengths: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(2, sum(lengths), 8, generator=generator) * 3 for _ in range(2))
    query = torch.randn(2, 2, 3, 8, generator=generator) * 3
    whole = torch.softmax(torch.einsum("hgrd,htd->hgrt", query, keys), dim=-1)
    expected = torch.einsum("hgrt,htd->hgrd", whole, values)
    pieces: list[Piece] = []
    for part_keys, part_values in zip(keys.split(lengths, 1), values.split(lengths, 1), strict=True):
        pieces += MathKernel().past(query, part_keys, part_values, 1.0)
    torch.testing.assert_close(merge(pieces), expected, atol=1e-4, rtol=1e-4)


def test_merge_survives_scores_far_apart_and_keeps_the_dtype() -> None:
    out = torch.ones(1, 1, 1, 4, dtype=torch.bfloat16)
    near, far = torch.full((1, 1, 1), 500.0), torch.full((1, 1, 1), -500.0)
    merged = merge([Piece(out, near), Piece(out * 7, far)])
    assert merged.dtype == torch.bfloat16
    assert torch.equal(merged, out)


def explicit(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    first_row_at: int,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attend head by head and row by row, in plain loops over what a row may see."""
    num_kv_heads, num_groups, num_rows, _ = query.shape
    out = torch.empty_like(query)
    for head in range(num_kv_heads):
        for group in range(num_groups):
            for row in range(num_rows):
                at = first_row_at + row
                seen = slice(0 if window is None else max(0, at - window + 1), at + 1)
                scores = keys[head, seen] @ query[head, group, row] * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head, group].reshape(1)])
                weights = torch.softmax(scores, dim=0)[: keys[head, seen].shape[0]]
                out[head, group, row] = weights @ values[head, seen]
    return out


class Layer:
    layer_idx = 0


@pytest.mark.parametrize("window", [None, 1, 2, 5, 11, 12, 40])
@pytest.mark.parametrize(("softcap", "has_sinks"), [(None, False), (2.0, False), (None, True), (1.5, True)])
def test_layer_attends_as_its_settings_say(window: int | None, softcap: float | None, has_sinks: bool) -> None:
    """Two sequences, scattered extents, several rows and a single one, against the explicit reference."""
    rng, generator = np.random.default_rng(3), torch.Generator().manual_seed(3)
    spec = random_model("llama").spec  # 2 key heads, 4 heads, 16 wide
    pool = KvPool(spec, num_slots=64, dtype=torch.float32, device=torch.device("cpu"))
    for tensor in (*pool.keys, *pool.values):
        tensor.fill_(torch.nan)
    attention = ExtentAttention(pool, CpuFlashKernel())
    slots = Slots(64, rng, max_length=7)
    sizes = [(8, 4), (20, 1)]  # tokens in front, new rows
    extents = [slots.take(past + new) for past, new in sizes]
    keys, values = ([torch.randn(2, past + new, 16, generator=generator) for past, new in sizes] for _ in range(2))
    for own, key, value, (past, _) in zip(extents, keys, values, sizes, strict=True):
        at = [slot for extent in own for slot in range(extent.start, extent.stop)][:past]
        pool.keys[0][:, at], pool.values[0][:, at] = key[:, :past], value[:, :past]
    attention.plan = plan_step([Rows(0, 0, 4, 8, extents[0]), Rows(1, 4, 1, 20, extents[1])])
    query = torch.randn(1, 4, 5, 16, generator=generator)
    sinks = torch.randn(4, generator=generator) if has_sinks else None
    fresh_keys, fresh_values = (
        torch.cat([whole[:, past:] for whole, (past, _) in zip(side, sizes, strict=True)], dim=1)[None]
        for side in (keys, values)
    )
    out, _ = attention(
        Layer(), query, fresh_keys, fresh_values, None, scaling=0.4, sliding_window=window, softcap=softcap, s_aux=sinks
    )
    grouped = query[0].view(2, 2, 5, 16)
    for index, rows in ((0, slice(0, 4)), (1, slice(4, 5))):
        expected = explicit(
            grouped[:, :, rows],
            keys[index],
            values[index],
            scale=0.4,
            first_row_at=sizes[index][0],
            window=window,
            softcap=softcap,
            sinks=None if sinks is None else sinks.view(2, 2),
        )
        close(out[0, rows].permute(1, 0, 2), expected.reshape(4, -1, 16))
        stored = gather(pool.keys[0], extents[index])
        assert torch.equal(stored, keys[index]), "keys did not end in their slots"


def test_fully_masked_scores_of_one_piece_do_not_reach_the_others() -> None:
    query, keys = torch.ones(1, 1, 2, 4), torch.ones(1, 3, 4)
    mask = torch.tensor([[True, False, False], [True, True, True]])
    piece = _attend(query, keys, torch.arange(12.0).view(1, 3, 4), Scores(1.0, mask=mask))
    assert torch.equal(piece.out[0, 0, 0], torch.arange(4.0))
    assert math.isclose(float(piece.lse[0, 0, 0]), 4.0, rel_tol=1e-6)


def test_gather_is_a_view_for_one_extent_and_a_copy_in_order_for_several() -> None:
    pool = torch.arange(20.0).view(1, 20, 1)
    one = gather(pool, [Extent(3, 4)])
    assert one.data_ptr() == pool[:, 3:].data_ptr()
    assert gather(pool, [Extent(9, 2), Extent(1, 1)])[0, :, 0].tolist() == [9.0, 10.0, 1.0]
    assert gather(pool, []).shape == (1, 0, 1)
