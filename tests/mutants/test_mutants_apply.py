"""The mutants fit the code as it is; whether they are caught is for `tox -e mutants` to say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutants import MUTANTS, Mutant

SOURCES = Path(__file__).parents[2] / "src" / "narwhal"


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_it_applies_and_can_be_compiled(mutant: Mutant) -> None:
    source = (SOURCES / mutant.file).read_text(encoding="utf-8")
    faulty = mutant.apply(source)
    assert faulty != source
    ast.parse(faulty)


def test_names_are_unique_and_there_are_enough() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
