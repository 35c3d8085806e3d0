from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from docs_pages import DOCS, PAGES, anchors, links, page_id

if TYPE_CHECKING:
    from pathlib import Path


def dangling(page: Path, target: str) -> bool:
    """Whether a relative link leads to no file, or to no heading of the page it leads to."""
    name, _, anchor = target.partition("#")
    file = page if not name else (page.parent / name).resolve()
    if not file.exists():
        return True
    return bool(anchor) and anchor not in anchors(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = [t for t in links(page.read_text(encoding="utf-8")) if "://" not in t]
    assert [target for target in targets if dangling(page, target)] == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    page = DOCS / "index.md"
    assert dangling(page, "absent.md")
    assert dangling(page, "errors.md#absent")
    assert not dangling(page, "errors.md#codes")
    assert links("see [it](a.md#b) and\n```\n[not](this.md)\n```\n") == ["a.md#b"]


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = index.split("```")
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert pages <= {line for part in listed for line in part.splitlines()}
