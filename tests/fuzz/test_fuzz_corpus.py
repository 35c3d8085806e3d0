"""Every input of the corpus through its target, and what holds for all targets alike."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fuzz import targets
from fuzz.pieces import cuttings

NAMES = targets.names()
INPUTS = [
    pytest.param(name, path, id=f"{name}-{path.name}")
    for name in NAMES
    for path in targets.corpus(name)
]


@pytest.mark.parametrize(("name", "path"), INPUTS)
def test_an_input_of_the_corpus(name: str, path: Path) -> None:
    targets.load(name).check(path.read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_a_target_begins_with_its_invariant(name: str) -> None:
    invariant = targets.invariant(name)
    assert re.fullmatch(r"Any .{30,}[.]", invariant), invariant


@pytest.mark.parametrize("name", NAMES)
def test_a_target_needs_no_fuzzer_and_no_test_runner(name: str) -> None:
    source = Path(targets.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").partition(".")[0])
    assert modules.isdisjoint({"atheris", "pytest", "hypothesis", "trio"})


def test_corpora_and_dictionaries_are_those_of_the_targets() -> None:
    assert sorted(path.name for path in targets.CORPUS.iterdir()) == NAMES
    for path in targets.DICTIONARIES.iterdir():
        assert path.suffix == ".dict"
        assert path.stem in NAMES


def test_the_corpus_is_small_and_says_what_is_in_it() -> None:
    paths = [path for name in NAMES for path in targets.corpus(name)]
    assert sum(path.stat().st_size for path in paths) < 300_000
    for path in paths:
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]+", path.name), f"{path}: no name that says much"


@pytest.mark.parametrize("data", [b"", b"x", b"\r\n\r\n", b"data: a\n\ndata: b\n\n" * 99])
def test_pieces_make_the_whole_again(data: bytes) -> None:
    cut = list(cuttings(data))
    assert all(b"".join(pieces) == data and all(pieces) for pieces in cut)
    assert cut == list(cuttings(data))
