"""The targets: every module in this folder, found by its name.

A target is a module with its invariant in the first line of its docstring and a function
`check(data: bytes) -> None`, which raises if the invariant does not hold for `data`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_FOLDER = Path(__file__).parent
FUZZ = _FOLDER.parent
CORPUS = FUZZ / "corpus"
DICTIONARIES = FUZZ / "dictionaries"


def names() -> list[str]:
    """The names of all targets, in order."""
    return sorted(path.stem for path in _FOLDER.glob("[!_]*.py"))


def load(name: str) -> Callable[[bytes], None]:
    """The `check` of a target. It, and the code it checks, are imported only now."""
    check: Callable[[bytes], None] = importlib.import_module(f"{__name__}.{name}").check
    return check


def invariant(name: str) -> str:
    """What a target holds to be true of any bytes: the first line of its docstring."""
    document = importlib.import_module(f"{__name__}.{name}").__doc__ or ""
    return document.partition("\n")[0]


def corpus(name: str) -> list[Path]:
    """The inputs that a target begins with."""
    return sorted((CORPUS / name).iterdir())
