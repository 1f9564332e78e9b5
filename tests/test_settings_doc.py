"""`docs/settings.md` lists every setting with its description: the page is as true as the code."""

from pathlib import Path

from anaphora.config import Settings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"


def test_every_setting_is_described_as_in_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, field in Settings.model_fields.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert row.endswith(f"| {field.description} |")
