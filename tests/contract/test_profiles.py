"""Profiles: the shipped ones say what the hosts' pages say, and a wrong file is refused by name."""

import pytest

from anaphora.contract.anthropic import AnthropicRules
from anaphora.contract.openai import BreakpointRules, MeasuredRules, StepRules
from anaphora.contract.profiles import LOCAL, Profile, parse_profiles, profile_named, profiles
from anaphora.errors import SettingsError


def test_local_has_no_minimum_and_measures_on_openai() -> None:
    local = profile_named(LOCAL)
    assert local.anthropic == AnthropicRules(min_tokens=0)
    assert local.openai == MeasuredRules()
    assert local.priced_as is None


@pytest.mark.parametrize(
    ("minimum", "models"),
    [
        (512, ["opus-5", "opus-5-5", "fable-5", "fable-5-1", "mythos-5", "mythos-5-1", "sonnet-5-5", "haiku-5-5"]),
        (1024, ["opus-4-8", "sonnet-5", "sonnet-4-6", "sonnet-4-5", "opus-4-1", "opus-4", "sonnet-4"]),
        (2048, ["opus-4-7", "mythos-preview", "haiku-3-5"]),
        (4096, ["opus-4-6", "opus-4-5", "haiku-4-5"]),
    ],
)
def test_minimum_lengths(minimum: int, models: list[str]) -> None:
    assert {profile_named(f"anthropic:claude-{model}").anthropic.min_tokens for model in models} == {minimum}


def test_which_models_keep_earlier_thinking() -> None:
    dropping = {name for name, one in profiles().items() if not one.anthropic.keeps_thinking}
    short = {name.removeprefix("anthropic:claude-") for name in dropping}
    assert short == {"opus-4-1", "opus-4", "sonnet-4-5", "sonnet-4", "haiku-5-5", "haiku-4-5", "haiku-3-5"}


def test_openai_generations() -> None:
    assert profile_named("openai:classic").openai == StepRules()
    assert profile_named("openai:gpt-5.5").openai == StepRules(min_tokens=2048, retentions=("24h",))
    assert profile_named("openai:gpt-5.6").openai == BreakpointRules()
    assert profile_named("openai:gpt-6.1-terra").openai == BreakpointRules()


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"'nobody'.*local, anthropic:claude-opus-5"):
        profile_named("nobody")


def only(text: str) -> Profile:
    (one,) = parse_profiles(text).values()
    return one


def test_open_points_are_settings_of_a_profile() -> None:
    one = only("[mine]\nas_of = 2026-01-02\nanthropic = { reads_across_ttls = false, lookback = 30 }\nopen = ['a']")
    assert one.anthropic == AnthropicRules(reads_across_ttls=False, lookback=30)
    assert one.open_points == ("a",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mine]\nas_of = 2026-01-02\nanthropic = { look = 3 }", "mine: anthropic.*look"),
        ("[mine]\nas_of = 2026-01-02\nopenai = { kind = 'odd' }", "openai.kind"),
        ("[mine]\nas_of = 2026-01-02\ncolour = 'red'", "colour"),
        ("[mine]\nbased_on = 'nobody'", "nobody"),
    ],
)
def test_a_wrong_file_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse_profiles(text)
