"""Runs that have nothing to do with each other, side by side."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

T = TypeVar("T")
R = TypeVar("R")


def in_order(run: Callable[[T], R], values: Sequence[T], *, jobs: int) -> Generator[R, None, None]:
    """`run(value)` of each value, in their order, on `jobs` processes; one is this very process.

    Blocks between two of them. All that passes between processes has to be picklable. When the
    iterator is closed, what was not begun never is.
    """
    if jobs == 1:
        yield from map(run, values)
        return
    # A fork would copy the threads' locks of whoever calls, and none of their threads.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=jobs, mp_context=spawn) as pool:
        runs = [pool.submit(run, value) for value in values]
        try:
            yield from (each.result() for each in runs)
        finally:
            pool.shutdown(cancel_futures=True)
