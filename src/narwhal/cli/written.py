"""Files that commands write because an option asks for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from narwhal.cli.running import fail

if TYPE_CHECKING:
    import click


def check_writable(option: str, path: str | None) -> None:
    """Say now that a file will not be written, and not after all the work."""
    if path is None:
        return
    folder = Path(path).absolute().parent
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise _unwritable(
            option, path, "it is a folder" if Path(path).is_dir() else f"see {folder}"
        )


def write_text(option: str, path: str | None, text: str) -> None:
    """Write `text` as UTF-8, if there is a path; exits with what is wrong if it cannot be done."""
    if path is None:
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(option, path, error.strerror or str(error)) from error


def _unwritable(option: str, path: str, why: str) -> click.exceptions.Exit:
    return fail(f"{option}: {path} cannot be written ({why}); give a file in a folder that you own")
