"""The import contracts that keep the two wire protocols apart name every module of both: a new one can't slip by."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_contracts_between_the_wires_name_every_module_of_them() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = {
        wire: {f"anaphora.api.{path.stem}" for path in (ROOT / "src/anaphora/api").glob(f"{wire}*.py")}
        for wire in ("openai", "anthropic")
    }
    named = [
        (set(contract["source_modules"]), set(contract["forbidden_modules"]))
        for contract in contracts
        if contract["name"].endswith(("'s wire does not know Anthropic's", "'s wire does not know OpenAI's"))
    ]
    assert named == [(found["openai"], found["anthropic"]), (found["anthropic"], found["openai"])]
