"""The documentation's pages, taken apart for the tests of this folder."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
_COMMAND = re.compile(r"(?:^|[\s/])narwhal-trio\s+([^#|;&>]*)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_blocks(text: str) -> list[str]:
    return [body for _, body in _FENCE.findall(text)]


def prose(text: str) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    return _LINK.findall(prose(text))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as code hosts and Sphinx make them."""
    found = set()
    for heading in _HEADING.findall(prose(text)):
        plain = re.sub(r"[^\w\s-]", "", heading.lower())
        found.add(re.sub(r"\s", "-", plain))
    return found


def narwhal_commands(text: str) -> list[list[str]]:
    """The arguments of every `narwhal-trio ...` in code blocks and in code within sentences."""
    lines = [line for block in code_blocks(text) for line in block.splitlines()]
    spans = [span for span in _SPAN.findall(prose(text)) if span.startswith("narwhal-trio")]
    texts = [line.removeprefix("$ ") for line in [*lines, *spans]]
    return [match[1].split() for text in texts for match in _COMMAND.finditer(text)]


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next of the same rank."""
    _, found, after = text.partition(f"{heading}\n")
    assert found, f"no heading {heading!r}"
    rank = heading.partition(" ")[0]
    return re.split(rf"^{rank} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def table(text: str, heading: str, number: int = 0) -> list[list[str]]:
    """The cells of a table under a heading, without its head."""
    rows: list[list[list[str]]] = [[]]
    for line in section(text, heading).splitlines():
        if line.startswith("|"):
            rows[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows[-1]:
            rows.append([])
    return rows[number][2:]
