"""Least squares on relative errors, with coefficients that are not negative.

What is minimised is the sum of `(predicted / measured - 1)^2`. A profile is judged by its mean
absolute percentage error, and this is the nearest to it that has one exact solution; without the
weights, the longest prompts would decide alone, and short ones could be wrong by any factor.

There are three coefficients at most. The solution is the ordinary one on some of the columns, so
each choice of columns is tried and the best one without a negative coefficient is taken (Lawson
and Hanson, Solving Least Squares Problems, chapter 23).
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# Least singular value, relative to the greatest, of columns of norm one. At this, a clock that is
# off by a millionth changes a coefficient by all of it.
RANK_TOLERANCE = 1e-6
# What rounding makes of a sum of squares that is zero. A column has to explain more to be used.
_ROUNDING = 1e-26


def relative_fit(columns: Array, measured: Array) -> Array | None:
    """The coefficients, one for each column and none negative, with the least relative error.

    A coefficient that explains nothing is exactly zero. `None` if the columns do not tell all
    coefficients apart, be there too few rows or columns that depend on each other.
    """
    weighted = columns / measured[:, np.newaxis]
    lengths = np.linalg.norm(weighted, axis=0)
    if len(measured) < len(lengths) or not lengths.all():
        return None
    weighted = weighted / lengths
    singular = np.linalg.svd(weighted, compute_uv=False)
    if singular[-1] < RANK_TOLERANCE * singular[0]:
        return None
    best, least = np.zeros(len(lengths)), float(len(measured))
    for chosen in _choices(len(lengths)):
        part = np.linalg.lstsq(weighted[:, chosen], np.ones(len(measured)))[0]
        squares = float(np.sum((weighted[:, chosen] @ part - 1.0) ** 2))
        if (part >= 0.0).all() and squares < least - _ROUNDING * len(measured):
            best, least = np.zeros(len(lengths)), squares
            best[chosen] = part
    coefficients: Array = best / lengths + 0.0  # and no zero has a sign
    return coefficients


def relative_errors(columns: Array, measured: Array, coefficients: Array) -> Array:
    """`|predicted - measured| / measured` of each row."""
    return np.abs(columns @ coefficients - measured) / measured


def left_out_errors(columns: Array, measured: Array, places: Sequence[Hashable]) -> Array | int:
    """The error of each row by the fit to all rows of other places.

    Repeated measurements of one place are left out together: with one of its twins in the fit, a
    row is not left out at all. If the rows of other places do not suffice for a fit, the answer
    is the first such row's index.
    """
    errors = np.zeros(len(measured))
    for place in dict.fromkeys(places):
        out = np.array([each == place for each in places])
        coefficients = relative_fit(columns[~out], measured[~out])
        if coefficients is None:
            return places.index(place)
        errors[out] = relative_errors(columns[out], measured[out], coefficients)
    return errors


def _choices(columns: int) -> list[list[int]]:
    """Every choice of columns but the empty one, small ones first."""
    sizes = range(1, columns + 1)
    return [list(choice) for size in sizes for choice in combinations(range(columns), size)]
