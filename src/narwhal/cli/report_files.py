"""Journals as lines: files, compressed ones, and what comes in through a pipe."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narwhal.telemetry.report import Reading

STDIN = "-"
# A row takes two kilobytes, one of three attempts a little more.
MOST_LINE = 1 << 20
_GZIP = b"\x1f\x8b"


def read_journal(path: str, reading: Reading) -> None:
    """Have `reading` take every line of a file, or of standard input for `-`.

    Holds one line at a time. A file that is compressed with gzip is read as what is in it,
    whatever it is called; one whose end is missing counts as cut off there. Raises `OSError`.
    """
    reading.begin("(standard input)" if path == STDIN else path)
    with _opened(path) as file:
        try:
            _read(file, reading)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reading.skip(f"the compressed file ends or breaks here: {error}")


def _read(file: BinaryIO, reading: Reading) -> None:
    while line := file.readline(MOST_LINE):
        if len(line) < MOST_LINE or line.endswith(b"\n"):
            reading.add(line)
            continue
        while (rest := file.readline(MOST_LINE)) and not rest.endswith(b"\n"):
            pass
        reading.skip(f"longer than {MOST_LINE} bytes")


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STDIN:
        whole = io.BufferedReader(cast("io.RawIOBase", sys.stdin.buffer))
        try:
            yield _unpacked(whole)
        finally:
            whole.detach()  # it would close what is not its own
        return
    with Path(path).open("rb") as file:
        yield _unpacked(file)


def _unpacked(file: io.BufferedReader[Any]) -> BinaryIO:
    if file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP:
        return cast("BinaryIO", gzip.open(file))
    return file
