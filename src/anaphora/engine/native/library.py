"""The compiled kernels as Python calls them. Structures mirror `source/decoder.h`, field by field.

Calls release the interpreter's lock and run on the OpenMP team of torch. Tensors are float32, contiguous, on the CPU.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anaphora.engine.native.build import NotBuilt, build
from anaphora.engine.native.panels import Panels

ALL_VISIBLE = -(2**31)
"""`Run.causal_from` of a run that lies in the past of all its rows."""


class Matrix(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("scales", c_void_p), ("format", c_int64)]


class Layer(ctypes.Structure):
    """Addresses of one layer's weights and of its part of the pool. 0: none."""

    _fields_ = [
        ("attention_norm", c_void_p),
        ("qkv", Matrix),
        ("qkv_bias", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("output", Matrix),
        ("output_bias", c_void_p),
        ("feed_norm", c_void_p),
        ("gate", Matrix),
        ("up", Matrix),
        ("gate_up_bias", c_void_p),
        ("down", Matrix),
        ("down_bias", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
    ]


class Model(ctypes.Structure):
    _fields_ = [
        ("num_slots", c_int64),
        ("num_layers", c_int32),
        ("hidden", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("inner", c_int32),
        ("vocab_size", c_int32),
        ("num_rotated", c_int32),
        ("epsilon", c_float),
        ("scale", c_float),
        ("final_norm", c_void_p),
        ("head", Matrix),
        ("head_bias", c_void_p),
        ("layers", c_void_p),
    ]


class Run(ctypes.Structure):
    _fields_ = [
        ("start", c_int64),
        ("length", c_int32),
        ("first_row", c_int32),
        ("num_rows", c_int32),
        ("causal_from", c_int32),
    ]


class Step(ctypes.Structure):
    _fields_ = [
        ("num_rows", c_int32),
        ("num_runs", c_int32),
        ("num_logits", c_int32),
        ("num_threads", c_int32),
        ("hidden", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("slots", c_void_p),
        ("runs", c_void_p),
        ("run_rows", c_void_p),
        ("logit_rows", c_void_p),
        ("logits", c_void_p),
    ]


class Kernels:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        """Load it. Raises: OSError."""
        self._library = ctypes.CDLL(str(path))
        for function in ("run_step", "linear", "norm_rows", "gate_rows", "place_rows", "sizes"):
            getattr(self._library, f"anaphora_{function}").restype = None
        sizes = (c_int64 * 6)()
        self._library.anaphora_sizes(sizes)
        ours = [ctypes.sizeof(structure) for structure in (Layer, Model, Run, Step)]
        assert list(sizes[:4]) == ours, f"library.py describes structures of {ours} bytes, decoder.h of {sizes[:4]}"
        self.width = int(sizes[4])  # floats of a vector; a head has to be a multiple of it
        self.max_head_dim = int(sizes[5])

    def run_step(self, model: Model, step: Step) -> None:
        """Run a whole step; see `source/decoder.h`."""
        self._library.anaphora_run_step(ctypes.byref(model), ctypes.byref(step))

    def linear(self, rows: Tensor, weight: Panels, bias: Tensor | None) -> Tensor:
        """rows [num_rows, depth] -> rows W^T + bias, [num_rows, num_outputs]. Made for few rows."""
        num_outputs = weight.num_outputs
        out = torch.empty((rows.shape[0], num_outputs))
        described = matrix(weight)
        self._library.anaphora_linear(
            _at(rows),
            _size(rows, 0),
            ctypes.byref(described),
            c_void_p(address(bias)),
            _size(rows, 1),
            c_int64(num_outputs),
            _at(out),
            _num_threads(),
        )
        return out

    def norm_rows(self, rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Root-mean-square norm: rows [num_rows, width], weight [width] -> [num_rows, width]."""
        out = torch.empty_like(rows)
        self._library.anaphora_norm_rows(
            _at(rows), _at(weight), _size(rows, 0), _size(rows, 1), c_float(epsilon), _at(out), _num_threads()
        )
        return out

    def gate_rows(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up: gate_up [num_rows, 2 * width] -> [num_rows, width]."""
        num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((num_rows, width))
        self._library.anaphora_gate_rows(_at(gate_up), c_int64(num_rows), c_int64(width), _at(out), _num_threads())
        return out

    def place_rows(self, model: Model, layer: int, qkv: Tensor, step: Step) -> Tensor:
        """Norm and rotate the heads of qkv [num_rows, (num_heads + 2 num_kv_heads) * head_dim].

        Keys and values go to the pool. Answers queries [num_heads, num_rows, head_dim].
        """
        queries = torch.empty((model.num_heads, step.num_rows, model.head_dim))
        self._library.anaphora_place_rows(
            ctypes.byref(model), c_int32(layer), _at(qkv), ctypes.byref(step), _at(queries)
        )
        return queries


def load_kernels(cache_dir: Path) -> Kernels | NotBuilt:
    """Build the kernels if need be and load them."""
    built = build(cache_dir)
    if isinstance(built, NotBuilt):
        return built
    try:
        return Kernels(built)
    except OSError as error:
        return NotBuilt(f"the library {built} can't be loaded: {error}")


def structures(kind: Any, items: Sequence[Any]) -> Any:
    """Make a C array of structures."""
    return (kind * len(items))(*items)


def matrix(packed: Panels) -> Matrix:
    """Describe a matrix. The caller keeps it alive."""
    assert packed.data.is_contiguous(), "the kernels read weights that lie one after another"
    return Matrix(packed.data.data_ptr(), address(packed.scales), int(packed.format))


def address(tensor: Tensor | None) -> int | None:
    """Give the address of a float32 tensor; None for none. The caller keeps the tensor alive."""
    if tensor is None:
        return None
    assert tensor.is_contiguous(), "the kernels read rows that lie one after another"
    assert tensor.dtype == torch.float32, "the kernels read float32"
    return int(tensor.data_ptr())


def _at(tensor: Tensor) -> c_void_p:
    return c_void_p(address(tensor))


def _size(tensor: Tensor, dimension: int) -> c_int64:
    return c_int64(tensor.shape[dimension])


def _num_threads() -> c_int32:
    return c_int32(torch.get_num_threads())
