"""What `narwhal-trio profile` tells: as text, as JSON, and as a picture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from narwhal.cli.chart import Panel, Series, svg_chart
from narwhal.profiles import (
    Refused,
    check_limits,
    fit_chars_per_token,
    fit_handoff,
    medians,
)
from narwhal.profiles.store import ProfileStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from narwhal.config import FleetConfig
    from narwhal.profiles import EngineSamples, Profile, ProfileRow

# Requests of these lengths have to be imagined: prompt and answer so far.
_CONTEXTS = (1024, 4096, 16384)
_POINTS = 24


@attrs.define(kw_only=True)
class Report:
    """The engines that were measured or fitted, in that order."""

    config: FleetConfig
    store: Path
    samples: list[EngineSamples] = attrs.field(factory=list)
    rows: list[ProfileRow] = attrs.field(factory=list)
    left_out: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    kept: list[str] = attrs.field(factory=list)
    """Engines that have a profile already."""

    def add(self, samples: EngineSamples, row: ProfileRow, left_out: tuple[str, ...] = ()) -> None:
        """Take up one engine."""
        self.samples.append(samples)
        self.rows.append(row)
        self.left_out[row.iid] = left_out

    def warnings(self) -> list[str]:
        """What is not as it should be, although there is a profile."""
        store = ProfileStore(rows=tuple(self.rows))
        found = [each.line(self.store.name) for each in check_limits(store, self.config.profiles)]
        for samples in self.samples:
            fit = fit_handoff(medians(samples.handoff)) if samples.handoff else None
            if isinstance(fit, Refused):
                found.append(f"{samples.engine.iid}: {fit.text}; the profile has no handoff")
        return found

    def chars_per_token(self) -> float | None:
        """Characters to a token over all engines; None if they do not agree on any figure."""
        fit = fit_chars_per_token([each for samples in self.samples for each in samples.text])
        return None if isinstance(fit, Refused) else fit.value


def as_json(report: Report) -> dict[str, Any]:
    """The report for programs. Times are in seconds."""
    return {
        "store": str(report.store),
        "kept": report.kept,
        "chars_per_token": report.chars_per_token(),
        "warnings": report.warnings(),
        "engines": [
            {
                "iid": row.iid,
                "generation_digest": row.generation_digest,
                **attrs.asdict(row.profile),
                "seats": _seats(row.profile, report.config.slo.tpot_s),
                "left_out": report.left_out[row.iid],
            }
            for row in report.rows
        ],
    }


def _seats(profile: Profile, tpot_s: float) -> list[dict[str, Any]]:
    seats = [(context, profile.decode_seats(context, tpot_s)) for context in _CONTEXTS]
    return [
        {"context_tokens": context, "requests": each.count, "bound": each.bound}
        for context, each in seats
    ]


def as_text(report: Report) -> str:
    """The report for people."""
    lines = [f"{iid}: has a profile already; --overwrite measures it again" for iid in report.kept]
    for row in report.rows:
        lines += _engine_lines(row, report)
    chars = report.chars_per_token()
    if chars is not None:
        own = report.config.engine.chars_per_token
        lines.append(f"engine.chars_per_token {chars:.2f} measured, {own:g} in the fleet file")
    lines += [f"warning: {text}" for text in report.warnings()]
    if report.rows:
        lines.append(f"{len(report.rows)} profiles written to {report.store}")
    return "\n".join(lines) or "nothing was measured"


def _engine_lines(row: ProfileRow, report: Report) -> Iterable[str]:
    profile, tpot = row.profile, report.config.slo.tpot_s
    prefill, decode, handoff = profile.prefill, profile.decode, profile.handoff
    yield row.iid
    yield (
        f"  prefill   {prefill.a:.3g} n^2 + {prefill.b:.3g} n + {prefill.c:.3g} s"
        f"{_errors(prefill.fit_mape, prefill.cv_mape)}"
    )
    yield (
        f"  decode    {decode.t0:.3g} + {decode.tr:.3g} requests + {decode.tk:.3g} tokens s"
        f"{_errors(decode.fit_mape, decode.cv_mape)}"
    )
    if handoff is not None:
        yield f"  handoff   {handoff.base_s:.3g} + {handoff.token_s:.3g} n s"
    for each in _seats(profile, tpot):
        yield (
            f"  seats     {each['requests']} requests of {each['context_tokens']} tokens "
            f"within {tpot:g} s a token (bound: {each['bound']})"
        )
    for text in report.left_out[row.iid]:
        yield f"  left out  {text}"


def _errors(fit: float | None, left_out: float | None) -> str:
    shown = [f"{value:.1%}" if value is not None else "unknown" for value in (fit, left_out)]
    return f"   off by {shown[0]}, {shown[1]} where left out"


def plot(report: Report) -> str:
    """All fits against their samples: a row of panels for each engine, as SVG."""
    panels = [
        panel
        for samples, row in zip(report.samples, report.rows, strict=True)
        for panel in _panels(samples, row.profile)
    ]
    return svg_chart(panels, title=f"Profiles of {report.config.model}")


def _panels(samples: EngineSamples, profile: Profile) -> Iterable[Panel]:
    iid = samples.engine.iid
    lengths = [(float(each.tokens), each.seconds) for each in samples.prefill]
    yield Panel(
        title=f"{iid}: prefill",
        x_label="prompt tokens",
        y_label="seconds",
        series=[
            Series(name="measured", points=lengths, line=False),
            _curve("fit", lengths, lambda n: profile.prefill_seconds(round(n))),
        ],
        x_log=True,
        y_log=True,
    )
    yield _decode_panel(samples, profile)
    if samples.handoff and profile.handoff is not None:
        moved = [(float(each.tokens), each.seconds) for each in samples.handoff]
        yield Panel(
            title=f"{iid}: handoff",
            x_label="prompt tokens",
            y_label="seconds",
            series=[
                Series(name="measured", points=moved, line=False),
                _curve("fit", moved, lambda n: profile.handoff_seconds(round(n))),
            ],
        )


def _decode_panel(samples: EngineSamples, profile: Profile) -> Panel:
    series = []
    for requests in sorted({each.requests for each in samples.decode}):
        name = "1 stream" if requests == 1 else f"{requests} streams"
        points = [
            (float(each.kv_tokens), each.interval_s)
            for each in samples.decode
            if each.requests == requests
        ]
        series.append(Series(name=name, points=points, line=False))
        series.append(_curve(name, points, partial(profile.decode_interval, requests)))
    return Panel(
        title=f"{samples.engine.iid}: interval between tokens",
        x_label="KV tokens",
        y_label="seconds",
        series=series,
    )


def _curve(
    name: str, points: Iterable[tuple[float, float]], value: Callable[[float], float]
) -> Series:
    """The fit from the first of the points to the last."""
    places = sorted(x for x, _ in points)
    low, high = places[0], places[-1]
    steps = [low * (high / low) ** (n / _POINTS) for n in range(_POINTS + 1)]
    return Series(name=name, points=[(x, value(x)) for x in steps], dots=False)
