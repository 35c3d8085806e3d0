"""The tables of engine states for the documentation, made from `TRANSITIONS`.

`python -m narwhal.fleet.diagram` writes them to standard output; docs/engines.md has them between
the two comments that name this command.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections import defaultdict
from itertools import pairwise

from narwhal.fleet.standing import OPERATORS, TAKES_WORK, TRANSITIONS, EngineState, Event

BEGIN = "<!-- Made by `python -m narwhal.fleet.diagram`. Do not edit. -->"
END = "<!-- The end of what it made. -->"


def transitions_markdown() -> str:
    """Return both tables: where events lead from each state, and what the events are."""
    states = "| state | new work | what leads out of it |\n|---|---|---|\n"
    states += "".join(_row(state) for state in EngineState)
    meanings = _meanings()
    events = "| event | what happened |\n|---|---|\n"
    events += "".join(f"| `{event}` | {meanings[event.name]} |\n" for event in Event)
    return f"{BEGIN}\n\n{states}\n{events}\n{END}\n"


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
        return "if no other does"
    if state in TAKES_WORK:
        return "yes"
    return "no, by an operator's word" if state in OPERATORS else "no"


def _meanings() -> dict[str, str]:
    """What stands below each member of `Event` in the source, by the member's name."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(Event))).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    found = {}
    for member, text in pairwise(body):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            (target,) = member.targets
            if isinstance(target, ast.Name) and isinstance(text.value, ast.Constant):
                found[target.id] = " ".join(str(text.value.value).split())
    return found


if __name__ == "__main__":
    sys.stdout.write(transitions_markdown())
