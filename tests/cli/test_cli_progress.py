"""Bars are for people who look, and nothing else depends on them."""

from __future__ import annotations

from io import StringIO

import pytest

from narwhal.cli.progress import bar, passed_on


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def looked_at(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as stderr, from within a test: before it, stderr is put in place once more."""
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", screen)
    return screen


def test_values_are_passed_on_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = looked_at(monkeypatch)
    found = list(passed_on("abc", "letters", 3, shown=True, failed=lambda each: each == "b"))
    assert found == ["a", "b", "c"]
    assert "letters (1 failed)" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


def test_a_bar_is_told_how_many_more(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = looked_at(monkeypatch)
    with bar("requests", 10, shown=True) as advance:
        advance(4)
        advance(6)
    assert "10/10" in terminal.getvalue()


def test_nothing_is_drawn_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = looked_at(monkeypatch)
    assert list(passed_on("ab", "letters", 2, shown=False)) == ["a", "b"]
    with bar("requests", 1, shown=False) as advance:
        advance(1)
    assert terminal.getvalue() == ""
