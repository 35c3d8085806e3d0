"""The requests that are being served, and how to wait until there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narwhal.router.life import RequestLife


class Lives:
    """A set of running requests, iterated in order of arrival."""

    def __init__(self) -> None:
        self._lives: dict[RequestLife, None] = {}
        self._empty: trio.Event | None = None

    def __len__(self) -> int:
        return len(self._lives)

    def __iter__(self) -> Iterator[RequestLife]:
        return iter(list(self._lives))

    def add(self, life: RequestLife) -> None:
        """A request begins."""
        self._lives[life] = None

    def remove(self, life: RequestLife) -> None:
        """A request has ended."""
        del self._lives[life]
        if not self._lives and self._empty is not None:
            self._empty.set()
            self._empty = None

    async def wait_empty(self) -> None:
        """Wait until no request is being served."""
        while self._lives:
            if self._empty is None:
                self._empty = trio.Event()
            await self._empty.wait()
