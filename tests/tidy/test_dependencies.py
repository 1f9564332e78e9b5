"""What the code imports is declared, explained, and not loaded before it is needed."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import house_rules
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_IMPORTED = {"accelerate", "gguf", "python-multipart"}  # Transformers reads GGUF files with them, Starlette forms
HEAVY = ("torch", "transformers", "tokenizers", "starlette", "uvicorn", "numpy")


def declared() -> set[str]:
    """Distributions that the package or one of its extras for users depends on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["bench"], *extras["testing"]]
    return {normalised(re.split(r"[<>=!~\[; ]", one)[0]) for one in wanted}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported() -> set[str]:
    """Distributions that something under src imports."""
    distributions = packages_distributions()
    modules: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        modules |= house_rules.third_party_imports(path.read_text(encoding="utf-8"), sys.stdlib_module_names)
    return {normalised(distributions[module][0]) for module in modules}


def test_every_import_is_declared_and_every_declaration_used() -> None:
    assert house_rules.third_party_imports("import os, numpy.linalg\nfrom torch import nn", frozenset({"os"})) == {
        "numpy",
        "torch",
    }
    assert imported() - declared() == set(), "imported and not declared"
    assert declared() - imported() == NOT_IMPORTED, "declared and not imported"


def unexplained(text: str, names: set[str]) -> set[str]:
    return {name for name in names if f"`{name}`" not in text}


def test_every_dependency_is_explained() -> None:
    assert unexplained("`numpy` counts.", {"numpy", "torch"}) == {"torch"}
    assert unexplained((ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8"), declared()) == set()


def test_every_dependency_is_pinned_and_torch_without_a_local_version() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
    assert declared() - pins.keys() == set()
    assert pins["torch"] == "2.13.0"
    assert [pin for pin in pins.values() if "+" in pin or "/" in pin] == []


def heavy_after(code: str) -> list[str]:
    """Which heavy modules a fresh Python has loaded after running `code`."""
    ask = f"{code}\nimport sys\nsys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return done.stderr.split()


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import anaphora", ()),
        (
            "import sys; sys.argv = ['anaphora', '--help']\n"
            "from anaphora.cli.main import main\n"
            "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code",
            (),
        ),
        ("import anaphora.core.cache", ("numpy",)),
        ("import anaphora.prompt.render", ("numpy",)),
        ("import anaphora.contract.profiles", ("numpy",)),
    ],
)
def test_light_things_load_light(code: str, allowed: tuple[str, ...]) -> None:
    assert heavy_after("import numpy") == ["numpy"]
    assert set(heavy_after(code)) - set(allowed) == set()


def run_import_linter(config: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).parent / "lint-imports", "--config", config, "--no-cache"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_imports_point_one_way(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.ini"
    wrong.write_text(
        "[importlinter]\nroot_package = anaphora\n[importlinter:contract:upside_down]\nname = Upside down\n"
        "type = layers\nlayers =\n    anaphora.core\n    anaphora.engine\n",
        encoding="utf-8",
    )
    assert run_import_linter(wrong).returncode == 1
    done = run_import_linter(ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout


def test_notice_names_the_default_model_and_its_licence() -> None:
    from anaphora.engine.models.catalog import CATALOG, DEFAULT_MODEL

    entry = CATALOG[DEFAULT_MODEL]
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert "SmolLM2-135M-Instruct" in notice
    assert entry.distribution in notice
    assert entry.file_name in notice
    assert "Apache License" in notice
