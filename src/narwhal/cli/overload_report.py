"""The figures of an overload experiment: as text, as JSON, and as panels of a chart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from narwhal.cli.chart import Panel, Series
from narwhal.cli.table import listed, percent, table
from narwhal.simulate.overload import Arm
from narwhal.simulate.overload.batch import TPOT_S, TTFT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from narwhal.simulate.overload import Experiment, Figures

_HEAD = (
    "profiles",
    "load",
    "offered/s",
    "admitted",
    "ttft met",
    "first token",
    "tpot met",
    "goodput/s",
    "tokens/s",
    "refused",
)
_TEXT_COLUMNS = frozenset({"profiles", "refused"})
"""Aligned to the left; the others are numbers."""


def arm_name(arm: Arm, off: float) -> str:
    """What an arm is called where people read it."""
    percent = f"{100 * off:g} %"
    return {
        Arm.EXACT: "exact",
        Arm.LOW: f"{percent} too low",
        Arm.HIGH: f"{percent} too high",
        Arm.MIXED: f"{percent} off, mixed",
        Arm.OPEN: "admission open",
    }[arm]


# Text


def as_text(experiment: Experiment, figures: Sequence[Figures]) -> str:
    """What a person reads: what a load of 1 is, and a line for each run."""
    capacity = experiment.capacity
    prefill = f"{experiment.prefill} engines, {capacity.prefill_s:.4f} s a prompt"
    decode = (
        f"{experiment.decode} engines, {capacity.seats} requests of "
        f"{capacity.context_tokens:.0f} tokens on each"
    )
    counted = f"{experiment.requests} requests a run, after {experiment.warm_up_s:g} s under load"
    about = [
        f"capacity  {capacity.rate:.1f} requests/s, by {capacity.bottleneck}",
        f"prefill   {capacity.prefill_rate:.1f}/s: {prefill}",
        f"decode    {capacity.decode_rate:.1f}/s: {decode}",
        f"targets   ttft {TTFT_S:g} s, tpot {TPOT_S:g} s",
        f"counted   {counted}",
        "",
    ]
    rows = [_row(each, experiment.off) for each in figures]
    return "\n".join(about + table(_HEAD, rows, left=_TEXT_COLUMNS))


def _row(each: Figures, off: float) -> tuple[str, ...]:
    return (
        arm_name(each.arm, off),
        f"{each.load:g}",
        f"{each.offered_rate:.1f}",
        percent(each.admitted / each.offered),
        percent(each.share(each.ttft_met)),
        percent(each.share(each.first_token_met)),
        percent(each.share(each.tpot_met)),
        f"{each.goodput:.1f}",
        f"{each.good_tokens_rate:.0f}",
        listed({**each.refused, **{f"{code} (failed)": n for code, n in each.failed.items()}}),
    )


# JSON


def as_json(experiment: Experiment, figures: Sequence[Figures]) -> str:
    """The same for programs. Rates per second, times in seconds, shares of the admitted."""
    capacity = experiment.capacity
    document = {
        "seed": experiment.seed,
        "off": experiment.off,
        "requests": experiment.requests,
        "engines": {"prefill": experiment.prefill, "decode": experiment.decode},
        "targets": {"ttft_s": TTFT_S, "tpot_s": TPOT_S},
        "warm_up_s": experiment.warm_up_s,
        "capacity": {
            "rate": capacity.rate,
            "bottleneck": capacity.bottleneck,
            "prefill_rate": capacity.prefill_rate,
            "prefill_s": capacity.prefill_s,
            "decode_rate": capacity.decode_rate,
            "decode_seats": capacity.seats,
            "decode_context_tokens": capacity.context_tokens,
            "request_tokens": capacity.tokens,
        },
        "runs": [_run(each) for each in figures],
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def _run(each: Figures) -> dict[str, Any]:
    return {
        "arm": each.arm,
        "load": each.load,
        "seconds": each.seconds,
        "offered": each.offered,
        "offered_rate": each.offered_rate,
        "admitted": each.admitted,
        "refused": each.refused,
        "failed": each.failed,
        "ttft_met": each.share(each.ttft_met),
        "first_token_met": each.share(each.first_token_met),
        "tpot_met": each.share(each.tpot_met),
        "good": each.good,
        "goodput": each.goodput,
        "good_tokens_rate": each.good_tokens_rate,
    }


# Panels


def panels(experiment: Experiment, figures: Sequence[Figures]) -> list[Panel]:
    """Four of them, each with a line for every arm."""
    capacity = experiment.capacity

    def panel(
        title: str, y_label: str, of: Callable[[Figures], float | None], most: float | None = None
    ) -> Panel:
        series = [_series(arm, experiment.off, figures, of) for arm in experiment.arms]
        if most is not None:
            series.append(_up_to(most, figures))
        return Panel(
            title=title,
            x_label="offered load, in multiples of capacity",
            y_label=y_label,
            series=series,
        )

    return [
        panel("Goodput", "requests/s in time", lambda each: each.goodput, capacity.rate),
        panel(
            "Tokens",
            "tokens/s of requests in time",
            lambda each: each.good_tokens_rate,
            capacity.rate * capacity.tokens,
        ),
        panel("TTFT", "% of the admitted in time", lambda each: _share(each, each.ttft_met)),
        panel("TPOT", "% of the admitted in time", lambda each: _share(each, each.tpot_met)),
    ]


def _up_to(most: float, figures: Sequence[Figures]) -> Series:
    """What is offered, and at more than capacity `most`: what could be served of it."""
    loads = _with_knee(sorted({each.load for each in figures}))
    points = [(load, min(1.0, load) * most) for load in loads]
    return Series(name="offered, up to capacity", points=points, dots=False, dashed=True)


def _with_knee(loads: Sequence[float]) -> list[float]:
    """The loads, and 1 if it is between them: there the line bends."""
    between = loads[0] < 1.0 < loads[-1]
    return sorted({*loads, 1.0}) if between else list(loads)


def _share(each: Figures, count: int) -> float | None:
    share = each.share(count)
    return None if share is None else 100 * share


def _series(
    arm: Arm, off: float, figures: Sequence[Figures], of: Callable[[Figures], float | None]
) -> Series:
    values = sorted((each.load, of(each)) for each in figures if each.arm is arm)
    return Series(
        name=arm_name(arm, off), points=[(load, y) for load, y in values if y is not None]
    )
