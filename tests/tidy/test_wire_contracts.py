"""The import contracts that keep the two wire protocols apart name every module of both: a new one can't slip by."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_contracts_between_the_wires_name_every_module_of_them() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    files = {path.stem for path in (ROOT / "src/anaphora/api").glob("*.py")}
    openai, anthropic = (
        {f"anaphora.api.{name}" for name in files if name.startswith(wire)}
        for wire in (("openai", "responses"), "anthropic")
    )
    named = [
        (set(contract["source_modules"]), set(contract["forbidden_modules"]))
        for contract in contracts
        if contract["name"].endswith(("'s wire does not know Anthropic's", "'s wire does not know OpenAI's"))
    ]
    assert named == [(openai, anthropic), (anthropic, openai)]
