"""The tables of docs/roles.md, made from the enumerations: `python -m narwhal.roles.tables`."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import TYPE_CHECKING

from narwhal.roles import decision
from narwhal.roles.decision import Gate, Rule

if TYPE_CHECKING:
    from enum import StrEnum

_NAMES = {"rules": Rule, "gates": Gate}


def table(kind: type[StrEnum]) -> str:
    """Every member with its documentation, as a table in Markdown."""
    lines = [f"| {kind.__name__} | |", "|---|---|"]
    for name, says in _documented(kind).items():
        lines.append(f"| `{kind[name].value}` | {says} |")
    return "\n".join(lines) + "\n"


def _documented(kind: type[StrEnum]) -> dict[str, str]:
    """The texts under the members, which Python itself does not keep."""
    tree = ast.parse(inspect.getsource(decision))
    body = next(
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    texts: dict[str, str] = {}
    name = ""
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts[name] = " ".join(str(node.value.value).split())
    return texts


if __name__ == "__main__":
    for each in sys.argv[1:] or _NAMES:
        print(table(_NAMES[each]))  # noqa: T201 - it is what this is for
