"""Counters in a state document: for each metric, values by label, one level for each label.

`{"requests_total": {"chat": {"completed": 12}}, "retries_total": 1}`. What is zero is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from narwhal.config.document import key_name
from narwhal.config.faults import Fault, Faults, join
from narwhal.config.settings import MAX_INTEGER, shown, type_complaint
from narwhal.model import Route
from narwhal.profiles.reading import unknown_keys
from narwhal.telemetry import COUNTED, REJECTION_CODES, Counters, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


Key = tuple[str, ...]


def counters_document(counters: Counters) -> dict[str, object]:
    """The object that `read_counters` makes equal counters of; equal ones give equal objects."""
    return {name: _tree(series) for name, series in sorted(counters.series.items())}


def _tree(series: Mapping[Key, float]) -> object:
    if () in series:
        return _number(series[()])
    branches: dict[str, dict[Key, float]] = {}
    for (first, *rest), value in sorted(series.items()):
        branches.setdefault(first, {})[tuple(rest)] = value
    return {first: _tree(branch) for first, branch in branches.items()}


def _number(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def read_counters(
    document: Mapping[str, object], engines: Sequence[str]
) -> tuple[Counters, list[Fault]]:
    """Read `counters` and `rejections` of a document; a counter that is not there is zero."""
    series: dict[str, dict[Key, float]] = {}
    faults: list[Fault] = []
    given = document.get("counters", {})
    if isinstance(given, Mapping):
        faults += Faults(unknown_keys(given, list(COUNTED))).under("counters")
        for name, metric in COUNTED.items():
            if name not in given:
                continue
            levels = [tuple(values_of(label, engines)) for label in metric.labels]
            # Times are fractions of seconds; all else comes in whole numbers.
            kind = float if metric.unit == "seconds" else int
            found = dict(_leaves(given[name], levels, f"counters.{name}", kind, faults))
            if found := {key: value for key, value in found.items() if value}:
                series[name] = found
    else:
        faults.append(Fault("counters", f"must be an object, not {shown(given)}"))
    told = _leaves(document.get("rejections", {}), [REJECTION_CODES], "rejections", int, faults)
    rejections = {code: int(value) for (code,), value in told if value}
    counters = Counters(series=series, rejections=rejections)
    return counters, faults or _ends_without_beginnings(counters)


def _leaves(
    value: object, levels: Sequence[Sequence[str]], path: str, kind: type, faults: list[Fault]
) -> Iterator[tuple[Key, float]]:
    """The numbers at the end of each branch; what cannot be read goes to `faults`."""
    if not levels:
        complaint = _complaint(kind, value)
        if complaint is None:
            assert isinstance(value, int | float)  # noqa: S101 - that is what was looked at
            yield (), float(value) + 0.0
        else:
            faults.append(Fault(path, complaint))
    elif not isinstance(value, Mapping):
        faults.append(Fault(path, f"must be an object, not {shown(value)}"))
    else:
        faults += Faults(unknown_keys(value, levels[0])).under(path)
        for key in levels[0]:
            if key in value:
                inner = _leaves(value[key], levels[1:], join(path, key_name(key)), kind, faults)
                for rest, number in inner:
                    yield (key, *rest), number


def _complaint(kind: type, value: object) -> str | None:
    if complaint := type_complaint(kind, value):
        return complaint
    if isinstance(value, int | float) and 0 <= value <= MAX_INTEGER:
        return None
    return f"must be between 0 and {MAX_INTEGER}, not {shown(value)}"


def _ends_without_beginnings(counters: Counters) -> list[Fault]:
    faults = []
    for route in Route:
        ended = int(counters.total("requests_total", route))
        received = int(counters.total("requests_received_total", route))
        if ended > received:
            text = f"must not be more than were received: {ended} ended, {received} received"
            faults.append(Fault(f"counters.requests_total.{route}", text))
    return faults
