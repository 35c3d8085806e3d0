"""The table of engine states for the documentation, made from `TRANSITIONS`.

`python -m narwhal.fleet.diagram` writes it to standard output; docs/engines.md has it between
the two comments that name this command.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from narwhal.fleet.standing import OPERATORS, TAKES_WORK, TRANSITIONS, EngineState, Event

BEGIN = "<!-- Made by `python -m narwhal.fleet.diagram`. Do not edit. -->"
END = "<!-- The end of what it made. -->"


def transitions_markdown() -> str:
    """Return the table: each state, whether it takes new work, and where each event leads."""
    head = "| state | new work | what leads out of it |\n|---|---|---|\n"
    return f"{BEGIN}\n\n{head}{''.join(_row(state) for state in EngineState)}\n{END}\n"


def _row(state: EngineState) -> str:
    by_target: defaultdict[EngineState, list[Event]] = defaultdict(list)
    for event, target in TRANSITIONS[state].items():
        by_target[target].append(event)
    out = "; ".join(
        f"{', '.join(f'`{event}`' for event in events)} → `{target}`"
        for target, events in by_target.items()
    )
    return f"| `{state}` | {_work(state)} | {out} |\n"


def _work(state: EngineState) -> str:
    if state is EngineState.QUARANTINED:
        return "if no other has room"
    if state in TAKES_WORK:
        return "yes"
    return "no; an operator's" if state in OPERATORS else "no"


if __name__ == "__main__":
    sys.stdout.write(transitions_markdown())
