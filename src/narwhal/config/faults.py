"""Mistakes, with the place they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import attrs

from narwhal.model import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


def join(path: str, step: str) -> str:
    """`path` with one more step, which is a key or starts with an index such as `[2]`."""
    if not path or not step or step.startswith("["):
        return path + step
    return f"{path}.{step}"


@attrs.frozen
class Fault:
    """One mistake: where, and a text to be read after the place's name."""

    path: str
    text: str

    def line(self, name: str) -> str:
        """The line for a person who works on the file `name`."""
        return f"{name}: {self.path} {self.text}" if self.path else f"{name}: {self.text}"


class Faults(ConfigError):
    """Mistakes in one part of a document, on their way up to the whole.

    `partial` is what could be read of that part, with defaults or placeholders where it could
    not: the search for mistakes goes on with it. `None` if nothing could.
    """

    def __init__(self, faults: Sequence[Fault], partial: object = None) -> None:
        self.faults = tuple(faults)
        self.partial = partial
        super().__init__([fault.line("?") for fault in self.faults])

    @classmethod
    def one(cls, text: str) -> Self:
        """One mistake at the place where this is raised."""
        return cls([Fault("", text)])

    def under(self, step: str) -> list[Fault]:
        """The same mistakes seen from one level higher."""
        return [Fault(join(step, fault.path), fault.text) for fault in self.faults]

    def named(self, name: str) -> ConfigError:
        """The error for a person who works on the file `name`."""
        return ConfigError([fault.line(name) for fault in self.faults])
