"""Models from folders and from the hub: what loads, under which name and digest, and how refusals read.

Method: tiny random models saved to a folder; the hub's client is replaced by functions that answer or fail as
it does.
"""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from anaphora.engine.models import hub
from anaphora.engine.models.digest import model_digest, tokenizer_hash, weights_of_state
from anaphora.engine.models.facts import facts_of
from anaphora.engine.models.loading import load_model
from anaphora.engine.models.spec import LoadedModel, ModelDigest
from anaphora.errors import ModelUnavailable
from anaphora.testing.random_models import byte_tokenizer, random_model

CPU = torch.device("cpu")


def save(loaded: LoadedModel, folder: Path) -> Path:
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def load(source: str | Path, cache_dir: Path, name: str | None = None) -> LoadedModel:
    return load_model(str(source), cache_dir=cache_dir, device=CPU, name=name, progress=False)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_folder_gives_the_model_that_was_saved(tmp_path: Path, family: str) -> None:
    saved = random_model(family)
    loaded = load(save(saved, tmp_path / "my-model"), tmp_path / "cache")
    tokens = torch.tensor([saved.tokenizer.encode("the same words")])
    assert torch.equal(loaded.model(tokens).logits, saved.model(tokens).logits)
    assert loaded.tokenizer.encode("the same words") == tokens[0].tolist()
    same = dataclasses.replace(saved.spec, name="my-model", digest=loaded.spec.digest)
    assert loaded.spec == same


def test_name_is_the_one_asked_for(tmp_path: Path) -> None:
    folder = save(random_model("llama"), tmp_path / "folder")
    assert load(folder, tmp_path / "cache", "assistant").spec.name == "assistant"


def test_folder_without_settings_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"no config\.json") as caught:
        load(tmp_path, tmp_path / "cache")
    assert "*.safetensors" in str(caught.value)


def test_folder_without_weights_says_so(tmp_path: Path) -> None:
    folder = save(random_model("llama"), tmp_path / "folder")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match="no weights"):
        load(folder, tmp_path / "cache")


def test_folder_with_damaged_weights_says_so(tmp_path: Path) -> None:
    folder = save(random_model("llama"), tmp_path / "folder")
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelUnavailable, match="can't be loaded"):
        load(folder, tmp_path / "cache")


@pytest.mark.parametrize("source", ["./absent", "/absent/folder", "absent.gguf"])
def test_absent_path_is_named(tmp_path: Path, source: str) -> None:
    with pytest.raises(ModelUnavailable, match="There is no file or folder"):
        load(source, tmp_path)


def test_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="smollm2-135m-instruct"):
        load("smollm", tmp_path)


def hub_error(kind: type[Exception]) -> Exception:
    if kind is LocalEntryNotFoundError:
        error: Exception = LocalEntryNotFoundError("cannot find the snapshot on disk")
        error.__cause__ = OSError("Name or service not known")
        return error
    response = httpx.Response(401, request=httpx.Request("GET", "http://hub.invalid/api"))
    return kind("refused", response=response)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (GatedRepoError, "is gated"),
        (RepositoryNotFoundError, "has no model own/model"),
        (LocalEntryNotFoundError, "can't be reached: Name or service not known"),
    ],
)
def test_hub_refusals_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], message: str
) -> None:
    def refuse(*arguments: object, **options: object) -> str:
        raise hub_error(kind)

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(ModelUnavailable, match=message):
        load("own/model", tmp_path)


def test_hub_model_is_taken_by_its_id_without_pickled_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(random_model("llama"), tmp_path / "snapshot")
    asked: list[list[str]] = []

    def answer(repo_id: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", answer)
    assert load("own/model", tmp_path / "cache").spec.name == "own/model"
    assert len(asked) == 1
    assert not any(pattern.endswith(".bin") for pattern in asked[0])


def test_hub_model_with_pickled_weights_alone_is_still_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = random_model("llama")
    folder = save(saved, tmp_path / "snapshot")
    (folder / "model.safetensors").unlink()

    def answer(repo_id: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        if "pytorch_model*.bin" in allow_patterns:
            torch.save(saved.model.state_dict(), folder / "pytorch_model.bin")
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", answer)
    tokens = torch.tensor([[1, 2, 3]])
    loaded = load("own/model", tmp_path / "cache")
    assert torch.equal(loaded.model(tokens).logits, saved.model(tokens).logits)


def digest_with(loaded: LoadedModel, **settings: object) -> ModelDigest:
    config = type(loaded.model.config)(**{**loaded.model.config.to_dict(), **settings})
    model = type(loaded.model)(config)
    return model_digest(weights="w", dtype=loaded.dtype, model=model, tokenizer=loaded.tokenizer)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5_000.0}},
        {"sliding_window": 16},
        {"rms_norm_eps": 1e-3},
        {"max_position_embeddings": 128},
    ],
)
def test_settings_that_change_keys_and_values_change_the_digest(settings: dict[str, object]) -> None:
    loaded = random_model("mistral-window")
    assert digest_with(loaded) == digest_with(loaded)
    assert digest_with(loaded, **settings) != digest_with(loaded)


def test_where_a_model_lies_and_how_it_is_called_do_not_change_the_digest(tmp_path: Path) -> None:
    saved = random_model("llama")
    first = load(save(saved, tmp_path / "one"), tmp_path / "cache", "a").spec
    second = load(save(saved, tmp_path / "two"), tmp_path / "other-cache", "b").spec
    assert first.digest == second.digest


def test_weights_dtype_and_tokenizer_each_change_the_digest() -> None:
    loaded = random_model("llama")

    def digest(weights: str = "w", dtype: torch.dtype = torch.float32, tokenizer: object = loaded.tokenizer) -> bytes:
        return model_digest(weights=weights, dtype=dtype, model=loaded.model, tokenizer=tokenizer)

    changed = [digest(weights="v"), digest(dtype=torch.bfloat16), digest(tokenizer=byte_tokenizer(300))]
    assert len({digest(), *changed}) == 4


def test_one_changed_weight_changes_the_hash_of_the_state() -> None:
    model = random_model("llama").model
    before = weights_of_state(model.state_dict())
    with torch.no_grad():
        model.model.norm.weight[0] += 1e-6
    assert weights_of_state(model.state_dict()) != before


def test_chat_template_and_truncation_do_not_change_a_tokenizers_hash() -> None:
    plain, other = byte_tokenizer(300), byte_tokenizer(300)
    other.chat_template = "{{ messages }}"
    other("text", truncation=True, max_length=2)
    assert tokenizer_hash(plain) == tokenizer_hash(other)


def test_digest_is_the_same_in_every_process() -> None:
    program = "from anaphora.testing.random_models import random_model; print(random_model('phi3').spec.digest.hex())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert outputs == {random_model("phi3").spec.digest.hex()}


def test_facts_are_readable() -> None:
    rows = dict(facts_of(random_model("llama")).rows())
    assert rows["heads"] == "4 query, 2 key/value, 16 wide"
    assert rows["keys and values"] == "512 bytes per token"
    assert rows["end tokens"] == "<|im_end|> (383)"
    assert rows["cacheable"] == "yes, exactly"
    assert "running state" in dict(facts_of(random_model("mamba")).rows())["cacheable"]
