"""GGUF files: fields, weights by the block formula, the kept folder, the cutting rule by name.

Method: a tiny Llama written here with the `gguf` package, in the quantised types of real files, with the
rotated row order that the format has.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anaphora.engine.models import gguf_file
from anaphora.engine.models.gguf_fields import read_fields
from anaphora.engine.models.gguf_file import plain_directory, pre_tokenizer_name
from anaphora.engine.models.loading import load_model
from anaphora.engine.models.spec import LoadedModel
from anaphora.errors import ModelUnavailable
from anaphora.testing.random_models import CHAT_TEMPLATE, SPECIAL_TOKENS, byte_tokenizer

VOCAB_SIZE = 384
WIDTH, FEED, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 128, 4, 2, 16, 2
Q4_1, Q8_0 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0

Weights = dict[str, np.ndarray]


def add_vocabulary(writer: gguf.GGUFWriter, pre: str) -> None:
    tokenizer = byte_tokenizer(VOCAB_SIZE)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    letters = [token for token in tokens if len(token) == 2]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 1 for token in tokens])
    writer.add_token_merges([f"{token[0]} {token[1]}" for token in letters])
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def rotated(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """Put rows into the file's order: rotated pairs (i, i + half) side by side."""
    half = weights.shape[0] // num_heads // 2
    return weights.reshape(num_heads, 2, half, -1).swapaxes(1, 2).reshape(weights.shape)


def write_gguf(path: Path, *, pre: str = "smollm", architecture: str = "llama", seed: int = 0) -> Weights:
    """Write a tiny Llama and return its weights under Transformers' names, as the formula gives them back."""
    source = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB_SIZE)
    add_vocabulary(writer, pre)
    expected: Weights = {}

    def add(theirs: str, ours: str, shape: tuple[int, ...], num_heads: int = 0) -> None:
        weights = source.normal(0, 0.1, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{theirs}.weight", weights)
            expected[f"{ours}.weight"] = weights
            return
        kind = Q8_0 if theirs == "token_embd" else Q4_1
        blocks = gguf.quants.quantize(rotated(weights, num_heads) if num_heads else weights, kind)
        writer.add_tensor(f"{theirs}.weight", blocks, raw_dtype=kind)
        back = gguf.quants.dequantize(blocks, kind)
        half = shape[0] // (2 * max(num_heads, 1))
        unrotated = back.reshape(num_heads, half, 2, -1).swapaxes(1, 2).reshape(shape) if num_heads else back
        expected[f"{ours}.weight"] = unrotated

    add("token_embd", "model.embed_tokens", (VOCAB_SIZE, WIDTH))
    add("output_norm", "model.norm", (WIDTH,))
    for layer in range(LAYERS):
        theirs, ours = f"blk.{layer}", f"model.layers.{layer}"
        add(f"{theirs}.attn_norm", f"{ours}.input_layernorm", (WIDTH,))
        add(f"{theirs}.ffn_norm", f"{ours}.post_attention_layernorm", (WIDTH,))
        add(f"{theirs}.attn_q", f"{ours}.self_attn.q_proj", (HEADS * HEAD_DIM, WIDTH), HEADS)
        add(f"{theirs}.attn_k", f"{ours}.self_attn.k_proj", (KV_HEADS * HEAD_DIM, WIDTH), KV_HEADS)
        add(f"{theirs}.attn_v", f"{ours}.self_attn.v_proj", (KV_HEADS * HEAD_DIM, WIDTH))
        add(f"{theirs}.attn_output", f"{ours}.self_attn.o_proj", (WIDTH, HEADS * HEAD_DIM))
        add(f"{theirs}.ffn_gate", f"{ours}.mlp.gate_proj", (FEED, WIDTH))
        add(f"{theirs}.ffn_up", f"{ours}.mlp.up_proj", (FEED, WIDTH))
        add(f"{theirs}.ffn_down", f"{ours}.mlp.down_proj", (WIDTH, FEED))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def load(path: Path, cache_dir: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(str(path), cache_dir=cache_dir, dtype=dtype, device=torch.device("cpu"), progress=False)


def test_weights_equal_the_block_formula_on_first_and_second_load(tmp_path: Path) -> None:
    expected = write_gguf(tmp_path / "tiny.gguf")
    for _ in range(2):
        state = load(tmp_path / "tiny.gguf", tmp_path / "cache").model.state_dict()
        assert set(state) == {*expected, "lm_head.weight"}
        for name, weights in expected.items():
            np.testing.assert_array_equal(state[name].numpy(), weights, err_msg=name)


def test_scores_equal_those_of_a_llama_built_from_the_weights(tmp_path: Path) -> None:
    expected = write_gguf(tmp_path / "tiny.gguf")
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=WIDTH,
        intermediate_size=FEED,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    reference = LlamaForCausalLM(config).eval()
    reference.load_state_dict({name: torch.from_numpy(value) for name, value in expected.items()}, strict=False)
    tokens = torch.arange(5, 40)[None]
    with torch.no_grad():
        difference = load(tmp_path / "tiny.gguf", tmp_path / "cache").model(tokens).logits - reference(tokens).logits
    assert difference.abs().max() < 1e-5


def test_facts_and_tokenizer_come_from_the_files_fields(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    loaded = load(tmp_path / "tiny.gguf", tmp_path / "cache")
    spec = loaded.spec
    assert (spec.name, spec.architecture, spec.max_context) == ("tiny", "LlamaForCausalLM", 256)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, HEADS, KV_HEADS, HEAD_DIM)
    # The file's own end token and the one that its chat template ends a turn with.
    assert spec.end_token_ids == {VOCAB_SIZE - 3, VOCAB_SIZE - 1}
    assert loaded.tokenizer.chat_template == CHAT_TEMPLATE
    assert pre_tokenizer_name(loaded.tokenizer) == "smollm"
    assert loaded.tokenizer.encode("<|im_end|>") == [VOCAB_SIZE - 1]


def test_second_load_converts_nothing_and_gives_the_same_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    first = load(tmp_path / "tiny.gguf", tmp_path / "cache")
    monkeypatch.setattr(gguf_file, "_convert", lambda *arguments: pytest.fail("converted again"))
    assert load(tmp_path / "tiny.gguf", tmp_path / "cache").spec == first.spec


def test_another_dtype_is_kept_beside_and_has_another_digest(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    full = load(tmp_path / "tiny.gguf", tmp_path / "cache")
    half = load(tmp_path / "tiny.gguf", tmp_path / "cache", torch.bfloat16)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    assert full.spec.digest != half.spec.digest
    assert len(list((tmp_path / "cache" / "dequantised").iterdir())) == 2


def test_another_file_under_the_same_name_is_converted_anew(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    first = load(path, tmp_path / "cache")
    expected = write_gguf(path, seed=1)
    os.utime(path, ns=(0, 1))
    second = load(path, tmp_path / "cache")
    assert first.spec.digest != second.spec.digest
    np.testing.assert_array_equal(second.model.state_dict()["model.norm.weight"].numpy(), expected["model.norm.weight"])


def test_fields_equal_those_the_gguf_package_reads(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    theirs = {
        name: field.contents()
        for name, field in gguf.GGUFReader(tmp_path / "tiny.gguf").fields.items()
        if not name.startswith("GGUF.")
    }
    assert read_fields(tmp_path / "tiny.gguf") == theirs


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 8]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"", "not a GGUF file"),
        (lambda content: b"<html>not found</html>", "not a GGUF file"),
        (lambda content: b"GGUF is a file format.", "another kind of file"),
        (lambda content: content[:4] + b"\x01\x00\x00\x00" + content[8:], "GGUF version 1"),
        (truncated, "Is the file whole"),
        (lambda content: content[:16] + b"\xff" * 8 + content[24:], "downloaded whole"),
    ],
    ids=["empty", "a web page", "a text", "old version", "truncated", "absurd length"],
)
def test_damaged_file_is_refused_in_plain_words(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelUnavailable, match=message) as caught:
        load(path, tmp_path / "cache")
    assert str(path) in str(caught.value)
    assert not any((tmp_path / "cache").glob("dequantised/*"))


def test_unknown_architecture_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "odd.gguf", architecture="unheardof")
    with pytest.raises(ModelUnavailable, match="unheardof"):
        load(tmp_path / "odd.gguf", tmp_path / "cache")


def test_full_disk_is_named_and_leaves_nothing_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, folder: Path, dtype: torch.dtype) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(gguf_file, "_convert", full)
    with pytest.raises(ModelUnavailable, match="is full"):
        plain_directory(tmp_path / "tiny.gguf", cache_dir=tmp_path / "cache", dtype=torch.float32)
    assert not any((tmp_path / "cache" / "dequantised").iterdir())


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "Ġok", "ĊĊĠ", "Ġx"]),
        ("gpt-2", ["It", "'s", "Ġ1234", "Ġok", "ĊĊĠ", "Ġx"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "4", "Ġok", "ĊĊ", "Ġ", "Ġx"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "Ġok", "ĊĊ", "Ġ", "Ġx"]),
        ("tekken", ["It", "'s", "Ġ", "1", "2", "3", "4", "Ġok", "ĊĊ", "Ġ", "Ġx"]),
    ],
)
def test_text_is_cut_by_the_rule_the_file_names(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    write_gguf(tmp_path / "tiny.gguf", pre=pre)
    backend = load(tmp_path / "tiny.gguf", tmp_path / "cache").tokenizer.backend_tokenizer
    assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("It's 1234 ok\n\n  x")] == pieces


def test_unknown_rule_is_told_at_every_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_gguf(tmp_path / "tiny.gguf", pre="unheard-of")
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="anaphora"):
            load(tmp_path / "tiny.gguf", tmp_path / "cache")
        assert "'unheard-of', whose rule is not known here" in caplog.text


def test_known_rule_is_not_worth_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    with caplog.at_level(logging.WARNING, logger="anaphora"):
        load(tmp_path / "tiny.gguf", tmp_path / "cache")
    assert "rule" not in caplog.text
