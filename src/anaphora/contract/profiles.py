"""Profiles: which contract's rules count, by name. The rules themselves stand in `profiles.toml`."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from importlib.resources import files
from typing import Any

from anaphora.contract.anthropic import AnthropicRules
from anaphora.contract.openai import BreakpointRules, MeasuredRules, OpenAIRules, StepRules
from anaphora.errors import SettingsError

LOCAL = "local"

_KINDS: Mapping[str, type[MeasuredRules] | type[StepRules] | type[BreakpointRules]] = {
    "measured": MeasuredRules,
    "steps": StepRules,
    "breakpoints": BreakpointRules,
}


@dataclass(frozen=True, slots=True)
class Profile:
    """One model's or generation's rules, on both endpoints."""

    name: str
    as_of: date
    anthropic: AnthropicRules = field(default_factory=AnthropicRules)
    openai: OpenAIRules = field(default_factory=MeasuredRules)
    priced_as: str | None = None  # model whose prices hold; None: no price
    description: str = ""
    open_points: tuple[str, ...] = ()


def profiles() -> dict[str, Profile]:
    """The profiles that come with Anaphora. Reads the data file of this package."""
    return parse_profiles(files("anaphora.contract").joinpath("profiles.toml").read_text(encoding="utf-8"))


def profile_named(name: str, known: Mapping[str, Profile] | None = None) -> Profile:
    """One profile by its name.

    Raises: SettingsError that lists the names.
    """
    table = profiles() if known is None else known
    if name not in table:
        raise SettingsError(f"profile = {name!r} is unknown. Profiles: {', '.join(table)}.")
    return table[name]


def parse_profiles(text: str) -> dict[str, Profile]:
    """Profiles from TOML.

    Raises: SettingsError for what no rule is called, ValueError for what is no TOML.
    """
    tables: dict[str, dict[str, Any]] = {}
    for name, table in tomllib.loads(text).items():
        base = tables.get(table.get("based_on", ""), {})
        if "based_on" in table and not base:
            raise SettingsError(f"profile {name}: based_on = {table['based_on']!r} stands nowhere above it.")
        tables[name] = {**base, **table}
    return {name: _profile(name, table) for name, table in tables.items()}


def _profile(name: str, table: Mapping[str, Any]) -> Profile:
    known = {"based_on", "priced_as", "anthropic", "openai", "open", "as_of", "description"}
    _check_names(name, set(table), known)
    openai = dict(table.get("openai", {"kind": "measured"}))
    kind = openai.pop("kind", None)
    if kind not in _KINDS:
        raise SettingsError(f"profile {name}: openai.kind must be one of {', '.join(_KINDS)}.")
    return Profile(
        name=name,
        as_of=table["as_of"],
        anthropic=_rules(f"{name}: anthropic", AnthropicRules, table.get("anthropic", {})),
        openai=_rules(f"{name}: openai", _KINDS[kind], openai),
        priced_as=table.get("priced_as"),
        description=table.get("description", ""),
        open_points=tuple(table.get("open", ())),
    )


def _rules(where: str, rules: type[Any], given: Mapping[str, Any]) -> Any:
    _check_names(where, set(given), {one.name for one in fields(rules)})
    return rules(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _check_names(where: str, given: set[str], known: set[str]) -> None:
    if given - known:
        raise SettingsError(f"profile {where}: there is no rule {', '.join(sorted(given - known))}.")
