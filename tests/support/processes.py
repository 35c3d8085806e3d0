"""The command as a process, on real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 120.0
"""For what takes some seconds at most on a quiet machine; nothing waits for it to pass."""


def buffering() -> dict[str, str]:
    """The environment of a process that keeps its output until there is enough, as most do."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


class Command:
    """`narwhal-trio ARGS`, running; ended on leaving the block.

    What it writes to stderr goes to the file `errors`, if it is to be much: a pipe that nobody
    reads holds 64 KiB, and then the process waits. `under` is a command that runs it.
    """

    def __init__(
        self,
        *args: str,
        cwd: Path | None = None,
        errors: Path | None = None,
        under: tuple[str, ...] = (),
    ) -> None:
        with contextlib.ExitStack() as files:
            err: Any = subprocess.PIPE
            if errors is not None:
                err = files.enter_context(errors.open("w"))
            self._start((*under, sys.executable, "-m", "narwhal", *args), cwd, err)

    def _start(self, command: tuple[str, ...], cwd: Path | None, err: Any) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            cwd=cwd,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)

    def line(self, pattern: str) -> re.Match[str]:
        """The first line of output that matches; others are skipped."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line like {pattern!r}; stderr: {self.process.stderr.read()}")  # type: ignore[union-attr]  # a pipe

    def error(self, pattern: str) -> re.Match[str]:
        """The same of stderr."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line like {pattern!r} on stderr")

    def url(self) -> str:
        return self.line(r"(http://127\.0\.0\.1:\d+)")[1]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end: exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err or ""


def run(*args: str, cwd: Path | None = None) -> tuple[int, str, str]:
    """Run the command to its end."""
    with Command(*args, cwd=cwd) as command:
        return command.end()


def write_fleet(path: Path, urls: list[str], **serving: Any) -> Path:
    """A fleet file: the first half of the engines prefill. The state file lies beside it."""
    half = len(urls) // 2
    engines = [
        {"iid": f"e{n}", "url": url, "role": "prefill" if n < half else "decode"}
        for n, url in enumerate(urls)
    ]
    document = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "emulated",
        "engines": engines,
        "slo": {"ttft_s": 2.0, "tpot_s": 0.1},
        "serving": {"admission": "open"} | serving,
        "recovery": {"state_path": str(path.with_name("state.json"))},
    }
    path.write_text(json.dumps(document))
    return path


Start = Callable[..., Command]
