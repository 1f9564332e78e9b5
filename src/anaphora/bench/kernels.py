"""Tables behind the constants of the engine's kernels: linear layers, and reads of the pool."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from anaphora.bench.timing import interleaved, seconds
from anaphora.engine.attention import CpuFlashKernel, Piece, merge
from anaphora.engine.linear import JOINED, pack_linears

LINEAR_ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 1024)
PAST_TOKENS = (512, 1024, 2048, 6144)
QUERY_ROWS = (1, 2, 4, 8)
SHARED_TOKENS = (16, 32, 64, 128, 512, 2048)
READERS = (2, 4, 8)

_COLD_BYTES = 64 * 2**20  # cycle over this much memory, so that weights and keys come from memory, as in a model


Layer = tuple[Tensor, Tensor]
"""Keys and values, each [num_kv_heads, num_tokens, head_dim]."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two ways to do one thing, in microseconds."""

    what: str
    ours_us: float
    other_us: float

    @property
    def gain(self) -> float:
        """How many times as fast ours is."""
        return self.other_us / self.ours_us


class _NeverCut(CpuFlashKernel):
    MAX_ROWS_TO_SPLIT = 0


class _AlwaysCut(CpuFlashKernel):
    MAX_ROWS_TO_SPLIT = 2**31
    MIN_TOKENS_TO_SPLIT = 2


def compare_linears(
    shapes: Sequence[tuple[int, int]],  # (out_features, in_features)
    *,
    rows: Sequence[int] = LINEAR_ROWS,
    num_rounds: int = 7,
) -> list[Comparison]:
    """Time packed layers against `torch.nn.functional.linear`, weights read from memory."""
    found = []
    with torch.inference_mode():
        for out_features, in_features in shapes:
            num_copies = max(1, _COLD_BYTES // (4 * out_features * in_features))
            plain = [nn.Linear(in_features, out_features, bias=False) for _ in range(num_copies)]
            packed = [_packed({"layer": layer})["layer"] for layer in plain]
            for num_rows in rows:
                inputs = torch.randn(num_rows, in_features)
                what = f"{in_features:,} to {out_features:,}, {num_rows:,} rows"
                ours, other = ([partial(layer, inputs) for layer in layers] for layers in (packed, plain))
                found.append(_compare(what, ours, other, num_rounds=num_rounds))
    return found


def compare_joining(
    groups: Sequence[tuple[tuple[int, ...], int]],  # (out_features of each layer, in_features)
    *,
    rows: Sequence[int] = LINEAR_ROWS,
    num_rounds: int = 7,
) -> list[Comparison]:
    """Time layers that read one input as one product against as many packed layers, weights read from memory."""
    found = []
    with torch.inference_mode():
        for sizes, in_features in groups:
            num_copies = max(1, _COLD_BYTES // (4 * sum(sizes) * in_features))
            names = next(names for names in JOINED if len(names) == len(sizes))
            plain = [[nn.Linear(in_features, size, bias=False) for size in sizes] for _ in range(num_copies)]
            joined = [_packed(dict(zip(names, layers, strict=True))) for layers in plain]
            apart = [_packed({f"layer_{index}": layer for index, layer in enumerate(layers)}) for layers in plain]
            for num_rows in rows:
                inputs = torch.randn(num_rows, in_features)
                what = f"{in_features:,} to {' + '.join(f'{size:,}' for size in sizes)}, {num_rows:,} rows"
                ours, other = ([partial(_call_all, layers, inputs) for layers in way] for way in (joined, apart))
                found.append(_compare(what, ours, other, num_rounds=num_rounds))
    return found


def _packed(layers: Mapping[str, nn.Linear]) -> nn.ModuleDict:
    """Pack copies of layers as the engine does it for a module that has them under these names."""
    module = nn.ModuleDict(copy.deepcopy(dict(layers)))
    assert pack_linears(module) == len(layers)
    return module


def _call_all(layers: nn.ModuleDict, inputs: Tensor) -> list[Tensor]:
    return [layer(inputs) for layer in layers.values()]


def joined_shapes(model: nn.Module) -> list[tuple[tuple[int, ...], int]]:
    """The distinct groups of a model's layers that read one input: out_features of each, and in_features."""
    found = []
    for parent in model.modules():
        for group in JOINED:
            layers = [layer for name in group if isinstance(layer := getattr(parent, name, None), nn.Linear)]
            if len(layers) == len(group):
                found.append((tuple(layer.out_features for layer in layers), layers[0].in_features))
    return list(dict.fromkeys(found))


def linear_shapes(model: nn.Module) -> list[tuple[int, int]]:
    """The distinct shapes of a model's linear layers, (out_features, in_features), in order of appearance."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return list(dict.fromkeys((layer.out_features, layer.in_features) for layer in layers))


@dataclass(frozen=True, slots=True)
class Heads:
    """An attention layer's shape."""

    num_kv_heads: int
    num_groups: int  # query heads for each key head
    head_dim: int

    def keys(self, num_tokens: int) -> Tensor:
        return torch.randn(self.num_kv_heads, num_tokens, self.head_dim)

    def query(self, num_rows: int) -> Tensor:
        return torch.randn(self.num_kv_heads, self.num_groups, num_rows, self.head_dim)

    def layers(self, num_tokens: int) -> list[Layer]:
        """Keys and values of so many layers that they do not fit a cache."""
        size = 8 * self.num_kv_heads * self.head_dim * num_tokens
        num_layers = min(30, max(2, _COLD_BYTES // size))
        return [(self.keys(num_tokens), self.keys(num_tokens)) for _ in range(num_layers)]


def compare_cuts(heads: Heads, *, past_tokens: Sequence[int] = PAST_TOKENS, num_rounds: int = 7) -> list[Comparison]:
    """Time reading the past in two halves at once against reading it whole, for a few rows."""
    found = []
    with torch.inference_mode():
        for num_tokens in past_tokens:
            layers = heads.layers(num_tokens)
            for num_rows in QUERY_ROWS:
                query = heads.query(num_rows)
                what = f"{num_tokens:,} tokens, {num_rows} rows ({num_rows * heads.num_groups} folded)"
                ours, other = (
                    [partial(_attend, kernel, query, layer) for layer in layers]
                    for kernel in (_AlwaysCut(), _NeverCut())
                )
                found.append(_compare(what, ours, other, num_rounds=num_rounds))
    return found


def compare_sharing(
    heads: Heads, *, shared_tokens: Sequence[int] = SHARED_TOKENS, num_private: int = 64, num_rounds: int = 7
) -> list[Comparison]:
    """Time one read of a shared run for all its readers against one read by each, one row a reader.

    Each reader has `num_private` tokens of its own behind the shared ones. Read together, these take a call and a
    merge of their own; read apart, they are part of one run.
    """
    found = []
    with torch.inference_mode():
        for num_shared in shared_tokens:
            layers = heads.layers(num_shared + num_private)
            for num_readers in READERS:
                queries = [heads.query(1) for _ in range(num_readers)]
                what = f"{num_shared:,} shared tokens, {num_readers} readers"
                together = [partial(_read_together, queries, layer, num_shared) for layer in layers]
                apart = [partial(_read_apart, queries, layer) for layer in layers]
                found.append(_compare(what, together, apart, num_rounds=num_rounds))
    return found


def _read_together(queries: list[Tensor], layer: Layer, num_shared: int) -> list[Tensor]:
    kernel, (keys, values), scale = CpuFlashKernel(), layer, queries[0].shape[-1] ** -0.5
    shared = kernel.past(torch.cat(queries, dim=2), keys[:, :num_shared], values[:, :num_shared], scale)
    answers = []
    for index, query in enumerate(queries):
        own = kernel.past(query, keys[:, num_shared:], values[:, num_shared:], scale)
        row = slice(index, index + 1)
        answers.append(merge([*own, *(Piece(piece.out[:, :, row], piece.lse[:, :, row]) for piece in shared)]))
    return answers


def _read_apart(queries: list[Tensor], layer: Layer) -> list[Tensor]:
    return [_attend(CpuFlashKernel(), query, layer) for query in queries]


def _attend(kernel: CpuFlashKernel, query: Tensor, layer: Layer) -> Tensor:
    return merge(kernel.past(query, *layer, query.shape[-1] ** -0.5))


def _compare(
    what: str, ours: Sequence[Callable[[], object]], other: Sequence[Callable[[], object]], *, num_rounds: int
) -> Comparison:
    """Time all calls of one kind, then of the other, turn by turn; microseconds a call."""

    def timed(calls: Sequence[Callable[[], object]]) -> Callable[[], float]:
        return lambda: seconds(lambda: [call() for call in calls]) / len(calls)

    ours_s, other_s = interleaved(timed(ours), timed(other), num_rounds=num_rounds)
    return Comparison(what, 1e6 * median(ours_s), 1e6 * median(other_s))
