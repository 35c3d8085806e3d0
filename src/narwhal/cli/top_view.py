"""One frame of `top`: what was read of a router, as something to draw. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from rich.console import Group
from rich.table import Table
from rich.text import Text

from narwhal.cli.top_rates import median_and_most
from narwhal.cli.units import seconds, span
from narwhal.telemetry.report import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from narwhal.cli.top_rates import Rates
    from narwhal.cli.top_state import Engine, Roles, State

_MOST_ALERTS, _MOST_MOVES = 6, 5
_NARROW, _WIDE = 76, 110
_NAMES_W = 10
_PHASES = ("prefill", "decode")
_STATES = {"serving": "green", "ejected": "red", "held": "red", "blocked": "red"}
"""Colours; every other state is somebody's doing, and yellow."""
_BAD_ENDS = frozenset({"failed", "expired"})


@attrs.frozen(kw_only=True)
class Frame:
    """All that is known."""

    url: str
    state: State | None
    """None: it never answered."""
    rates: Rates | None = None
    trouble: str | None = None
    """Why there is no newer state."""
    since: str = ""
    """The time of day since when, and for how long."""


def fitted(frame: Frame, console: Console) -> RenderableType:
    """The frame as it fits the terminal: in place nothing scrolls, so some engines are left out."""
    whole = draw(frame, console.width)
    over = len(console.render_lines(whole, pad=False)) - console.height
    if over <= 0 or frame.state is None:
        return whole
    # One line more, which says that they are left out.
    return draw(frame, console.width, most=max(1, len(frame.state.engines) - over - 1))


def draw(frame: Frame, width: int, *, most: int | None = None) -> RenderableType:
    """The frame, for a terminal of `width` columns; with `most` engines, if that is given."""
    parts: list[RenderableType] = [_head(frame)]
    if frame.trouble is not None:
        text = f"unreachable since {frame.since}: {printable(frame.trouble)}"
        parts.append(Text(text, style="bold red"))
    state = frame.state
    if state is not None:
        old = "dim" if frame.trouble is not None else ""
        parts += _alerts(state)
        parts += [_requests(state, frame.rates, old), Text(), _engines(state, width, old, most)]
        if state.roles is not None:
            parts += [Text(), *_roles(state.roles, old)]
    return Group(*parts)


def _head(frame: Frame) -> Text:
    state = frame.state
    head = Text()
    if state is None:
        return head.append(printable(frame.url), "bold")
    word, style = ("ready", "bold green") if state.ready else ("NOT READY", "bold red")
    if state.draining:
        word, style = "DRAINING", "bold yellow"
    head.append(f"{printable(state.model)}  ", "bold")
    head.append(word, "" if frame.trouble else style)
    version = f"(narwhal-trio {printable(state.version)})"
    head.append(f"  up {span(state.uptime_s)} {version}  {printable(frame.url)}")
    return head


def _alerts(state: State) -> Iterator[Text]:
    for alert in state.alerts[:_MOST_ALERTS]:
        yield Text(f"! {printable(alert)}", style="yellow")
    if (more := len(state.alerts) - _MOST_ALERTS) > 0:
        yield Text(f"! and {more} more: see /narwhal/state", style="yellow")


# Requests


def _requests(state: State, rates: Rates | None, style: str) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=_NAMES_W)
    table.add_column(style=style, overflow="fold")
    requests = state.requests
    now = f"{requests.in_flight} in flight, {requests.waiting} waiting, {requests.retained} held"
    table.add_row("requests", now)
    if rates is None:
        table.add_row("so far", _ends(requests.received, requests.terminals))
    else:
        table.add_row("per second", _flow(rates))
    table.add_row(f"last {len(state.recent)}" if state.recent else "recent", _recent(state))
    table.add_row("limits", _limits(state, rates))
    attempts = state.attempts
    table.add_row("retries", f"{attempts.retries}, {attempts.retry_credits:.3g} credits left")
    return table


def _ends(received: int, terminals: dict[str, int]) -> Text:
    text = Text(f"{received} received")
    for name, count in terminals.items():
        if count:
            text.append(f", {count} {printable(name)}", "red" if name in _BAD_ENDS else "")
    return text


def _flow(rates: Rates) -> Text:
    text = Text(f"{rates.received:.1f} received")
    for name, rate in rates.terminals.items():
        if rate > 0:
            text.append(f", {rate:.1f} {printable(name)}", "red" if name in _BAD_ENDS else "")
    return text.append(f"; {rates.tokens:.0f} tokens")


def _recent(state: State) -> Text:
    """The last requests that the router remembers: too few for more than a median."""
    slo = state.slo
    to_first = slo.ttft_scope == "first_token"
    text = Text()
    for name, target, values in (
        (
            "TTFT",
            slo.ttft_s,
            [each.first_token_ttft_s if to_first else each.prefill_ttft_s for each in state.recent],
        ),
        ("TPOT", slo.tpot_s, [each.tpot_s for each in state.recent]),
        ("queue", 0.0, [each.queue_s for each in state.recent]),
    ):
        if (found := median_and_most(values)) is not None:
            median, most = found
            text.append("; " if text else "").append(f"{name} {seconds(median)}, max ")
            text.append(seconds(most), "red" if 0 < target < most else "")
            text.append(f" (target {seconds(target)})" if target else "")
    return text or Text("-")


def _limits(state: State, rates: Rates | None) -> str:
    texts = []
    for name, count in state.limits_fired.items():
        if count:
            fresh = rates.limits.get(name, 0) if rates else 0
            texts.append(f"{printable(name)} {count}" + (f" (+{fresh})" if fresh else ""))
    return ", ".join(texts) or "none fired"


# Engines


def _chosen(state: State, most: int | None) -> list[Engine]:
    """Those that are shown, in the fleet's order: not those with which all is well, if some."""
    engines = list(state.engines)
    if most is None or most >= len(engines):
        return engines
    well = sorted(engines, key=lambda each: (each.state, each.suspicion) == ("serving", "trusted"))
    wanted = {each.iid for each in well[:most]}
    return [each for each in engines if each.iid in wanted]


def _engines(state: State, width: int, style: str, most: int | None) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, style=style)
    wide, narrow = width >= _WIDE, width < _NARROW
    table.add_column("ENGINE", no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column("ROLE", no_wrap=True)
    table.add_column("STATE", no_wrap=True)
    for name in ("PREFILL", "DECODE"):
        table.add_column(name if not narrow else name[:1], justify="right", no_wrap=True)
    if not narrow:
        table.add_column("KV TOKENS", justify="right", no_wrap=True)
        table.add_column("BACKLOG", justify="right", no_wrap=True)
    if wide:
        table.add_column("PACE P/D", justify="right", no_wrap=True)
        table.add_column("NOTE", overflow="fold")  # the only one that gives way
    chosen = _chosen(state, most)
    for engine in chosen:
        cells: list[Text | str] = [
            *(printable(engine.iid), _role(engine), _standing(engine)),
            *(_legs(engine, phase) for phase in _PHASES),
        ]
        if not narrow:
            cells += [f"{engine.reserved_tokens}", seconds(engine.backlog_s)]
        if wide:
            cells += ["/".join(_pace(engine, phase) for phase in _PHASES), _note(engine)]
        table.add_row(*cells)
    if left := len(state.engines) - len(chosen):
        table.add_row(f"and {left} more", style="dim")
    return table


def _role(engine: Engine) -> Text:
    pinned = " (pin)" if engine.pin else ""
    return Text(printable(engine.role) + pinned, "cyan" if engine.role == "prefill" else "magenta")


def _standing(engine: Engine) -> Text:
    since = "" if engine.state_s is None else f" {span(engine.state_s)}"
    return Text(printable(engine.state) + since, _STATES.get(engine.state, "yellow"))


def _legs(engine: Engine, phase: str) -> str:
    limit = engine.seat_limit.get(phase, 0)
    return f"{engine.residents.get(phase, 0)}" + (f"/{limit}" if limit else "")


def _pace(engine: Engine, phase: str) -> str:
    pace = engine.pace.get(phase)
    return "-" if pace is None else f"{pace:.2f}"


def _note(engine: Engine) -> Text:
    notes = [engine.reason, "" if engine.suspicion == "trusted" else engine.suspicion]
    return Text(printable("; ".join(filter(None, notes))), "yellow")


# Roles


def _roles(roles: Roles, style: str) -> Iterator[RenderableType]:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=_NAMES_W)
    table.add_column(style=style, overflow="fold")
    decision = roles.decision
    if decision is not None:
        loads = ", ".join(
            f"{phase} {'-' if load is None else f'{load:.2f}'}"
            for phase, load in decision.loads.items()
        )
        advisory = ", advisory" if roles.advisory else ""
        table.add_row("roles", printable(f"{decision.split}; loads {loads}{advisory}"))
        reason = printable(decision.reason)
        table.add_row("decision", f"{reason} ({span(decision.ago_s)} ago)")
    table.add_row("moves", "none" if not roles.flips else f"{len(roles.flips)}, the latest:")
    for flip in roles.flips[:_MOST_MOVES]:
        said = f"{span(flip.ago_s)} ago: {flip.iid} to {flip.to} ({flip.rule}), {flip.split}"
        table.add_row("", printable(said))
    yield table
