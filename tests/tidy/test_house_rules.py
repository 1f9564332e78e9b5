"""The code keeps the rules of the house. Each rule is first shown a sample that breaks it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import house_rules
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "anaphora").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

Rule = Callable[[str], list[str]]


def complaints_about(paths: list[Path], rule: Rule) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {complaint}"
        for path in paths
        for complaint in rule(path.read_text(encoding="utf-8"))
    ]


def tracked_files() -> list[Path]:
    """Every text file that git tracks, but for those that quote others: licences, recorded data."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name and not name.endswith((".png", "LICENSE"))]
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize(
    ("rule", "breaks_it"),
    [
        (house_rules.long_functions, "def f():\n" + "    x = 1\n" * 70),
        (house_rules.long_functions, "class A:\n    async def f(self):\n" + "        x = 1\n" * 70),
        (house_rules.long_file, "x = 1\n" * 801),
        (house_rules.many_parameters, "def f(a, b, c, d, e, g): ..."),
        (house_rules.missing_docstring, "x = 1"),
    ],
)
def test_sizes_and_docstrings(rule: Rule, breaks_it: str) -> None:
    assert rule(breaks_it)
    assert complaints_about([*SOURCES, *TESTS], rule) == []


@pytest.mark.parametrize(
    ("rule", "keeps_it"),
    [
        (house_rules.long_functions, "def f():\n" + "    x = 1\n" * 69),
        (house_rules.long_file, "x = 1\n" * 800),
        (house_rules.many_parameters, "def f(self, a, b, c, d, e, *, g, h): ..."),
        (house_rules.missing_docstring, ""),
    ],
)
def test_the_walls_stand_where_they_are_said_to(rule: Rule, keeps_it: str) -> None:
    assert rule(keeps_it) == []


@pytest.mark.parametrize(
    "breaks_it",
    [
        "class PageAllocator: ...",
        "def f(seq): ...",
        "reqs = 1",
        "self.kv_index = 1",
        "def touch(): ...",
        "class Trie: 0",
    ],
)
def test_core_engine_and_tiers_use_the_words_of_the_glossary(breaks_it: str) -> None:
    assert house_rules.retired_words(breaks_it)
    # Files and their bytes have their own vocabulary: `models` is not looked at.
    rooms = [path for path in SOURCES if path.parts[-2] in ("core", "engine", "tiers")]
    assert len(rooms) > 20
    assert complaints_about(rooms, house_rules.retired_words) == []


def test_words_that_only_contain_a_retired_one_are_free() -> None:
    assert house_rules.retired_words("sequence = required = blocking = pagination = 1") == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert house_rules.banned_name(Path("engine/utils.py"))
    assert [path for path in [*SOURCES, *TESTS] if house_rules.banned_name(path)] == []


def test_no_two_test_files_have_one_name() -> None:
    """They have no packages around them, so pytest would take one for the other and stop."""
    names = [path.name for path in TESTS if path.name != "conftest.py"]
    assert [name for name in set(names) if names.count(name) > 1] == []


def test_no_tracked_file_names_a_place_on_one_machine_or_a_registry() -> None:
    assert house_rules.machine_paths("see /" + "work/main/x") == ["/" + "work/"]
    assert house_rules.machine_paths("open('/" + "tmp/x')")
    assert house_rules.registry_hosts("https://pypi" + ".org/simple")
    assert house_rules.machine_paths("src/work/x and ~/.cache and network/home/x") == []
    files = tracked_files()
    assert ROOT / "pyproject.toml" in files
    assert complaints_about(files, house_rules.machine_paths) == []
    assert complaints_about(files, house_rules.registry_hosts) == []
