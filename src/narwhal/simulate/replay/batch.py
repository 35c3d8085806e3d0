"""Several replays, on as many processors as there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.simulate.processes import in_order
from narwhal.simulate.replay.run import run_replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from narwhal.simulate.replay.replay import Replay
    from narwhal.simulate.replay.results import Result


def run_replays(replays: Sequence[Replay], *, jobs: int = 1) -> Iterator[Result]:
    """Every result, in the order of `replays`, on `jobs` processes.

    Blocks between two of them. How many processes there are makes no difference to the results.
    """
    return in_order(run_replay, replays, jobs=jobs)
