"""The compiled kernels alone: what they compute, how they are built, and what happens where they can't be."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from anaphora.engine.native import build as build_module
from anaphora.engine.native.build import NotBuilt, build
from anaphora.engine.native.library import Kernels, load_kernels

shapes = st.tuples(st.integers(1, 9), st.integers(1, 67))


def numbers(num_rows: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn((num_rows, width), generator=torch.Generator().manual_seed(seed)) * 3


@given(shape=shapes, seed=st.integers(0, 99))
def test_norm_equals_torch_for_any_width(kernels: Kernels, shape: tuple[int, int], seed: int) -> None:
    rows, weight = numbers(*shape, seed), numbers(1, shape[1], seed + 1)[0]
    expected = functional.rms_norm(rows, (shape[1],), weight, 1e-5)
    torch.testing.assert_close(kernels.norm_rows(rows, weight, 1e-5), expected)


@given(shape=shapes, seed=st.integers(0, 99))
def test_gate_equals_torch_for_any_width(kernels: Kernels, shape: tuple[int, int], seed: int) -> None:
    gate_up = numbers(shape[0], 2 * shape[1], seed)
    gate, up = gate_up.chunk(2, dim=1)
    torch.testing.assert_close(kernels.gate_rows(gate_up), functional.silu(gate) * up)


def test_gate_of_extremes_is_what_the_formula_says(kernels: Kernels) -> None:
    gate = torch.tensor([[0.0, -0.0, 1e-30, -87.0, -88.5, -200.0, -3e38, 88.0, 300.0, 3e38, torch.inf, torch.nan]])
    found = kernels.gate_rows(torch.cat([gate, torch.ones_like(gate)], dim=1))
    torch.testing.assert_close(found, functional.silu(gate), equal_nan=True, atol=1e-30, rtol=1e-6)


def test_library_is_built_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Path] = []
    monkeypatch.setattr(build_module, "_compile", lambda compiler, target: compiled.append(target) or target.touch())
    first, second = build(tmp_path), build(tmp_path)
    if isinstance(first, NotBuilt):
        pytest.skip(first.reason)
    assert first == second
    assert first.is_file()
    assert len(compiled) == 1


def test_library_of_another_processor_or_source_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "_compile", lambda compiler, target: target.touch())
    first = build(tmp_path)
    if isinstance(first, NotBuilt):
        pytest.skip(first.reason)
    monkeypatch.setattr(build_module, "_processor", lambda: "another")
    assert build(tmp_path) != first
    monkeypatch.undo()
    monkeypatch.setattr(build_module, "_compile", lambda compiler, target: target.touch())
    sources = tmp_path / "source"
    sources.mkdir()
    (sources / "decoder.cpp").write_text("int changed;")
    monkeypatch.setattr(build_module, "SOURCES", sources)
    assert build(tmp_path) != first


def test_machine_without_a_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module.shutil, "which", lambda name: None)
    assert load_kernels(tmp_path) == NotBuilt("there is no GNU C++ compiler (g++) on this machine's path")
    assert not list(tmp_path.iterdir())


def test_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo Free Software Foundation && exit 0\necho no >&2\nexit 3\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(build_module.shutil, "which", lambda name: str(compiler))
    found = load_kernels(tmp_path / "cache")
    assert isinstance(found, NotBuilt)
    assert "ended with status 3: no" in found.reason
    assert not list((tmp_path / "cache" / "native").iterdir())


def test_library_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "_compile", lambda compiler, target: target.write_bytes(b"not a library"))
    found = load_kernels(tmp_path)
    assert isinstance(found, NotBuilt)
    assert "can't be loaded" in found.reason or "no GNU C++ compiler" in found.reason


def test_two_processes_that_build_at_once_get_one_whole_library(kernels: Kernels, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from anaphora.engine.native.library import load_kernels\n"
        "print(load_kernels(Path(sys.argv[1])).width)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=300)[0] for process in both] == [f"{kernels.width}\n"] * 2
    assert len(list((tmp_path / "native").iterdir())) == 1
