"""The targets: every module in this folder, found by its name.

A target is a module with its invariant in the first line of its docstring and a function
`check(data: bytes) -> None`, which raises if the invariant does not hold for `data`. It may have
`change(data: bytes, chance: random.Random) -> bytes | None`, a way to make another input of one
that keeps what the fuzzer's own changes would break; see `fuzz.mutate`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_FOLDER = Path(__file__).parent
FUZZ = _FOLDER.parent
CORPUS = FUZZ / "corpus"
DICTIONARIES = FUZZ / "dictionaries"


def names() -> list[str]:
    """The names of all targets, in order."""
    return sorted(path.stem for path in _FOLDER.glob("[!_]*.py"))


def load(name: str) -> Any:
    """The module of a target. It, and the code it checks, are imported only now."""
    return importlib.import_module(f"{__name__}.{name}")


def invariant(name: str) -> str:
    """What a target holds to be true of any bytes: the first line of its docstring."""
    return (load(name).__doc__ or "").partition("\n")[0]


def corpus(name: str) -> list[Path]:
    """The inputs that a target begins with."""
    return sorted((CORPUS / name).iterdir())
