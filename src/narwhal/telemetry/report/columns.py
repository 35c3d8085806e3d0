"""Numbers of many requests, column by column: a hundred bytes each, and fast to sum up."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    Column = NDArray[Any]

NO = float("nan")
"""Where there is no number."""


class Names:
    """Texts as small numbers. What comes after the first `most` of them is one text, `OTHER`."""

    OTHER = "other"

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of `text`, from 0."""
        numbers = self._numbers
        found = numbers.get(text)
        if found is None:
            if len(numbers) >= self._most:
                text = self.OTHER
            found = numbers.setdefault(text, len(numbers))
        return found

    def number_or_none(self, text: str | None) -> int:
        """The same, and -1 for None."""
        return -1 if text is None else self.number(text)

    @property
    def texts(self) -> Sequence[str]:
        """All of them, by number."""
        return tuple(self._numbers)


class Columns:
    """Named columns of one length. `kinds` are typecodes of `array`, by name."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._arrays: dict[str, array[Any]] = {name: array(kind) for name, kind in kinds.items()}
        self._appends = tuple(each.append for each in self._arrays.values())

    def append(self, *values: float | None) -> None:
        """One row, in the order of the columns; None is `NO`."""
        for append, value in zip(self._appends, values, strict=True):
            append(NO if value is None else value)

    def __getitem__(self, name: str) -> Column:
        """A column, as it is now. Nothing can be appended while it is in use."""
        column = self._arrays[name]
        return (
            np.frombuffer(column, dtype=column.typecode)
            if column
            else np.array([], column.typecode)
        )

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))
