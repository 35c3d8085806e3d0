"""Whether points suffice for a fit, and whether the fit is good enough to be used."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs
import numpy as np

from narwhal.profiles.regression import left_out_errors, relative_errors, relative_fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.profiles.regression import Array


class Refusal(StrEnum):
    """Why there is no fit."""

    TOO_FEW_POINTS = "too_few_points"
    DEPENDENT = "dependent"
    """The points do not tell the coefficients apart."""
    NO_KV_COST = "no_kv_cost"
    """Resident tokens seem to cost nothing."""
    MEAN_ERROR = "mean_error"
    WORST_ERROR = "worst_error"


@attrs.frozen
class Refused:
    """There is no fit. `text` names the curve, and says what was found and what to do."""

    reason: Refusal
    text: str


@attrs.frozen
class Point:
    """A measured point, in words, and how far the fit is off there, as a fraction."""

    place: str
    error: float


@attrs.frozen(kw_only=True)
class FitLimits:
    """The greatest errors on the samples of a fit with which it is used, as fractions."""

    mean: float = 0.20
    worst: float = 0.50


@attrs.frozen(kw_only=True)
class Task:
    """A curve to be fitted."""

    curve: str
    rows: Sequence[tuple[Sequence[float], float, str]]
    """Of each sample: what the coefficients are multiplied with, what was measured, and where."""
    advice: str
    """What to measure if the samples do not suffice."""


@attrs.frozen(kw_only=True)
class Solution:
    """The coefficients of a curve, and the errors of it."""

    coefficients: tuple[float, ...]
    fit_mape: float
    cv_mape: float
    worst: Point


def solve(task: Task, limits: FitLimits) -> Solution | Refused:
    """Fit `task.rows`, or say why not. Their order plays no part.

    There have to be more points than coefficients, so that each can be left out.
    """
    rows = sorted(task.rows, key=lambda row: (tuple(row[0]), row[1]))
    places = [place for _, _, place in rows]
    needed = len(rows[0][0]) + 1 if rows else 2
    if len(set(places)) < needed:
        text = f"{len(set(places))} different points are too few"
        return _refused(task, Refusal.TOO_FEW_POINTS, f"{text}: {task.advice}")
    columns = np.array([factors for factors, _, _ in rows], dtype=np.float64)
    measured = np.array([value for _, value, _ in rows], dtype=np.float64)
    coefficients = relative_fit(columns, measured)
    if coefficients is None:
        text = "the points do not tell its coefficients apart"
        return _refused(task, Refusal.DEPENDENT, f"{text}: {task.advice}")
    left_out = left_out_errors(columns, measured, places)
    if isinstance(left_out, int):
        text = f"only the point at {places[left_out]} tells its coefficients apart"
        return _refused(task, Refusal.DEPENDENT, f"{text}: {task.advice}")
    errors = relative_errors(columns, measured, coefficients)
    solution = Solution(
        coefficients=tuple(coefficients.tolist()),
        fit_mape=float(errors.mean()),
        cv_mape=float(left_out.mean()),
        worst=_worst(errors, places),
    )
    return _too_far_off(task, solution, limits) or solution


def _worst(errors: Array, places: Sequence[str]) -> Point:
    worst = int(errors.argmax())
    return Point(places[worst], float(errors[worst]))


def _too_far_off(task: Task, solution: Solution, limits: FitLimits) -> Refused | None:
    mean, worst = solution.fit_mape, solution.worst
    again = "measure again on an engine with nothing else to do"
    if mean > limits.mean:
        text = f"it is off by {mean:.0%} on average, and {limits.mean:.0%} is the limit"
        return _refused(task, Refusal.MEAN_ERROR, f"{text}: {again}")
    if worst.error > limits.worst:
        text = (
            f"it is off by {worst.error:.0%} at {worst.place}, and {limits.worst:.0%} is the limit"
        )
        return _refused(task, Refusal.WORST_ERROR, f"{text}: {again}")
    return None


def _refused(task: Task, reason: Refusal, text: str) -> Refused:
    return Refused(reason, f"{task.curve}: {text}")
