"""`narwhal-trio engines`: what the engines of a running router do, and whether they serve."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from narwhal.cli.engines_call import Caller
from narwhal.cli.numbers import FiniteRange
from narwhal.cli.reach import reach_options
from narwhal.cli.running import fail
from narwhal.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from narwhal.cli.reach import Reach

# Often enough for a person or a script that waits; a router answers in a millisecond.
_LOOK_AGAIN_S = 0.5
_HEAD = ("ENGINE", "ROLE", "STATE", "RESIDENTS", "DEADLINE", "STOP?", "REASON")


@click.group("engines", short_help="Take engines out of service, and back into it.")
def engines_group() -> None:
    """Take engines of a running router out of service, and back into it."""


def _common(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.argument("iids", metavar="[IID]...", nargs=-1),
        click.option(
            "--format",
            "form",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="For people, or for programs.",
        ),
    ):
        command = option(command)
    return reach_options(command)


@engines_group.command("list", short_help="Show the engines, and what runs on them.")
@_common
def list_engines(*, iids: tuple[str, ...], reach: Reach, form: str) -> None:
    """Show the engines: whether they are in service, what runs on them, how far a drain is."""
    _show(_chosen(Caller(reach).engines(), iids), form)


@engines_group.command("drain")
@_common
@click.option("--all", "every", is_flag=True, help="The whole fleet, at once.")
@click.option(
    "--deadline",
    type=FiniteRange(min=0, min_open=True),
    metavar="SECONDS",
    help="When it should be done. Nothing is cut short then; it is shown as overdue, and --wait "
    "ends with 1.",
)
@click.option("--wait", is_flag=True, help="Return when they may be stopped.")
def drain(
    *,
    iids: tuple[str, ...],
    reach: Reach,
    form: str,
    every: bool,
    deadline: float | None,
    wait: bool,
) -> None:
    """Give engines no new work; what runs on them goes on.

    Engines may be stopped when the column STOP? says yes. Ctrl-C ends the waiting, not the drain.
    """
    if bool(iids) is every:
        raise fail("name the engines to drain, or drain all of them with --all")
    caller = Caller(reach)
    wanted = [each["iid"] for each in _chosen(caller.engines(), iids)]
    for order in [{}] if every else [{"engine": iid} for iid in wanted]:
        body: dict[str, object] = dict(order)
        if deadline is not None:
            body["deadline_s"] = deadline
        status, answer = caller.order("drain", **body)
        if status != 200:  # noqa: PLR2004 - OK
            raise fail(_message(answer))
    states = _wait(caller, wanted) if wait else _chosen(caller.engines(), wanted)
    _show(states, form)
    late = [each["iid"] for each in states if wait and _overdue(each)]
    if late:
        raise fail(
            f"not empty by the deadline: {', '.join(late)}; the drain goes on: wait longer, or "
            "stop them and lose what runs there"
        )


@engines_group.command("readmit", short_help="Check engines, and put those that pass into service.")
@_common
@click.option("--same-process", is_flag=True, help="Even if the engine was not restarted.")
def readmit(*, iids: tuple[str, ...], reach: Reach, form: str, same_process: bool) -> None:
    """Check engines, one after the other, and put those that pass into service.

    The first that fails ends it: what went wrong with one may go wrong with all.
    """
    if not iids:
        raise fail("name the engines to readmit")
    caller = Caller(reach)
    _chosen(caller.engines(), iids)
    for iid in iids:
        status, answer = caller.order("readmit", engine=iid, same_process=same_process)
        if form == "json":
            click.echo(json.dumps(answer))
        elif status == 200:  # noqa: PLR2004 - OK
            passed = ", ".join(answer["passed"])
            click.echo(visible(f"{iid} serves again; passed: {passed}"))
        if status != 200:  # noqa: PLR2004 - OK
            raise fail(*_refusal(iid, answer))


def _refusal(iid: str, answer: dict[str, Any]) -> Iterable[str]:
    """Which check failed, why, and which were passed; or why there were none."""
    failed = answer.get("failed")
    if failed is None:
        yield _message(answer)
        return
    yield f"{iid} stays out of service: its check {failed['check']} failed: {failed['reason']}"
    yield f"passed before that: {', '.join(answer.get('passed', ())) or 'none'}"


def _message(answer: dict[str, Any]) -> str:
    error = answer.get("error")
    said = error.get("message") if isinstance(error, dict) else None
    return str(said or "the router refused, and did not say why; its log may")


def _chosen(states: list[dict[str, Any]], iids: Sequence[str]) -> list[dict[str, Any]]:
    """Those of the engines that are named; all, if none is."""
    names = [each["iid"] for each in states]
    if unknown := [iid for iid in iids if iid not in names]:
        raise fail(f"no engine {unknown[0]}: the fleet has {', '.join(names)}")
    return [each for each in states if not iids or each["iid"] in iids]


def _wait(caller: Caller, wanted: Sequence[str]) -> list[dict[str, Any]]:
    """Wait until all may be stopped, or a deadline has passed."""
    while True:
        states = _chosen(caller.engines(), wanted)
        if any(map(_overdue, states)) or all(each["ready_to_stop"] for each in states):
            return states
        if back := [each["iid"] for each in states if each["drain"] is None]:
            raise fail(f"{back[0]} was readmitted meanwhile: it is not drained any more")
        time.sleep(_LOOK_AGAIN_S)


def _overdue(state: dict[str, Any]) -> bool:
    return bool(state["drain"] and state["drain"]["overdue"])


def _show(states: list[dict[str, Any]], form: str) -> None:
    if form == "json":
        click.echo(json.dumps(states, indent=2))
        return
    rows = [_HEAD, *map(_row, states)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo(visible("  ".join(cells).rstrip()))


def _row(state: dict[str, Any]) -> tuple[str, ...]:
    drain, deadline = state["drain"], "-"
    if drain and drain["deadline_s"] is not None and not state["ready_to_stop"]:
        deadline = "overdue" if drain["overdue"] else f"{drain['deadline_s']:.0f} s"
    return (
        state["iid"],
        state["role"],
        state["state"],
        str(state["residents"]),
        deadline,
        "yes" if state["ready_to_stop"] else "no",
        state["reason"] or "-",
    )
