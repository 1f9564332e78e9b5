"""Settings: defaults < TOML file < `ANAPHORA_*` environment < flags. The only place that reads the environment.

The file is the one named by `--config`, or by ANAPHORA_CONFIG. Every setting has the same name everywhere:
`queue_length` in the file, ANAPHORA_QUEUE_LENGTH in the environment, `--queue-length` as a flag.
"""

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from anaphora.core.default_policy import DEFAULT_POLICY
from anaphora.engine.settings import EngineSettings
from anaphora.errors import SettingsError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


def _size_bytes(value: object) -> object:
    """A size such as `2GiB` or `500 MB` in bytes; a number as it is."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError("must be a number of bytes, plain or with a unit, such as 512MiB")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def _names(value: object) -> object:
    """A comma-separated list as a list."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _sizes(value: object) -> object:
    """Sizes by name: a mapping, or comma-separated text of `name=size`."""
    if isinstance(value, str):
        pairs = [entry.partition("=") for entry in value.split(",") if entry.strip()]
        value = {name.strip(): size.strip() for name, _, size in pairs}
    return {name: _size_bytes(size) for name, size in value.items()} if isinstance(value, dict) else value


def _keys(value: object) -> object:
    """API keys as a mapping of key to tenant, from any of the forms they may be given in.

    A mapping; a list or comma-separated text of `key` or `key:tenant`; `@path` of a file with one of those a
    line. A key without a tenant is a tenant of its own.
    """
    if isinstance(value, str) and value.startswith("@"):
        value = _lines_of(Path(value[1:]))
    elif isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"starts like JSON and is none ({error})") from None
    if isinstance(value, str):
        value = _names(value)
    return _keys_with_tenants(value) if isinstance(value, list) else value


def _lines_of(path: Path) -> list[str]:
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"the file {path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {path} is not text in UTF-8") from None
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _keys_with_tenants(entries: list[object]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for entry in entries:
        key, _, tenant = (part.strip() for part in str(entry).partition(":"))
        tenant = tenant or "key-" + hashlib.sha256(key.encode()).hexdigest()[:12]
        if keys.setdefault(key, tenant) != tenant:
            raise ValueError("gives one key to two tenants")
    return keys


Size = Annotated[int, BeforeValidator(_size_bytes), Field(gt=0)]
SizeOrNone = Annotated[int, BeforeValidator(_size_bytes), Field(ge=0)]


class Settings(BaseSettings):
    """Everything an operator can set."""

    model_config = SettingsConfigDict(env_prefix="ANAPHORA_", frozen=True, extra="forbid", env_ignore_empty=True)

    host: Annotated[str, Field(description="Address to listen on.", min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(description="Port to listen on; 0 takes a free one.", ge=0, le=65535)] = 8000
    model: Annotated[
        str, Field(description="Model: a name of `anaphora models`, a hub id, a folder, or a GGUF file.", min_length=1)
    ] = "smollm2-135m-instruct"
    served_names: Annotated[
        list[str],
        NoDecode,
        BeforeValidator(_names),
        Field(description="Names that requests may call the model by; default: the model's own name."),
    ] = []
    api_keys: Annotated[
        dict[Annotated[str, Field(min_length=1)], str],
        NoDecode,
        BeforeValidator(_keys),
        Field(
            description="API keys: KEY or KEY:TENANT, comma-separated, or @FILE with one a line. "
            "Tenants never share cache. Without keys everyone is one tenant."
        ),
    ] = {}
    metrics_key: Annotated[
        str | None,
        Field(
            description="Key that /metrics asks for. With API keys set, /metrics is closed without it.", min_length=1
        ),
    ] = None
    cache_dir: Annotated[Path, Field(description="Where models and cached keys and values live.")] = Path(
        platformdirs.user_cache_dir("anaphora")
    )
    max_body_bytes: Annotated[Size, Field(description="Largest request body, such as 32MiB.")] = 32 * 2**20
    request_timeout_s: Annotated[
        float | None, Field(description="Seconds a request may take, from arrival to last token.", gt=0)
    ] = 600.0
    shutdown_timeout_s: Annotated[
        int, Field(description="Seconds that running requests get to finish when the server is stopped.", ge=0)
    ] = 30
    profile: Annotated[
        str,
        Field(
            description="Whose caching rules the usage fields follow: local, or a hosted model's, such as "
            "anthropic:claude-opus-5 or openai:gpt-5.6.",
            min_length=1,
        ),
    ] = "local"
    prices: Annotated[
        Path | None, Field(description="TOML file of prices, which win over the built-in ones of hosted models.")
    ] = None
    request_log: Annotated[
        Path | None, Field(description="File that gets a JSON line with the usage of every answered request.")
    ] = None
    request_log_bytes: Annotated[
        Size, Field(description="Size at which that file is set aside as FILE.1 and begun anew; five are kept.")
    ] = 64 * 2**20
    request_log_bodies: Annotated[
        bool,
        Field(description="Write requests into that file as they were sent, for explain and lint: all that was said."),
    ] = False
    explain_requests: Annotated[
        int,
        Field(description="Requests that are remembered, so that a miss can be explained by one; 0: none.", ge=0),
    ] = 4096
    explain_bytes: Annotated[Size, Field(description="Memory that they may take, such as 64MiB.")] = 64 * 2**20
    explain_text: Annotated[
        bool,
        Field(description="Remember what they say, in memory only; else digests, which tell the place and no more."),
    ] = True
    drop_front_nonces: Annotated[
        bool,
        Field(
            description="Take out lines that known clients put in front of a system prompt and change each time, such "
            "as x-anthropic-billing-header."
        ),
    ] = True
    cache: Annotated[bool, Field(description="Reuse cached prefixes.")] = True
    policy: Annotated[str, Field(description="Eviction policy.")] = DEFAULT_POLICY
    kv_pool_bytes: Annotated[
        Size | None,
        Field(description="Hard cap of keys and values in memory, such as 2GiB; default: a quarter of free memory."),
    ] = None
    disk_cache_bytes: Annotated[
        SizeOrNone,
        Field(
            description="Hard cap of keys and values on disk, where they outlive the server; 0: none are kept. "
            "Never more than half of what is free."
        ),
    ] = 4 * 2**30
    disk_cache_dir: Annotated[
        Path | None, Field(description="Folder of keys and values on disk; default: kv in cache_dir.")
    ] = None
    disk_preload_bytes: Annotated[
        SizeOrNone | None,
        Field(
            description="Part of kv_pool_bytes that is filled from disk at the start, with what was used last; "
            "default: half."
        ),
    ] = None
    retention_bytes: Annotated[
        Size | None,
        Field(description="Part of it that may be promised to stay for a time, such as 500MiB; default: a quarter."),
    ] = None
    tenant_quotas: Annotated[
        dict[str, Annotated[int, Field(gt=0)]],
        NoDecode,
        BeforeValidator(_sizes),
        Field(
            description="Part of it that is a tenant's own: TENANT=SIZE, comma-separated. What is free may be borrowed."
        ),
    ] = {}
    default_quota_bytes: Annotated[
        Size | None, Field(description="The same for each tenant that tenant_quotas does not name; default: none.")
    ] = None
    shared_prompts: Annotated[
        list[Path],
        NoDecode,
        BeforeValidator(_names),
        Field(
            description="Files with a system prompt each, whose cached tokens all tenants share. "
            "Nothing else is shared."
        ),
    ] = []
    max_context: Annotated[
        int | None, Field(description="Longest prompt plus answer in tokens; default: the model's.", gt=0)
    ] = None
    max_step_tokens: Annotated[int, Field(description="Tokens of one step, over all sequences.", gt=0)] = 2048
    max_sequences: Annotated[int, Field(description="Sequences that run at once.", gt=0)] = 64
    queue_length: Annotated[int, Field(description="Requests that may wait; one more is refused.", ge=0)] = 256
    num_threads: Annotated[int | None, Field(description="Threads of the model; default: torch's choice.", gt=0)] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], Field(description="Type of weights, keys and values.")
    ] = "float32"
    weights: Annotated[
        Literal["checkpoint", "bfloat16", "int8", "int4"],
        Field(description="Round the linear layers' weights when the model is loaded; default: as they are."),
    ] = "checkpoint"
    device: Annotated[str, Field(description="Device the model runs on.")] = "cpu"
    kernels: Annotated[
        Literal["auto", "native", "torch"],
        Field(description="What computes: kernels compiled on this machine, torch alone, or the first that can."),
    ] = "auto"

    def engine_settings(self) -> EngineSettings:
        """The part the engine is set up with."""
        return EngineSettings(**{field.name: getattr(self, field.name) for field in fields(EngineSettings)})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What `load_settings` hands in; it has put the layers together already."""
        return (init_settings,)


def load_settings(flags: Mapping[str, Any] | None = None, *, config: Path | None = None) -> Settings:
    """The settings from all layers. `flags` are those that were given; None stands for not given.

    Raises: SettingsError naming the setting and where it was set.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None and value != []}
    path = config or _config_from_environment()
    layers = (
        (f"file {path}", _file_layer(path) if path else {}),
        ("environment", _environment_layer()),
        ("flags", given),
    )
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, values in layers:
        merged |= values
        origins |= dict.fromkeys(values, origin)
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    else:
        if "api_keys" in merged and not settings.api_keys:  # asked for keys, and would get a server open to everyone
            where = _spelled("api_keys", origins["api_keys"])
            raise SettingsError(f"api_keys (set in {where}): holds no key; leave it out to serve everyone.")
        return settings
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        raise SettingsError(f"{name} (set in {origins[name]}) is no setting. Settings: {', '.join(_known())}.")
    problem = _problem(first["type"], first["msg"], first.get("ctx", {}))
    shown = merged.get(name)
    told = f", not {shown!r}" if isinstance(shown, str | float) and name not in _SECRETS and shown != "" else ""
    raise SettingsError(f"{name} (set in {_spelled(name, origins.get(name, 'defaults'))}): {problem}{told}.")


_SECRETS = ("api_keys", "metrics_key")
_PROBLEMS = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "path_type": "must be a path",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of names to values",
    "string_too_short": "must not be empty",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be one of {expected}",
    "value_error": "{error}",
}


def _problem(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """A validation error in the words of someone who sets a setting."""
    return _PROBLEMS[kind].format(**context) if kind in _PROBLEMS else message


def _known() -> list[str]:
    return sorted(Settings.model_fields)


def _spelled(name: str, origin: str) -> str:
    """Where a setting was set, in the spelling it has there."""
    if origin == "environment":
        return f"ANAPHORA_{name.upper()}"
    return "--" + name.replace("_", "-") if origin == "flags" else origin


def _config_from_environment() -> Path | None:
    value = os.environ.get("ANAPHORA_CONFIG")
    return Path(value) if value else None


def _environment_layer() -> dict[str, Any]:
    return EnvSettingsSource(Settings)()


def _file_layer(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"The settings file {path} can't be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} is not valid TOML: {error}.") from None
