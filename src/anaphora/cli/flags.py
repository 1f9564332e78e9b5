"""One flag per setting, made from the settings themselves, so that none is forgotten and every help text is one."""

import inspect
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from pydantic.fields import FieldInfo

from anaphora.config import Settings

_GROUPS = {
    "Server": ("host", "port", "served_names", "api_keys", "metrics_key"),
    "Model": ("model", "cache_dir", "dtype", "weights", "device", "kernels", "num_threads"),
    "Cache": (
        "cache",
        "policy",
        "kv_pool_bytes",
        "disk_cache_bytes",
        "disk_cache_dir",
        "disk_preload_bytes",
        "retention_bytes",
        "tenant_quotas",
        "default_quota_bytes",
        "shared_prompts",
        "drop_front_nonces",
    ),
    "Accounting": ("profile", "prices", "request_log", "request_log_bytes", "request_log_bodies"),
    "Explanations": ("explain_requests", "explain_bytes", "explain_text"),
    "Limits": (
        "max_context",
        "max_body_bytes",
        "max_step_tokens",
        "max_sequences",
        "queue_length",
        "request_timeout_s",
        "shutdown_timeout_s",
    ),
}


def with_settings_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take a flag for every setting, as keyword arguments named as the settings.

    Values come as text and None stands for a flag that was not given: what they mean, and whether they are
    allowed, is decided in one place (`anaphora.config`).
    """
    groups = {name: group for group, names in _GROUPS.items() for name in names}
    assert set(groups) == set(Settings.model_fields), "every setting has its place in the help"
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_annotation(name, Settings.model_fields[name], groups[name]),
        )
        for name in groups
    ]
    config = typing.Annotated[
        Path | None, typer.Option("--config", help="TOML file of settings (also ANAPHORA_CONFIG).", show_default=False)
    ]
    parameters.insert(0, inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=config))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _annotation(name: str, field: FieldInfo, group: str) -> Any:
    flag = "--" + name.replace("_", "-")
    options: dict[str, Any] = {
        "help": f"{field.description}{_default(field)} [{'ANAPHORA_' + name.upper()}]",
        "rich_help_panel": group,
        "show_default": False,
    }
    if field.annotation is bool:
        return typing.Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", **options)]
    if name == "served_names":
        return typing.Annotated[list[str] | None, typer.Option(flag, "--served-name", metavar="NAME", **options)]
    return typing.Annotated[str | None, typer.Option(flag, metavar=_metavar(field.annotation), **options)]


def _default(field: FieldInfo) -> str:
    """The default where it says something: lists and None are told in words by the description."""
    default = field.default
    return "" if default is None or isinstance(default, dict | list | Path | bool) else f" Default: {default}."


def _metavar(annotation: Any) -> str:
    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    kind = kinds[0]
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(typing.get_args(kind))
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    return {int: "N", float: "SECONDS", Path: "FOLDER"}.get(kind, "TEXT")
