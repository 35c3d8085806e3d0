"""What a journal comes to as tables of text, which a terminal and a page both show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.cli.table import listed, percent, table
from narwhal.cli.units import moment, seconds, span
from narwhal.model import Terminal
from narwhal.telemetry.report import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from narwhal.telemetry.report import Bad, Figures, Share, Targets, Times

    _Table = tuple[Sequence[str], Sequence[Sequence[str]], Iterable[str]]

_MOST_NAMED = 5
"""Bad lines named in a sentence; the JSON has more of them."""
_MOST_ROWS = 200
"""Of a list of events: what is longer is for programs."""
_NAMES = {
    "ttft": "TTFT at the client, streams",
    "first_token_ttft": "TTFT, token generated",
    "prefill_ttft": "TTFT, end of prefill",
    "tpot": "TPOT",
    "request": "end to end, completed",
    "queue": "queue wait",
    "handoff": "handoff age",
}
_TIMES = ("p50", "p90", "p95", "p99", "most")


@attrs.frozen
class Section:
    """One table with its title."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[str]
    """Columns of text; the others are numbers."""


def as_text(figures: Figures) -> str:
    """For a terminal."""
    lines = [f"{name:<10} {text}" for name, text in about(figures)]
    for section in sections(figures):
        lines += ["", section.title, *table(section.head, section.rows, left=section.left)]
    return "\n".join(lines)


def about(figures: Figures) -> Iterator[tuple[str, str]]:
    """Names and sentences: what was read, and what it comes to as a whole."""
    yield "journal", _read(figures)
    if figures.bad:
        yield "bad lines", f"{figures.bad}: {named(figures.bad_lines)}"
    if figures.dropped:
        yield "lost", f"{figures.dropped} rows that the router could not write"
    if figures.models:
        yield "model", ", ".join(figures.models)
    if figures.since is None or figures.until is None:
        yield "requests", "none"
        return
    yield "time", f"{moment(figures.since)} to {moment(figures.until)}, {span(figures.seconds)}"
    yield "targets", "; ".join(map(_target, figures.targets)) or "none: give --ttft and --tpot"
    yield "requests", f"{figures.requests}{_rates(figures)}"
    if figures.targets:
        yield "attained", _attained(figures)
    if figures.retried:
        recovered = f"{figures.recovered} of them completed"
        yield "retried", f"{figures.retried} requests were tried again, {recovered}"


def _read(figures: Figures) -> str:
    parts = [f"{', '.join(figures.files)}: {figures.lines} lines"]
    parts.append(f"{figures.starts} starts, {figures.stops} stops")
    if figures.torn:
        parts.append(f"{figures.torn} cut off at the end")
    if figures.left_out:
        parts.append(f"{figures.left_out} requests left out by the options")
    return "; ".join(parts)


def named(bad: Sequence[Bad]) -> str:
    """Some of the bad lines, by file and number."""
    texts = [f"{each.name}:{each.number} ({each.why})" for each in bad[:_MOST_NAMED]]
    return ", ".join([*texts, "..."] if len(bad) > _MOST_NAMED else texts)


def _target(targets: Targets) -> str:
    until = {"prefill": "end of prefill", "first_token": "first token"}[targets.ttft_scope]
    return f"{until} within {targets.ttft_s:g} s, {targets.tpot_s:g} s between tokens"


def _rates(figures: Figures) -> str:
    if not figures.seconds:
        return ""
    per_s, tokens = figures.requests / figures.seconds, figures.completion_tokens / figures.seconds
    return f", {per_s:.3g}/s; {tokens:.3g} tokens/s generated"


def _attained(figures: Figures) -> str:
    return (
        f"{percent(figures.attained.fraction)} of {figures.attained.whole} that count; "
        f"{percent(figures.of_completed.fraction)} of the {figures.of_completed.whole} completed; "
        f"TTFT met {percent(figures.ttft_met.fraction)}, TPOT met "
        f"{percent(figures.tpot_met.fraction)}"
    )


# Sections


def sections(figures: Figures) -> Iterator[Section]:
    """All tables that have something in them."""
    for title, head, rows, left in (
        ("How requests ended", *_terminals(figures)),
        ("Times", *_times(figures)),
        ("Where the time went", *_phases(figures)),
        ("Engines", *_engines(figures)),
        ("Not completed", *_endings(figures)),
        ("Limits that fired, retried requests included", *_limits(figures)),
        ("Actual over projected", *_projections(figures)),
        (f"Over time, by {span(figures.width_s)} (UTC)", *_windows(figures)),
        ("Moves of roles", *_roles(figures)),
        ("Changes of engines", *_standings(figures)),
        ("The router", *_router(figures)),
    ):
        if rows:
            yield Section(title, head, rows, frozenset(left))


def _terminals(figures: Figures) -> _Table:
    head = ("ended", "requests", "share", "TTFT met", "TPOT met", *_heads())
    rows = [
        (
            *(each.terminal, str(each.requests), percent(each.requests / figures.requests)),
            *(_share(each.ttft_met), _share(each.tpot_met)),
            *_cells(each.request),
        )
        for each in figures.terminals
    ]
    return head, rows, ("ended",)


def _times(figures: Figures) -> _Table:
    rows = [
        (_NAMES[name], str(times.count), seconds(times.mean), *_cells(times))
        for name, times in figures.times.items()
        if times.count
    ]
    return ("time", "count", "mean", *_heads()), rows, ("time",)


def _phases(figures: Figures) -> _Table:
    rows = [
        (
            *(each.phase, percent(each.share), str(each.times.count), seconds(each.times.mean)),
            *_cells(each.times),
        )
        for each in figures.phases
    ]
    return ("phase", "share", "requests", "mean", *_heads()), rows, ("phase",)


def _engines(figures: Figures) -> _Table:
    head = (
        *("engine", "prefills", "p50", "p99", "decodes", "first token p50", "p99"),
        *("TPOT p50", "p99", "handoff p99", "failures"),
    )
    rows = [
        (
            *(each.iid, str(each.prefills), seconds(each.prefill.p50), seconds(each.prefill.p99)),
            *(str(each.decodes), seconds(each.first_token.p50), seconds(each.first_token.p99)),
            *(seconds(each.tpot.p50), seconds(each.tpot.p99), seconds(each.handoff.p99)),
            listed(each.failures),
        )
        for each in figures.engines
    ]
    return head, rows, ("engine", "failures")


def _endings(figures: Figures) -> _Table:
    rows = [
        (each.terminal, each.code, each.limit or "-", str(each.requests))
        for each in figures.endings
    ]
    return ("ended", "code", "limit", "requests"), rows, ("ended", "code", "limit")


def _limits(figures: Figures) -> _Table:
    rows = [(limit, str(count)) for limit, count in figures.limits.items()]
    return ("limit", "fired"), rows, ("limit",)


def _projections(figures: Figures) -> _Table:
    rows = [
        (name, str(times.count), *(_ratio(getattr(times, each)) for each in ("mean", *_TIMES)))
        for name, times in (("TTFT", figures.ttft_ratio), ("TPOT", figures.tpot_ratio))
        if times.count
    ]
    return ("ratio", "requests", "mean", *_heads()), rows, ("ratio",)


def _windows(figures: Figures) -> _Table:
    head = (
        *("from", "requests", "attained", "refused", "failed", "expired", "tokens/s"),
        *("TTFT p50", "p99", "TPOT p50", "p99", "queue p99"),
    )
    rows = [
        (
            *(moment(each.at), str(each.requests), percent(each.attained.fraction)),
            str(sum(count for terminal, count in each.ends.items() if terminal.turned_away)),
            *(str(each.ends.get(terminal, 0)) for terminal in (Terminal.FAILED, Terminal.EXPIRED)),
            f"{each.completion_tokens / figures.width_s:.3g}",
            *(seconds(each.ttft_p50), seconds(each.ttft_p99)),
            *(seconds(each.tpot_p50), seconds(each.tpot_p99), seconds(each.queue_p99)),
        )
        for each in figures.windows[-_MOST_ROWS:]
    ]
    return head, rows, ("from",)


def _roles(figures: Figures) -> _Table:
    rows = [
        (
            *(moment(each.ts), each.engine, each.to, each.verdict, each.rule),
            f"{each.split} -> {each.proposed}",
            each.reason,
        )
        for each in figures.roles[:_MOST_ROWS]
    ]
    head = ("when", "engine", "to", "verdict", "rule", "split", "why")
    return _printable(head, rows)


def _standings(figures: Figures) -> _Table:
    rows = [
        (moment(each.ts), each.engine, f"{each.source} -> {each.target}", each.cause, each.reason)
        for each in figures.standings[:_MOST_ROWS]
    ]
    return _printable(("when", "engine", "state", "cause", "why"), rows)


def _router(figures: Figures) -> _Table:
    rows = [(moment(each.ts), each.change, each.reason) for each in figures.router[:_MOST_ROWS]]
    return _printable(("when", "change", "why"), rows)


def _printable(head: Sequence[str], rows: Sequence[Sequence[str]]) -> _Table:
    return head, [tuple(map(printable, row)) for row in rows], head


# Cells


def _heads() -> Sequence[str]:
    return ("p50", "p90", "p95", "p99", "max")


def _cells(times: Times) -> Sequence[str]:
    return [seconds(getattr(times, name)) for name in _TIMES]


def _share(share: Share) -> str:
    return percent(share.fraction)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
