"""What a process holds, sample by sample, and whether it grows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

HOUR_S = 3600.0


@attrs.frozen
class Sample:
    at: float
    """Seconds since the load began."""
    rss_kib: int
    fds: int
    threads: int
    cpu_s: float


def sample(pid: int, at: float, *, ticks: int) -> Sample:
    """Look at a process; Linux only. `ticks` are the clock's per second."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Sample(
        at=at,
        rss_kib=int(status["VmRSS"].split()[0]),
        fds=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        threads=int(status["Threads"]),
        cpu_s=(int(fields[11]) + int(fields[12])) / ticks,
    )


def slope_per_hour(at: Sequence[float], values: Sequence[float]) -> float:
    """The median of the slopes between all pairs (Theil and Sen): outliers do not move it."""
    x, y = np.asarray(at, dtype=float), np.asarray(values, dtype=float)
    first, second = np.triu_indices(len(x), k=1)
    apart = x[second] - x[first]
    slopes = (y[second] - y[first])[apart > 0] / apart[apart > 0]
    return float(np.median(slopes)) * HOUR_S if len(slopes) else 0.0
