"""Text from elsewhere, on its way to a person."""

from __future__ import annotations


def visible(text: str) -> str:
    """The text with a blank for each character that is not to be seen.

    What is left stays on one line, and tells a terminal nothing: engines, clients and files may
    hold anything.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
