"""A disk that fails, or a process that is killed, at any call that changes files."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

CALLS = ("mkdir", "open", "stat", "fchmod", "write", "fsync", "close", "replace", "unlink")


class Killed(BaseException):
    """The process ended here, and does nothing more."""


class Disk:
    """The calls of `os` that change files, counted; the one called `at` fails, as do all later."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, error: BaseException) -> None:
        self.at, self.error = at, error
        self.done: list[str] = []
        self.dead = False
        self.opened: set[int] = set()
        self.real = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            patch.setattr(os, name, self._call(name))

    def _call(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if self.dead:
                raise self.error
            self.done.append(name)
            if len(self.done) - 1 == self.at:
                self.dead = isinstance(self.error, Killed)
                self._half(name, args)
                raise self.error
            if name == "write":  # a disk may take less than it is given
                args = (args[0], args[1][: max(1, len(args[1]) // 2)])
            result = self.real[name](*args, **named)
            if name == "open":
                self.opened.add(result)
            if name == "close":
                self.opened.discard(args[0])
            return result

        return call

    def _half(self, name: str, args: tuple[Any, ...]) -> None:
        """What a call may have done by the time it fails."""
        if name == "write":
            self.real["write"](args[0], args[1][: len(args[1]) // 2])

    def close_all(self) -> None:
        for descriptor in self.opened:
            self.real["close"](descriptor)
