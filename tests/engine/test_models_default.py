"""The default model, as a user gets it: exact tokens, exact weights, a stable digest, a quick second start.

Method: the tokenizer is compared with ids recorded from llama.cpp and with a byte-level BPE written here from
the file's vocabulary and merges; the weights with the block formula of the `gguf` package. Skipped where the
default model isn't in the cache folder (`anaphora models fetch` puts it there).
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import pytest
import regex
import torch

from anaphora.engine.models.catalog import CATALOG, DEFAULT_MODEL
from anaphora.engine.models.fetch import default_cache_dir, is_fetched, model_file
from anaphora.engine.models.gguf_fields import read_fields
from anaphora.engine.models.loading import load_model
from anaphora.engine.models.spec import LoadedModel

CACHE_DIR = Path(os.environ.get("ANAPHORA_CACHE_DIR") or default_cache_dir())
ENTRY = CATALOG[DEFAULT_MODEL]
GOLDEN = json.loads((Path(__file__).parent / "smollm2_tokens.json").read_text(encoding="utf-8"))["cases"]

pytestmark = pytest.mark.skipif(
    not is_fetched(ENTRY, cache_dir=CACHE_DIR), reason="the default model is not in the cache folder"
)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(DEFAULT_MODEL, cache_dir=CACHE_DIR, device=torch.device("cpu"), progress=False)


@pytest.fixture(scope="module")
def second_tokenizer() -> "SecondTokenizer":
    return SecondTokenizer(model_file(ENTRY, cache_dir=CACHE_DIR))


class SecondTokenizer:
    """Byte-level BPE from a GGUF file's vocabulary and merges: digits alone, then GPT-2's rule, then merges."""

    DIGIT = regex.compile(r"\p{N}")
    WORD = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

    def __init__(self, path: Path) -> None:
        fields = read_fields(path)
        tokens = fields["tokenizer.ggml.tokens"]
        types = fields["tokenizer.ggml.token_type"]
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(fields["tokenizer.ggml.merges"])}
        special = sorted((token for token, kind in zip(tokens, types, strict=True) if kind == 3), key=len)
        self.special = regex.compile("(" + "|".join(map(regex.escape, reversed(special))) + ")")
        kept = [byte for byte in range(256) if chr(byte).isprintable() and byte not in (0x20, 0xA0, 0xAD)]
        rest = [byte for byte in range(256) if byte not in kept]
        self.letters = {byte: chr(byte) for byte in kept} | {b: chr(256 + i) for i, b in enumerate(rest)}

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        for index, part in enumerate(self.special.split(text)):
            if index % 2:
                found.append(self.ids[part])
            else:
                found += [self.ids[token] for word in self.words(part) for token in self.merged(word)]
        return found

    def words(self, text: str) -> Iterator[str]:
        start = 0
        for digit in self.DIGIT.finditer(text):
            yield from self.WORD.findall(text[start : digit.start()])
            yield digit.group()
            start = digit.end()
        yield from self.WORD.findall(text[start:])

    def merged(self, word: str) -> list[str]:
        pieces = [self.letters[byte] for byte in word.encode()]
        while len(pieces) > 1:
            pairs = [self.ranks.get(pair, len(self.ranks)) for pair in pairwise(pieces)]
            best = min(pairs)
            if best == len(self.ranks):
                break
            at = pairs.index(best)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces


def random_text(source: random.Random) -> str:
    scripts = [
        "abc XYZ",
        "0123456789",
        " \t\n\r ",
        "éüßæ",
        "привет",
        "漢字かな",
        "नमस्ते",
        "مرحبا١٢",
        "🙂👍🏽🇩🇪\u200d",
        "'sdt.,;!?",
        "½²ⅷ",
    ]
    parts = ["".join(source.choices(source.choice(scripts), k=source.randint(1, 6))) for _ in range(12)]
    return source.choice(["", "<|im_start|>", "<|im_end|>"]).join(parts)


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_tokens_equal_those_recorded_from_llama_cpp(loaded: LoadedModel, case: dict) -> None:
    assert loaded.tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"]


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_second_tokenizer_agrees_with_llama_cpp(second_tokenizer: SecondTokenizer, case: dict) -> None:
    assert second_tokenizer.encode(case["text"]) == case["ids"]


def test_tokens_of_random_texts_equal_the_second_tokenizers_and_decode_back(
    loaded: LoadedModel, second_tokenizer: SecondTokenizer
) -> None:
    source = random.Random(7)
    for _ in range(300):
        text = random_text(source)
        ids = loaded.tokenizer.encode(text, add_special_tokens=False)
        assert ids == second_tokenizer.encode(text), text
        assert loaded.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_every_digit_is_a_token_of_its_own(loaded: LoadedModel) -> None:
    tokens = loaded.tokenizer.tokenize("In 2024 and 31415")
    assert tokens == ["In", "Ġ", "2", "0", "2", "4", "Ġand", "Ġ", "3", "1", "4", "1", "5"]


def test_no_token_is_added_around_a_text(loaded: LoadedModel) -> None:
    plain = loaded.tokenizer.encode("Hello", add_special_tokens=False)
    assert loaded.tokenizer.encode("Hello") == plain


def test_chat_template_of_the_file_is_used(loaded: LoadedModel) -> None:
    text = loaded.tokenizer.apply_chat_template(
        [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == ("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n")


def test_spec_holds_the_models_facts(loaded: LoadedModel) -> None:
    spec = loaded.spec
    assert (spec.name, spec.architecture) == (DEFAULT_MODEL, "LlamaForCausalLM")
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 9, 3, 64)
    assert (spec.vocab_size, spec.max_context) == (49_152, 8_192)
    assert spec.end_token_ids == {loaded.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert spec.not_cacheable_because is None
    assert spec.kv_bytes_per_token(torch.float32) == 46_080
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert not loaded.model.training


def test_weights_equal_the_files_block_formula(loaded: LoadedModel) -> None:
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(model_file(ENTRY, cache_dir=CACHE_DIR)).tensors}

    def formula(name: str) -> np.ndarray:
        return gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)

    def unrotated(weights: np.ndarray, num_heads: int) -> np.ndarray:
        """Undo the file's order of rotated rows: pairs (i, i + half) lie side by side there."""
        half = weights.shape[0] // num_heads // 2
        return weights.reshape(num_heads, half, 2, -1).swapaxes(1, 2).reshape(weights.shape)

    state = loaded.model.state_dict()
    for layer in (0, 17, 29):
        ours, theirs = f"model.layers.{layer}", f"blk.{layer}"
        expected = {
            f"{ours}.mlp.down_proj.weight": formula(f"{theirs}.ffn_down.weight"),
            f"{ours}.self_attn.v_proj.weight": formula(f"{theirs}.attn_v.weight"),
            f"{ours}.self_attn.q_proj.weight": unrotated(formula(f"{theirs}.attn_q.weight"), 9),
            f"{ours}.self_attn.k_proj.weight": unrotated(formula(f"{theirs}.attn_k.weight"), 3),
            f"{ours}.input_layernorm.weight": formula(f"{theirs}.attn_norm.weight"),
        }
        for name, weights in expected.items():
            np.testing.assert_array_equal(state[name].numpy(), weights, err_msg=name)
    embedding = formula("token_embd.weight")
    np.testing.assert_array_equal(state["model.embed_tokens.weight"].numpy(), embedding)
    np.testing.assert_array_equal(loaded.model.get_output_embeddings().weight.numpy(), embedding)


def test_digest_is_the_same_in_another_process(loaded: LoadedModel) -> None:
    program = (
        "import sys, torch; from pathlib import Path; from anaphora.engine.models.loading import load_model\n"
        "found = load_model(sys.argv[1], cache_dir=Path(sys.argv[2]), device=torch.device('cpu'), progress=False)\n"
        "print(found.spec.digest.hex())"
    )
    output = subprocess.run(
        [sys.executable, "-c", program, DEFAULT_MODEL, str(CACHE_DIR)],
        env={**os.environ, "PYTHONHASHSEED": "4321"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output.split()[-1] == loaded.spec.digest.hex()
