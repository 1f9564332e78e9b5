"""Settings come from four layers, later ones win, and an error says which setting, and where it was set."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from anaphora.config import Settings, load_settings
from anaphora.core.default_policy import DEFAULT_POLICY
from anaphora.engine.settings import EngineSettings
from anaphora.errors import SettingsError


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*Settings.model_fields, "config"]:
        monkeypatch.delenv(f"ANAPHORA_{name.upper()}", raising=False)


def toml(folder: Path, text: str) -> Path:
    path = folder / "anaphora.toml"
    path.write_text(text)
    return path


def test_later_layers_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toml(tmp_path, 'port = 1\nhost = "file"\nmodel = "file"\n')
    monkeypatch.setenv("ANAPHORA_HOST", "environment")
    monkeypatch.setenv("ANAPHORA_MODEL", "environment")
    settings = load_settings({"model": "flag", "policy": None}, config=path)
    assert (settings.port, settings.host, settings.model, settings.policy) == (1, "environment", "flag", DEFAULT_POLICY)


def test_file_can_be_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANAPHORA_CONFIG", str(toml(tmp_path, "port = 7")))
    assert load_settings().port == 7


@pytest.mark.parametrize(
    ("flag", "value", "problem"),
    [
        ("port", "x", "must be a whole number, not 'x'"),
        ("port", "1.5", "must be a whole number, not '1.5'"),
        ("port", "99999", "must be at most 65535, not '99999'"),
        ("queue-length", "-1", "must be at least 0, not '-1'"),
        ("max-sequences", "0", "must be more than 0, not '0'"),
        ("request-timeout-s", "soon", "must be a number, not 'soon'"),
        ("request-timeout-s", "nan", "must be more than 0.0, not 'nan'"),
        ("kv-pool-bytes", "lots", "must be a number of bytes, plain or with a unit, such as 512MiB, not 'lots'"),
        ("kv-pool-bytes", "-5", "must be a number of bytes, plain or with a unit, such as 512MiB, not '-5'"),
        ("kv-pool-bytes", "0", "must be more than 0, not '0'"),
        ("dtype", "int8", "must be one of 'float32', 'bfloat16' or 'float16', not 'int8'"),
        ("cache", "maybe", "must be true or false, not 'maybe'"),
        ("model", "", "must not be empty"),
        ("metrics-key", "", "must not be empty"),
        ("api-keys", ":red", "must not be empty"),
        ("api-keys", ",", "holds no key; leave it out to serve everyone"),
        ("api-keys", "", "holds no key; leave it out to serve everyone"),
        ("api-keys", "{}", "holds no key; leave it out to serve everyone"),
        ("api-keys", '{"secret": 7}', "must be text"),
        ("api-keys", "secret:red,secret:blue", "gives one key to two tenants"),
        ("api-keys", "@none.txt", "the file none.txt can't be read: No such file or directory"),
    ],
)
def test_wrong_flag_is_named_with_what_it_must_be(flag: str, value: str, problem: str) -> None:
    name = flag.replace("-", "_")
    with pytest.raises(SettingsError) as caught:
        load_settings({name: value})
    assert str(caught.value) == f"{name} (set in --{flag}): {problem}."


def test_key_that_is_wrong_is_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"api_keys": '{"secret'})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("api_keys = 7", "must be a mapping of names to values"),
        ("kv_pool_bytes = 1.5", "must be a whole number, not 1.5"),
        ("[api_keys]", "holds no key"),
        ("port = [1]", "must be a whole number"),
        ("host = 7", "must be text"),
    ],
)
def test_wrong_type_in_a_file_is_told_in_plain_words(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(config=toml(tmp_path, text))
    assert problem in str(caught.value)


def test_file_of_keys_without_any_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# none yet\n")
    with pytest.raises(SettingsError, match="holds no key"):
        load_settings({"api_keys": f"@{tmp_path / 'keys'}"})
    (tmp_path / "keys").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="is not text in UTF-8"):
        load_settings({"api_keys": f"@{tmp_path / 'keys'}"})


def test_wrong_environment_and_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toml(tmp_path, "queue_length = -1\n")
    with pytest.raises(SettingsError, match=r"queue_length \(set in file .*anaphora.toml\)"):
        load_settings(config=path)
    monkeypatch.setenv("ANAPHORA_QUEUE_LENGTH", "many")
    with pytest.raises(SettingsError, match=r"set in ANAPHORA_QUEUE_LENGTH"):
        load_settings(config=path)


@pytest.mark.parametrize(
    ("text", "message"), [("prot = 1", "prot .* is no setting"), ("port = ", "not valid TOML"), (None, "can't be read")]
)
def test_wrong_file_is_explained(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "missing.toml" if text is None else toml(tmp_path, text)
    with pytest.raises(SettingsError, match=message):
        load_settings(config=path)


@pytest.mark.parametrize(
    ("given", "expected"), [("1024", 1024), ("2GiB", 2 * 2**30), ("500 MB", 500_000_000), ("1.5k", 1500), (7, 7)]
)
def test_sizes_may_have_units(given: object, expected: int) -> None:
    assert load_settings({"kv_pool_bytes": given}).kv_pool_bytes == expected


def test_keys_in_every_form_become_tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("# ours\nk1:red\n\nk2:blue\n")
    expected = {"k1": "red", "k2": "blue"}
    assert load_settings({"api_keys": "k1:red, k2:blue"}).api_keys == expected
    assert load_settings({"api_keys": f"@{tmp_path / 'keys'}"}).api_keys == expected
    assert load_settings(config=toml(tmp_path, '[api_keys]\nk1 = "red"\nk2 = "blue"\n')).api_keys == expected
    monkeypatch.setenv("ANAPHORA_API_KEYS", '{"k1": "red", "k2": "blue"}')
    assert load_settings().api_keys == expected


def test_keys_without_tenant_are_tenants_of_their_own() -> None:
    keys = load_settings({"api_keys": "k1,k2"}).api_keys
    assert set(keys) == {"k1", "k2"}
    assert keys["k1"] != keys["k2"]
    assert "k1" not in keys["k1"].removeprefix("key-")


def test_missing_file_of_keys_is_explained(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"api_keys \(set in --api-keys\): .*can't be read"):
        load_settings({"api_keys": f"@{tmp_path / 'none'}"})


def test_names_are_separated_by_commas_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANAPHORA_SERVED_NAMES", "a, b")
    assert load_settings().served_names == ["a", "b"]


def test_every_engine_setting_can_be_set_and_has_the_engines_default() -> None:
    assert {field.name for field in fields(EngineSettings)} <= set(Settings.model_fields)
    served = EngineSettings(disk_cache_bytes=4 * 2**30)  # who starts a server wants the next one to find what it knew
    assert load_settings().engine_settings() == served
    assert load_settings({"cache": False, "max_sequences": "3"}).engine_settings() == replace(
        served, cache=False, max_sequences=3
    )


def test_tenants_parts_of_the_pool_come_as_text_or_as_a_table(tmp_path: Path) -> None:
    settings = load_settings({"tenant_quotas": "red=3GiB, blue = 500MB", "shared_prompts": "a.txt,b.txt"})
    assert settings.tenant_quotas == {"red": 3 * 2**30, "blue": 500 * 10**6}
    assert settings.shared_prompts == [Path("a.txt"), Path("b.txt")]
    path = tmp_path / "anaphora.toml"
    path.write_text('retention_bytes = "1GiB"\n[tenant_quotas]\nred = "2KiB"\nblue = 5\n')
    settings = load_settings(config=path)
    assert settings.engine_settings().tenant_quotas == {"red": 2048, "blue": 5}
    assert settings.engine_settings().retention_bytes == 2**30


@pytest.mark.parametrize("value", ["red", "red=much", "red=0", "red=-1"])
def test_a_quota_without_a_size_is_told_with_its_setting(value: str) -> None:
    with pytest.raises(SettingsError, match="tenant_quotas"):
        load_settings({"tenant_quotas": value})
