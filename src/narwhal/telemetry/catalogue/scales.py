"""The edges of histograms."""

from __future__ import annotations

from narwhal.telemetry.kinds import Scale

# Fractions of a target, dense around it: the share of requests that met the target is read off
# exactly, because 1.0 is a bucket's edge, and the share that missed it by little is seen too.
_AROUND_TARGET = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
# From what a loop at rest is late by (a millisecond) to what clients notice as an outage.
_LATE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_OUTPUT_TOKENS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def buckets(scale: Scale, *, ttft_s: float, tpot_s: float) -> tuple[float, ...]:
    """Return a histogram's upper edges in seconds, for the targets of this fleet.

    TTFT and TPOT: fractions of the target. REQUEST: what a request of so many output tokens
    takes if it just meets both targets. RATIO: the fractions themselves. LAG is not scaled.
    """
    if scale is Scale.RATIO:
        edges = list(_AROUND_TARGET)
    elif scale is Scale.LAG:
        edges = list(_LATE)
    elif scale is Scale.REQUEST:
        edges = [ttft_s + (tokens - 1) * tpot_s for tokens in _OUTPUT_TOKENS]
    else:
        target = ttft_s if scale is Scale.TTFT else tpot_s
        edges = [target * fraction for fraction in _AROUND_TARGET]
    # 6 digits: 0.1 * 3 is to read 0.3 in a label. Edges that round to one are one.
    return tuple(dict.fromkeys(float(f"{edge:.6g}") for edge in edges))
