"""What the commands say of themselves."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from narwhal.cli import main


def groups(command: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words that lead to each group of commands."""
    yield path
    for name, each in command.commands.items():
        if isinstance(each, click.Group):
            yield from groups(each, (*path, name))


@pytest.mark.parametrize("path", list(groups(main)), ids=" ".join)
def test_a_list_of_commands_has_whole_sentences_on_a_terminal_of_80_columns(
    path: tuple[str, ...],
) -> None:
    shown = CliRunner().invoke(main, [*path, "--help"], env={"COLUMNS": "80"}).output
    _, _, commands = shown.partition("Commands:\n")
    lines = commands.splitlines()
    assert len(lines) >= 3
    assert all(len(line) <= 80 and line.endswith(".") for line in lines)
    assert not [line for line in lines if line.endswith("...")]
