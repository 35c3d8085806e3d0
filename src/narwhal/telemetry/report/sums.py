"""Sums up what was read of a journal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from narwhal.model import Phase, Terminal
from narwhal.telemetry.report.figures import (
    MOST_WINDOWS,
    Ending,
    EngineFigures,
    Figures,
    PhaseFigures,
    Share,
    TerminalFigures,
    Times,
    Window,
)
from narwhal.telemetry.report.reading import LIMITS, PHASES, TERMINALS, UNCOUNTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from narwhal.telemetry.report.columns import Column, Columns
    from narwhal.telemetry.report.reading import Reading

# Of these the first with which there are no more than `_MOST_DRAWN` windows is taken.
_WIDTHS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_MOST_DRAWN = 48
_COMPLETED = TERMINALS.index(Terminal.COMPLETED)
_COUNTED = [n for n, terminal in enumerate(TERMINALS) if terminal not in UNCOUNTED]


def width_for(seconds: float) -> float:
    """A round length of windows with which that much time can be drawn, in seconds."""
    fitting = (width for width in _WIDTHS_S if seconds <= (_MOST_DRAWN - 1) * width)
    day = _WIDTHS_S[-1]
    return float(next(fitting, day * math.ceil(seconds / day / (_MOST_DRAWN - 1))))


def figures_of(reading: Reading, *, width_s: float | None = None) -> Figures:
    """Everything, with windows of `width_s` seconds, or as long as suits.

    Raises `ValueError` if there would be more than `MOST_WINDOWS` of them.
    """
    rows = reading.requests
    terminal, attempts = rows["terminal"], rows["attempts"]
    begin, end = _span(rows)
    width = width_for(end - begin) if width_s is None else width_s
    if (count := (end - begin) / width) > MOST_WINDOWS:
        raise ValueError(f"{count:.0f} windows of {width:g} s; at most {MOST_WINDOWS} can be made")
    counted, attained = np.isin(terminal, _COUNTED), _attained(rows)
    completed = terminal == _COMPLETED
    return Figures(
        **_about(reading),
        since=begin if len(rows) else None,
        until=end if len(rows) else None,
        requests=len(rows),
        attained=_share(attained, counted),
        of_completed=_share(attained, completed),
        ttft_met=_met(rows["ttft_met"]),
        tpot_met=_met(rows["tpot_met"]),
        terminals=tuple(_terminals(rows)),
        times=_times(rows, reading.attempts),
        phases=tuple(_phases(rows)),
        engines=tuple(_engines(reading)),
        endings=_endings(reading),
        attempts=int(attempts.sum(dtype=np.int64)),
        retried=int((attempts > 1).sum()),
        recovered=int(((attempts > 1) & completed).sum()),
        ttft_ratio=times_of(rows["ttft_ratio"]),
        tpot_ratio=times_of(rows["tpot_ratio"]),
        prompt_tokens=int(np.nansum(rows["prompt"], dtype=np.float64)),
        completion_tokens=int(rows["completion"].sum(dtype=np.float64)),
        width_s=width,
        windows=tuple(_windows(rows, attained, counted, width)),
    )


def times_of(column: Column) -> Times:
    """Of the numbers in a column; a percentile is one of them, the least that suits."""
    known = np.sort(column[~np.isnan(column)]).astype(np.float64)
    if not len(known):
        return Times(count=0)
    return Times(
        count=len(known),
        mean=_round(known.mean()),
        p50=_percentile(known, 0.5),
        p90=_percentile(known, 0.9),
        p95=_percentile(known, 0.95),
        p99=_percentile(known, 0.99),
        most=_round(known[-1]),
    )


def _percentile(ordered: Column, share: float) -> float | None:
    if not len(ordered):
        return None
    # Rounded, as 0.99 * 100 is a little more than 99 in floating point.
    return _round(ordered[max(0, math.ceil(round(share * len(ordered), 9)) - 1)])


def _round(value: float) -> float:
    """To a microsecond, or to what is left of one in a column."""
    return round(float(value), 6)


def _about(reading: Reading) -> dict[str, Any]:
    return {
        "files": tuple(reading.files),
        "lines": reading.lines,
        "bad": reading.bad,
        "bad_lines": tuple(reading.bad_lines),
        "torn": reading.torn,
        "left_out": reading.left_out,
        "dropped": reading.dropped,
        "starts": reading.starts,
        "stops": reading.stops,
        "models": tuple(reading.models),
        "versions": tuple(reading.versions),
        "targets": tuple(reading.targets),
        "limits": {limit: count for limit, count in reading.limits.items() if count},
        "moves": reading.moves,
        "roles": tuple(reading.roles),
        "changes": reading.changes,
        "standings": tuple(reading.standings),
        "router": tuple(reading.router),
    }


def _span(rows: Columns) -> tuple[float, float]:
    if not len(rows):
        return 0.0, 0.0
    at = rows["at"]
    return float(at.min()), float((at + rows["request_s"]).max())


def _attained(rows: Columns) -> Column:
    """An answer of one token has no time between tokens, and none that could be missed."""
    single = np.isnan(rows["tpot_s"])
    in_time = (rows["ttft_met"] == 1) & ((rows["tpot_met"] == 1) | single)
    found: Column = (rows["terminal"] == _COMPLETED) & in_time
    return found


def _share(part: Column, whole: Column) -> Share:
    return Share(int((part & whole).sum()), int(whole.sum()))


def _met(column: Column) -> Share:
    return Share(int((column == 1).sum()), int((column >= 0).sum()))


def _terminals(rows: Columns) -> Iterator[TerminalFigures]:
    for number, terminal in enumerate(TERMINALS):
        of = rows["terminal"] == number
        if of.any():
            yield TerminalFigures(
                terminal=terminal,
                requests=int(of.sum()),
                ttft_met=_met(rows["ttft_met"][of]),
                tpot_met=_met(rows["tpot_met"][of]),
                request=times_of(rows["request_s"][of]),
            )


def _times(rows: Columns, attempts: Columns) -> Mapping[str, Times]:
    names = ("ttft", "first_token_ttft", "prefill_ttft", "tpot")
    return {
        **{name: times_of(rows[f"{name}_s"]) for name in names},
        "request": times_of(rows["request_s"][rows["terminal"] == _COMPLETED]),
        "queue": times_of(rows[Phase.QUEUE]),
        "handoff": times_of(attempts["handoff_age_s"]),
    }


def _phases(rows: Columns) -> Iterator[PhaseFigures]:
    spent = {phase: float(np.nansum(rows[phase], dtype=np.float64)) for phase in PHASES}
    total = sum(spent.values())
    for phase, seconds in spent.items():
        times = times_of(rows[phase])
        if times.count:
            share = seconds / total if total else 0.0
            yield PhaseFigures(
                phase=phase, share=round(share, 6), seconds=_round(seconds), times=times
            )


def _engines(reading: Reading) -> Iterator[EngineFigures]:
    rows, attempts = reading.requests, reading.attempts
    prefill, decode, failed = (attempts[name] for name in ("prefill", "decode", "failed"))
    for iid, number in sorted((iid, n) for n, iid in enumerate(reading.engines.texts)):
        prefilled, decoded = prefill == number, decode == number
        failures = attempts["failure"][(failed == number) & (attempts["failure"] >= 0)]
        yield EngineFigures(
            iid=iid,
            prefills=int(prefilled.sum()),
            decodes=int(decoded.sum()),
            prefill=times_of(attempts["prefill_s"][prefilled]),
            handoff=times_of(attempts["handoff_age_s"][decoded]),
            first_token=times_of(attempts["first_token_s"][decoded]),
            tpot=times_of(rows["tpot_s"][rows["decoder"] == number]),
            failures=_counts(failures, reading.failures.texts),
        )


def _counts(numbers: Column, texts: Sequence[str]) -> dict[str, int]:
    values, counts = np.unique(numbers, return_counts=True)
    pairs = zip(counts.tolist(), values.tolist(), strict=True)
    return {texts[value]: count for count, value in sorted(pairs, key=lambda pair: -pair[0])}


def _endings(reading: Reading) -> tuple[Ending, ...]:
    rows, texts = reading.requests, reading.codes.texts
    failed = rows["terminal"] != _COMPLETED
    keys = np.stack([rows[name][failed].astype(np.int16) for name in ("terminal", "code", "limit")])
    found, counts = np.unique(keys, axis=1, return_counts=True)
    endings = [
        Ending(
            terminal=TERMINALS[terminal],
            code="-" if code < 0 else texts[code],
            limit=None if limit < 0 else LIMITS[limit],
            requests=count,
        )
        for (terminal, code, limit), count in zip(found.T.tolist(), counts.tolist(), strict=True)
    ]
    return tuple(sorted(endings, key=lambda each: -each.requests))


def _windows(rows: Columns, attained: Column, counted: Column, width: float) -> Iterator[Window]:
    """Every window from the first with a request to the last, from multiples of `width`."""
    if not len(rows):
        return
    slots = np.floor(rows["at"] / width).astype(np.int64)
    order = np.argsort(slots, kind="stable")
    first, last = int(slots[order[0]]), int(slots[order[-1]])
    cuts = np.searchsorted(slots[order], np.arange(first, last + 2))
    columns = {
        name: rows[name]
        for name in (
            "terminal",
            "ttft_s",
            "first_token_ttft_s",
            "tpot_s",
            Phase.QUEUE,
            "completion",
        )
    }
    for n in range(last - first + 1):
        of = order[cuts[n] : cuts[n + 1]]
        ends = np.bincount(columns["terminal"][of], minlength=len(TERMINALS)).tolist()
        ttft = _known(columns["first_token_ttft_s"][of])
        tpot = _known(columns["tpot_s"][of])
        yield Window(
            at=(first + n) * width,
            requests=len(of),
            attained=_share(attained[of], counted[of]),
            ends={t: count for t, count in zip(TERMINALS, ends, strict=True) if count},
            completion_tokens=int(columns["completion"][of].sum(dtype=np.float64)),
            ttft_p50=_percentile(ttft, 0.5),
            ttft_p99=_percentile(ttft, 0.99),
            tpot_p50=_percentile(tpot, 0.5),
            tpot_p99=_percentile(tpot, 0.99),
            queue_p99=_percentile(_known(columns[Phase.QUEUE][of]), 0.99),
        )


def _known(column: Column) -> Column:
    return np.sort(column[~np.isnan(column)]).astype(np.float64)
