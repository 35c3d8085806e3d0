"""Pages that stand alone: no script, and nothing from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.cli.chart import xml_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_STYLE = """
:root { color-scheme: light dark; }
body { font-family: Helvetica, Arial, sans-serif; line-height: 1.45; margin: 0 auto;
  max-width: 1220px; padding: 1.5rem; color: #222222; background: #fafafa; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid #cccccc;
  white-space: nowrap; }
th.text, td.text { text-align: left; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.2rem 1rem; }
dt { font-weight: bold; } dd { margin: 0; }
svg { background: #ffffff; border-radius: 6px; height: auto; max-width: 100%; }
summary { cursor: pointer; margin: 0.7rem 0; }
@media (prefers-color-scheme: dark) {
  body { color: #e4e4e4; background: #1b1b1d; } th, td { border-color: #4a4a4e; }
  a { color: #8ab4f8; }
}
"""


def page(title: str, body: Iterable[str]) -> str:
    """An HTML document with that title, as its heading as well, over `body`, which is markup."""
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        '<head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{xml_text(title)}</title>",
        f"<style>{_STYLE}</style></head>",
        f"<body><h1>{xml_text(title)}</h1>",
        *body,
    ]
    return "\n".join([*lines, "</body>", "</html>", ""])


def described(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A list of names with their texts."""
    yield "<dl>"
    for name, text in pairs:
        yield f"<dt>{xml_text(name)}</dt><dd>{xml_text(text)}</dd>"
    yield "</dl>"


def plain_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str] = ()
) -> Iterator[str]:
    """A table of texts, which scrolls by itself where it is too wide.

    Columns named in `left` are text; the others are numbers.
    """
    sides = [' class="text"' if name in left else "" for name in head]
    yield '<div class="wide"><table><thead><tr>'
    heads = zip(head, sides, strict=True)
    yield "".join(f'<th scope="col"{side}>{xml_text(name)}</th>' for name, side in heads)
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = zip(row, sides, strict=True)
        yield "<tr>" + "".join(f"<td{side}>{xml_text(cell)}</td>" for cell, side in cells) + "</tr>"
    yield "</tbody></table></div>"
