"""The names in a PromQL expression, and whether the router has them.

This is no parser: that an expression is one is for `promtool` to say. It finds every name and every
label, and does not miss one because it does not understand what stands around it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from narwhal.telemetry.catalogue import CATALOGUE, PROCESS
from narwhal.telemetry.codes import CODE_LABELS
from narwhal.telemetry.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TARGET = {"job", "instance"}
"""What Prometheus adds to every series of a router."""
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\]]*\])"""
    r"""|(?P<number>\d[\d.]*(?:e-?\d+)?)|(?P<name>[a-zA-Z_:][\w:]*)"""
    r"""|(?P<mark>=~|!~|!=|==|<=|>=|[-+*/%^(){},=<>])|(?P<space>\s+)"""
)
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool"}
_FUNCTIONS = {
    *("sum", "min", "max", "avg", "count", "rate", "increase", "changes", "deriv", "time"),
    "histogram_quantile",
}


@attrs.frozen
class Matcher:
    label: str
    op: str
    value: str

    def admits(self, value: str) -> bool:
        plain = self.op in ("=", "!=")
        hit = value == self.value if plain else re.fullmatch(self.value, value) is not None
        return hit == self.op.startswith("=")


@attrs.frozen
class Selector:
    metric: str
    matchers: tuple[Matcher, ...]


@attrs.frozen
class Names:
    selectors: tuple[Selector, ...]
    grouped: frozenset[str]
    """Labels in `by (...)`, `on (...)` and the like."""


def names(expression: str) -> Names:
    """Take an expression apart. ValueError names what is no part of PromQL as it is used here."""
    tokens = list(_tokens(expression))
    selectors: list[Selector] = []
    grouped: set[str] = set()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        at += 1
        follows = tokens[at][1] if at < len(tokens) else ""
        if kind != "name" or text in _WORDS:
            continue
        if text in _GROUPING:
            end = tokens.index(("mark", ")"), at)
            grouped |= {word for sort, word in tokens[at:end] if sort == "name"}
            at = end + 1
        elif text in _FUNCTIONS:
            if follows != "(" and follows not in _GROUPING:
                raise ValueError(f"{text} is not called in {expression!r}")
        elif follows == "{":
            end = tokens.index(("mark", "}"), at)
            selectors.append(Selector(text, tuple(_matchers(tokens[at + 1 : end]))))
            at = end + 1
        elif follows == "(":
            raise ValueError(f"{text} is no function that is known here: {expression!r}")
        else:
            selectors.append(Selector(text, ()))
    return Names(tuple(selectors), frozenset(grouped))


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise ValueError(f"{expression[at : at + 10]!r} in {expression!r}")
        at = found.end()
        if found.lastgroup != "space":
            yield str(found.lastgroup), found.group()


def _matchers(tokens: list[tuple[str, str]]) -> Iterator[Matcher]:
    parts = [token for token in tokens if token != ("mark", ",")]
    for label, op, value in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        yield Matcher(label[1], op[1], value[1].strip('"'))


def exposed() -> dict[str, dict[str, tuple[str, ...]]]:
    """Every name that a scrape has, with its labels and their values; () where any will do."""
    known: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in [*PROCESS, "up"]}
    for metric in CATALOGUE:
        labels = {label.name: label.values for label in metric.labels}
        if "code" in labels:
            labels["code"] = CODE_LABELS
        if metric.kind is Kind.HISTOGRAM:
            known[metric.full_name + "_bucket"] = labels | {"le": ()}
            known[metric.full_name + "_sum"] = known[metric.full_name + "_count"] = labels
        else:
            known[metric.full_name] = labels
    return known


def complaints(
    expression: str, known: Mapping[str, Mapping[str, tuple[str, ...]]], *, free: str = "$"
) -> list[str]:
    """What the expression names that is not there; values that begin with `free` are not judged."""
    found = names(expression)
    out: list[str] = []
    labels = set(TARGET)
    if not found.selectors and "time" not in expression:
        out.append(f"it selects nothing: {expression}")
    for selector in found.selectors:
        if selector.metric not in known:
            out.append(f"there is no metric {selector.metric}")
            continue
        own = known[selector.metric]
        labels |= own.keys()
        for matcher in selector.matchers:
            if matcher.label not in own.keys() | TARGET:
                out.append(f"{selector.metric} has no label {matcher.label}")
            elif (values := own.get(matcher.label, ())) and not matcher.value.startswith(free):
                out += _empty_matches(selector.metric, matcher, values)
    out += [f"no metric in it has a label {label}" for label in sorted(found.grouped - labels)]
    return out


def _empty_matches(metric: str, matcher: Matcher, values: tuple[str, ...]) -> Iterator[str]:
    """A matcher that names a value which is not there, alone or as one of several."""
    regular = matcher.op in ("=~", "!~")
    for named in matcher.value.split("|") if regular else [matcher.value]:
        if not any(Matcher(matcher.label, "=~", named).admits(value) for value in values):
            yield f"{metric} never has {matcher.label}={named}"
