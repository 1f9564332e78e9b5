"""The list of mutants is kept true: each still finds its line. `make torture` runs them."""

import shutil

import pytest
from mutants import CORE, MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_changes_the_code(mutant, tmp_path):
    shutil.copytree(ROOT / CORE, tmp_path / CORE)
    mutant.apply(tmp_path)
    assert (tmp_path / CORE / mutant.file).read_text() != (ROOT / CORE / mutant.file).read_text()


def test_no_mutant_is_listed_twice():
    assert len({(mutant.file, mutant.right, mutant.wrong) for mutant in MUTANTS}) == len(MUTANTS)
