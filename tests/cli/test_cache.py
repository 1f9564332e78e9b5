"""`anaphora cache` over a real folder. Method: an engine with a tiny model fills it; the real command line is asked."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from anaphora.cli.main import app
from anaphora.engine.engine import Engine
from anaphora.engine.request import GenerationRequest, RequestId, Sampling, Tenant
from anaphora.engine.settings import EngineSettings
from anaphora.errors import AnaphoraError
from anaphora.testing.random_models import random_model
from anaphora.tiers.archive import NotImported

Cache = Callable[..., Result]
GREEDY = Sampling(temperature=0.0, max_tokens=4, ignore_end=True)
PROMPT = np.random.default_rng(0).integers(0, 256, 600).astype(np.int32)
OTHER = np.concatenate([PROMPT[:300], PROMPT[:100]])
REQUEST = {
    "model": "tiny",
    "messages": [{"role": "system", "content": "You know ships. " * 20}, {"role": "user", "content": "Which is old?"}],
}


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    loaded = random_model("llama", max_context=2048)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def engine_on(model_folder: Path, folder: Path) -> Engine:
    settings = EngineSettings(
        kv_pool_bytes=4 * 2**20, num_threads=1, disk_cache_bytes=2**26, disk_cache_dir=folder, kernels="torch"
    )
    engine = Engine.load(str(model_folder), settings, progress=False)
    assert engine._durable is not None
    engine._durable._rates.prefill_tokens_per_s = 1.0  # so small a model computes faster than a disk reads
    return engine


def ask(engine: Engine, tokens: np.ndarray, tenant: str = "") -> int:
    """Ask; answer how many tokens were reused."""
    request = GenerationRequest(RequestId("test"), tokens, GREEDY, Tenant(tenant))
    return engine.submit(request).result().receipt.num_reused_tokens


@pytest.fixture
def folder(tmp_path: Path, model_folder: Path) -> Path:
    """Three prompts: two of red, which share an opening, and one of blue."""
    with engine_on(model_folder, tmp_path / "kv") as engine:
        for tokens, tenant in ((PROMPT, "red"), (OTHER, "red"), (PROMPT[:50], "blue")):
            ask(engine, tokens, tenant)
    return tmp_path / "kv"


@pytest.fixture
def cache(folder: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Ask the command line about the folder; an error made on purpose is raised."""
    monkeypatch.setenv("ANAPHORA_DISK_CACHE_DIR", str(folder))
    monkeypatch.setenv("ANAPHORA_MODEL", str(model_folder))
    monkeypatch.setenv("ANAPHORA_KERNELS", "torch")
    monkeypatch.setenv("ANAPHORA_NUM_THREADS", "1")
    monkeypatch.setenv("ANAPHORA_KV_POOL_BYTES", "4MiB")

    def call(*arguments: str, **options: object) -> Result:
        result = CliRunner().invoke(app, ["cache", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"}, **options)  # type: ignore[arg-type]
        if isinstance(result.exception, AnaphoraError):
            raise result.exception
        return result

    return call


def listed(cache: Cache) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(cache("ls", "--json").output)
    return rows


def named(cache: Cache, tenant: str, num_tokens: int) -> str:
    return next(str(row["name"]) for row in listed(cache) if (row["tenant"], row["tokens"]) == (tenant, num_tokens))


def test_prompts_are_listed_the_last_used_first(cache: Cache) -> None:
    assert [(row["tenant"], row["tokens"]) for row in listed(cache)] == [("blue", 53), ("red", 403), ("red", 603)]
    output = cache("ls").output
    assert all(word in output for word in ("red", "blue", "603", "803 tokens", "5 records"))


def test_a_prompt_is_shown_with_its_records(cache: Cache) -> None:
    output = cache("show", named(cache, "red", 603)).output
    assert all(part in output for part in ("tenant red, 603 tokens", "0 to 256", "256 to 512", "512 to 603"))


def test_an_evicted_prompt_takes_what_hangs_from_it(cache: Cache) -> None:
    name = named(cache, "red", 603)
    assert "91 tokens" in cache("evict", name).output
    assert {(row["tenant"], row["tokens"]) for row in listed(cache)} == {("blue", 53), ("red", 403), ("red", 512)}


def test_a_pinned_prompt_stays_until_it_is_unpinned(cache: Cache) -> None:
    name = named(cache, "red", 603)
    assert "Pinned 603 tokens" in cache("pin", name).output
    assert [row["pinned"] for row in listed(cache)] == [False, False, True]
    assert "1 records stay" in cache("evict", name).output
    assert len(listed(cache)) == 3
    cache("unpin", name)
    cache("evict", name)
    assert ("red", 603) not in {(row["tenant"], row["tokens"]) for row in listed(cache)}


def test_a_tenants_records_are_deleted_and_no_others(cache: Cache) -> None:
    cache("pin", named(cache, "red", 603))
    assert cache("clear", "--tenant", "red", input="n\n").exit_code == 1
    assert len(listed(cache)) == 3
    cache("clear", "--tenant", "red", "--yes")
    assert [(row["tenant"], row["tokens"]) for row in listed(cache)] == [("blue", 53)]
    cache("clear", "--yes")
    assert listed(cache) == []


def test_a_damaged_record_is_found_and_deleted(cache: Cache, folder: Path) -> None:
    assert "5 records whole, 0 damaged" in cache("verify").output
    path = next(folder.rglob("*.kv"))
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    result = cache("verify")
    assert result.exit_code == 1
    assert "4 records whole, 1 damaged" in result.output
    assert not path.exists()


def test_an_exported_prompt_is_reused_elsewhere_and_by_another_tenant(
    cache: Cache, tmp_path: Path, model_folder: Path
) -> None:
    file, there = tmp_path / "prompt.kv", tmp_path / "there"
    assert "603 tokens" in cache("export", named(cache, "red", 603), str(file)).output
    assert (
        "603 tokens for tenant green" in cache("import", str(file), "--folder", str(there), "--tenant", "green").output
    )
    with engine_on(model_folder, there) as engine:
        assert ask(engine, PROMPT, "green") == 599
        assert ask(engine, PROMPT, "red") == 0


def test_what_is_no_archive_is_refused(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("Dear Sir or Madam")
    with pytest.raises(NotImported, match="no archive"):
        cache("import", str(tmp_path / "letter"))


@pytest.mark.parametrize("arguments", [("show", "ffffffffffffffff"), ("ls", "--folder", "/nowhere/at/all")])
def test_what_is_not_there_is_told(cache: Cache, arguments: tuple[str, ...]) -> None:
    with pytest.raises(AnaphoraError, match=r"No prompt is named|Nothing is kept"):
        cache(*arguments)


def test_a_warmed_request_is_found_whatever_the_user_says(cache: Cache, tmp_path: Path) -> None:
    body, changed = tmp_path / "request.json", tmp_path / "changed.json"
    body.write_text(json.dumps(REQUEST))
    other = {**REQUEST, "messages": [REQUEST["messages"][0], {"role": "user", "content": "Who sailed first?"}]}
    changed.write_text(json.dumps(other))
    assert cache("check", str(body)).output.startswith("0 of ")
    warmed = cache("warm", str(body), "--pin").output
    assert "of them computed now" in warmed
    found = cache("check", str(changed)).output
    assert "stops in messages[1]" in found
    num_found, num_tokens = (int(found.split()[index].replace(",", "")) for index in (0, 2))
    assert num_found > 250
    assert num_tokens - num_found < 60
    assert [row["pinned"] for row in listed(cache) if row["tenant"] == "(default)"] == [True]
