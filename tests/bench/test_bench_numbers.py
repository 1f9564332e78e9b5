"""The benchmark measures what it says: order of runs, verdicts, floors, what is written down.

Method: timers that answer known numbers, and work counted by hand.
"""

import copy
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from anaphora.bench.floor import Hardware, Weights, floor_line, measure_hardware, weights_of, work_of
from anaphora.bench.kernels import (
    Heads,
    _call_all,
    _packed,
    _read_apart,
    _read_together,
    compare_cuts,
    compare_joining,
    compare_linears,
    compare_sharing,
    joined_shapes,
    linear_shapes,
)
from anaphora.bench.lines import Line, at_least, at_most
from anaphora.bench.machine import this_machine
from anaphora.bench.report import as_json, table_of, write_files
from anaphora.bench.texts import FreshTokens, handbook
from anaphora.bench.timing import interleaved, ratio
from anaphora.testing.random_models import random_model


def test_runs_take_turns_and_warm_up_does_not_count() -> None:
    order: list[str] = []

    def timer(name: str) -> float:
        order.append(name)
        return float(len(order))

    a, b = interleaved(lambda: timer("a"), lambda: timer("b"), num_rounds=3)
    assert order == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert a == [3.0, 6.0, 7.0]
    assert b == [4.0, 5.0, 8.0]


def test_ratio_is_of_medians() -> None:
    assert ratio([1.0, 100.0, 4.0], [2.0, 2.0, 50.0]) == 2.0


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [(at_most(1.1), 1.1, "PASS"), (at_most(1.1), 1.11, "FAIL"), (at_least(25), 25, "PASS"), (at_least(25), 24, "FAIL")],
)
def test_a_line_says_whether_its_target_is_met(target: object, value: float, verdict: str) -> None:
    assert Line("x", value, "x", target).verdict == verdict  # type: ignore[arg-type]
    assert Line("x", value, "x").verdict == ""


def test_floor_counts_weights_keys_and_sums() -> None:
    spec = random_model("llama").spec  # 2 layers, 4 heads, 2 of keys, 16 wide
    work = work_of(spec, Weights(num_in_layers=1000, num_in_output=100, num_bytes=777), num_cached=90, num_new=10)
    assert work.num_bytes == 777 + 100 * (2 * 2 * 2 * 16 * 4)
    assert work.num_flops == 2 * (1000 * 10 + 100) + 4 * 2 * 4 * 16 * 10 * 100
    bound_by_bytes = floor_line("x", 1.0, work, Hardware(bytes_per_s=work.num_bytes, flops_per_s=1e30))
    bound_by_sums = floor_line("x", 1.0, work, Hardware(bytes_per_s=1e30, flops_per_s=work.num_flops * 2))
    assert bound_by_bytes.value == pytest.approx(1.0)
    assert bound_by_sums.value == pytest.approx(2.0)


def test_weights_are_those_of_linear_layers_and_the_output() -> None:
    model = random_model("llama").model
    in_layers, in_output = 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128), 384 * 64
    assert weights_of(model) == Weights(in_layers, in_output, num_bytes=4 * (in_layers + in_output))
    rounded = copy.deepcopy(model).bfloat16().float()
    assert weights_of(rounded).num_bytes == 2 * (in_layers + in_output)


@pytest.mark.torture
def test_hardware_is_within_reason() -> None:
    found = measure_hardware(num_rounds=2)
    assert 1e9 < found.bytes_per_s < 1e13
    assert 1e9 < found.flops_per_s < 1e15


def test_report_holds_every_line_and_the_machine(tmp_path: Path) -> None:
    lines = [
        Line("decode", 1.5, "x", at_least(1.3), {"engine_ms_per_token": 50.0, "generate_ms_per_token": 75.0}),
        Line("memory", 1.5, "x", at_most(1.02), {"first_mib": 1.0}),
    ]
    machine = this_machine()
    written = write_files(lines, machine, tmp_path / "out", name="bench")
    assert written[1].read_bytes().startswith(b"\x89PNG")
    data = json.loads(written[0].read_text(encoding="utf-8"))
    assert written[0].read_text(encoding="utf-8") == as_json(lines, machine)
    assert [line["verdict"] for line in data["lines"]] == ["PASS", "FAIL"]
    assert data["lines"][0]["parts"] == {"engine_ms_per_token": 50.0, "generate_ms_per_token": 75.0}
    assert data["machine"]["torch"] == torch.__version__
    assert data["machine"]["num_cores"] >= 1
    console = Console(width=160, record=True, file=(tmp_path / "table").open("w", encoding="utf-8"))
    console.print(table_of(lines, machine))
    console.file.close()
    text = console.export_text()
    assert "decode" in text
    assert ">= 1.3" in text
    assert "PASS" in text
    assert "FAIL" in text


def test_shared_reads_and_separate_reads_answer_the_same() -> None:
    heads = Heads(num_kv_heads=2, num_groups=3, head_dim=16)
    queries = [heads.query(1) for _ in range(3)]
    layer = (heads.keys(40), heads.keys(40))
    for together, apart in zip(_read_together(queries, layer, 30), _read_apart(queries, layer), strict=True):
        torch.testing.assert_close(together, apart)


def test_joined_layers_and_separate_ones_answer_the_same() -> None:
    layers = [torch.nn.Linear(16, size, bias=False) for size in (8, 4)]
    inputs = torch.randn(3, 16)
    with torch.inference_mode():
        joined = _call_all(_packed(dict(zip(("gate_proj", "up_proj"), layers, strict=True))), inputs)
        apart = _call_all(_packed({"a": layers[0], "b": layers[1]}), inputs)
        plain = [layer(inputs) for layer in layers]
    for one, two, three in zip(joined, apart, plain, strict=True):
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(one, three)


def test_kernel_tables_have_a_row_for_every_case() -> None:
    shapes = linear_shapes(random_model("llama").model)
    assert shapes == [(64, 64), (32, 64), (128, 64), (64, 128), (384, 64)]
    assert joined_shapes(random_model("llama").model) == [((64, 32, 32), 64), ((128, 128), 64)]
    joining = compare_joining([((2048, 1024), 2048)], rows=(1, 2), num_rounds=1)
    linears = compare_linears([(2048, 2048)], rows=(1, 2), num_rounds=1)
    heads = Heads(num_kv_heads=1, num_groups=2, head_dim=16)
    cuts = compare_cuts(heads, past_tokens=(64,), num_rounds=1)
    sharing = compare_sharing(heads, shared_tokens=(16,), num_rounds=1)
    assert [len(linears), len(joining), len(cuts), len(sharing)] == [2, 2, 4, 3]
    for one in (*linears, *joining, *cuts, *sharing):
        assert one.ours_us > 0
        assert one.gain == one.other_us / one.ours_us


def test_handbook_is_as_long_as_asked_and_always_the_same() -> None:
    def count(text: str) -> int:
        return len(text.split())

    text = handbook(500, count)
    assert 500 <= count(text) < 520
    assert text == handbook(500, count)
    assert "open from Monday" in text


def test_fresh_prompts_share_no_first_token() -> None:
    fresh = FreshTokens(100)
    prompts = [fresh.draw(3) for _ in range(100)]
    assert len({int(prompt[0]) for prompt in prompts}) == 100
    assert {len(prompt) for prompt in prompts} == {3}
