"""The accounting's settings reach the HTTP side: profile, prices, log; and wrong ones stop the start."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from anaphora.api.server import api_settings
from anaphora.config import load_settings
from anaphora.errors import SettingsError


def test_local_loads_no_prices_and_logs_nothing() -> None:
    told = api_settings(load_settings({}))
    assert (told.profile.name, told.prices, told.request_log) == ("local", None, None)


def test_a_hosted_profile_brings_prices_and_a_log_is_opened(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    told = api_settings(load_settings({"profile": "anthropic:claude-opus-5", "request_log": str(log)}))
    assert told.profile.anthropic.min_tokens == 512
    assert told.prices is not None
    assert told.prices.price("claude-opus-5", datetime.now(UTC)) is not None
    assert told.request_log is not None
    told.request_log.close()
    assert log.exists()


@pytest.mark.parametrize(("name", "value"), [("profile", "nobody"), ("prices", "missing.toml")])
def test_a_wrong_setting_stops_the_start(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=value):
        api_settings(load_settings({name: value}))
