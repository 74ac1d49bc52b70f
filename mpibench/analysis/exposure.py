"""What is left exposed under more and more compute, and how much compute hides a message.

The *exposure curve* of a message size, E(C) = max(floor, E0 - eta C): under the compute C the step still pays E
of the collective. eta is the *progress efficiency* (1: the transfer advances under the compute as fast as
alone; 0: not at all), the *floor* what no amount of compute hides. Over message sizes n, the compute
that hides them grows as t_h + n / R_h: the *hiding latency* and the *hiding rate*. Seconds and bytes.

Both are fitted by weighted least squares to medians, the weights from their intervals. Where the
points scatter more than their intervals say, the intervals of the fit widen by as much.
Source of the formulas: any text on least squares, such as W. H. Press et al., Numerical Recipes, 15.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan, nan, sqrt
from typing import Any, NamedTuple

import numpy as np

from mpibench.analysis.crossover import HIDDEN_SHARE
from mpibench.analysis.statistics import Interval

_Z = 1.959964  # of the 95 % interval of a normal distribution
_BEND = 0.05  # of N: real curves differ so much from two straight lines
_NONE = Interval(nan, nan, nan)


class Point(NamedTuple):
    """One compute at one message size, seconds."""

    compute_s: float
    exposed: Interval  # T - C


@dataclass(frozen=True)
class Exposure:
    """The exposure curve of a message size, and the compute that would hide it."""

    hiding_compute: Interval = _NONE  # seconds; NaN where none is known
    efficiency: Interval = _NONE  # eta
    floor: Interval = _NONE  # seconds; NaN where the longest compute does not reach it
    note: str = ""


@dataclass(frozen=True)
class HidingRate:
    """How the compute that hides a message grows with it."""

    rate: Interval = _NONE  # bytes hidden per second of compute
    latency: Interval = _NONE  # seconds of compute before the first byte is hidden


class _Line(NamedTuple):
    """y = at_0 + slope x with the covariance of both, and how badly it fits."""

    at_0: float
    slope: float
    covariance: Any  # (2, 2)
    chi2: float  # weighted sum of squared residuals
    freedom: int  # points - parameters


def exposure(points: Sequence[Point], nonblocking: Interval, allreduce_s: float) -> Exposure:
    """Fit the exposure curve of a message size.

    Args:
        points: any number of different computes; those without an interval are left out.
        nonblocking: N, the exposed time without compute; stands in for the slope's second point.
        allreduce_s: B; a message is hidden when at most 5 % of it stay exposed.
    """
    usable = sorted({point.compute_s: point for point in points if not isnan(point.exposed.lo)}.values())
    if not usable or isnan(nonblocking.lo):
        return Exposure(note="no interval to fit")
    k = _slope_points(usable, nonblocking)
    line, floor = _slope(usable[:k], nonblocking), _mean([point.exposed for point in usable[k:]])[0]
    limit_s = HIDDEN_SHARE * allreduce_s
    if line is None:
        note = "every compute outlasts the collective: shorter ones would show the slope"
        return Exposure(floor=floor, note=note + ("; hidden by the shortest already" if floor.hi <= limit_s else ""))
    notes = [] if len(usable) > 1 else ["one compute: the slope is from no compute (N) to it"]
    efficiency = _around(-line.slope, sqrt(line.covariance[1, 1]))
    hiding = _NONE
    if efficiency.lo <= 0:
        notes.append("no compute is sure to hide it: the efficiency may be 0")
    elif floor.lo > limit_s:
        notes.append("no compute hides it: the floor is above 5 % of B")
    else:
        hiding = _hiding(line, limit_s)
        if hiding.median > usable[-1].compute_s:
            notes.append("beyond the longest compute measured")
    return Exposure(hiding, efficiency, floor, "; ".join(notes))


def _slope_points(points: Sequence[Point], start: Interval) -> int:
    """How many of the points, from the shortest compute on, lie on the slope; the others are on the floor.

    Chosen by Akaike's criterion among all that make a falling line and a floor below it. For the
    choice every error is at least 5 % of N: real curves bend, and the narrowest point must not decide alone.
    """
    some_hidden = points[0].exposed.hi < start.lo
    least = _BEND * start.median * _Z
    blunt = [Point(c, Interval(e.median, min(e.lo, e.median - least), max(e.hi, e.median + least))) for c, e in points]
    best = (inf, -len(points))  # of equals the one with most points on the slope
    for k in range(len(points) + 1):
        floor, chi2 = _mean([point.exposed for point in blunt[k:]])
        line = _slope(blunt[:k], start)
        if line is None:  # all on the floor: only if that is surely below what no compute leaves exposed
            possible = some_hidden
        elif k == 1 and some_hidden and points[0].compute_s > start.median:
            possible = False  # the collective may be over long before the compute is: that is no slope
        else:
            chi2 += line.chi2
            possible = k == len(points) or _meet(line, blunt[k - 1], blunt[k], floor.median)
        if possible:
            best = min(best, (round(chi2 + 2 * (min(k, 2) + (k < len(points))), 6), -k))
    return -best[1]


def _slope(points: Sequence[Point], start: Interval) -> _Line | None:
    """The line through the points on the slope, through N at no compute if there is but one; None without any."""
    if not points:
        return None
    computes, exposed = [point.compute_s for point in points], [point.exposed for point in points]
    return _line(computes, exposed) if len(set(computes)) > 1 else _line([0.0, *computes], [start, *exposed])


def _meet(line: _Line, last: Point, first: Point, floor_s: float) -> bool:
    """Whether a line meets a floor between the last point on the line and the first on the floor, give or take."""
    tolerance = 2 * _sigma(first.exposed)
    at_last, at_first = (line.at_0 + line.slope * point.compute_s for point in (last, first))
    return at_last >= floor_s - tolerance and at_first <= floor_s + tolerance


def hiding_rate(sizes: Sequence[tuple[int, Interval]]) -> HidingRate:
    """Fit hiding compute = t_h + nbytes / R_h.

    Args:
        sizes: message sizes in bytes with the compute that hides each, seconds; NaN is left out.

    Returns:
        NaN with fewer than three sizes, or where the compute does not surely grow with the size.
    """
    known = [(nbytes, compute) for nbytes, compute in sizes if not isnan(compute.lo)]
    if len(known) < 3:
        return HidingRate()
    line = _line([float(nbytes) for nbytes, _ in known], [compute for _, compute in known])
    slope = _around(line.slope, sqrt(line.covariance[1, 1]))
    if slope.lo <= 0:
        return HidingRate()
    rate = Interval(1 / slope.median, 1 / slope.hi, 1 / slope.lo)
    return HidingRate(rate, _around(line.at_0, sqrt(line.covariance[0, 0])))


def _hiding(line: _Line, limit_s: float) -> Interval:
    """Where the line falls to the limit; its error from the covariance of the line's two parameters."""
    above = line.at_0 - limit_s
    where = -above / line.slope
    gradient = np.array([-1 / line.slope, above / line.slope**2])
    return _around(where, sqrt(float(gradient @ line.covariance @ gradient)))


def _line(x: Sequence[float], y: Sequence[Interval]) -> _Line:
    """Weighted least squares of a straight line, for at least two different x."""
    design = np.stack([np.ones(len(x)), np.array(x)], axis=1)
    sigma = np.array([_sigma(interval) for interval in y])
    values = np.array([interval.median for interval in y])
    scale = np.array([1.0, max(x)])  # columns of like size
    weighted = design / scale / sigma[:, None]
    covariance = np.linalg.inv(weighted.T @ weighted)
    at_0, slope = covariance @ weighted.T @ (values / sigma)
    covariance = covariance / np.outer(scale, scale)
    chi2 = float((((values - design @ np.array([at_0, slope / scale[1]])) / sigma) ** 2).sum())
    freedom = len(x) - 2
    return _Line(float(at_0), float(slope / scale[1]), covariance * _scatter(chi2, freedom), chi2, freedom)


def _mean(values: Sequence[Interval]) -> tuple[Interval, float]:
    """The weighted mean and its weighted sum of squared residuals; NaN and 0 without values."""
    if not values:
        return _NONE, 0.0
    weights = np.array([_sigma(value) ** -2 for value in values])
    medians = np.array([value.median for value in values])
    mean = float((weights * medians).sum() / weights.sum())
    chi2 = float((weights * (medians - mean) ** 2).sum())
    return _around(mean, sqrt(_scatter(chi2, len(values) - 1) / float(weights.sum()))), chi2


def _scatter(chi2: float, freedom: int) -> float:
    """By how much variances grow where points scatter more than their intervals say."""
    return max(1.0, chi2 / freedom) if freedom > 0 else 1.0


def _sigma(interval: Interval) -> float:
    """The standard error that belongs to an interval; never 0, for a clock has a resolution of 1 ns."""
    return max((interval.hi - interval.lo) / 2 / _Z, 1e-9)


def _around(value: float, error: float) -> Interval:
    return Interval(value, value - _Z * error, value + _Z * error) if error < inf else _NONE
