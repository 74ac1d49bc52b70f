"""The exposure curve and the hiding rate against curves whose parameters are known."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.optimize import curve_fit

from mpibench.analysis.exposure import Exposure, Point, exposure, hiding_rate
from mpibench.analysis.statistics import Interval

MS = 1e-3
N = Interval(1.0 * MS, 0.99 * MS, 1.01 * MS)
COMPUTES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)  # ms


def around(value: float, half: float) -> Interval:
    return Interval(value, value - half, value + half)


def curve(
    efficiency: float, floor: float, computes: Sequence[float] = COMPUTES, half: float = 0.005, at_0: float = 1.0
) -> list[Point]:
    """E(C) = max(floor, 1 ms - eta C), exact, with intervals; all in ms."""
    return [Point(c * MS, around(max(floor, at_0 - efficiency * c) * MS, half * MS)) for c in computes]


def fit(points: Sequence[Point], allreduce: float = 1.0) -> Exposure:
    return exposure(points, N, allreduce * MS)


@pytest.mark.parametrize("efficiency", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("floor", [0.0, 0.03, 0.2])
def test_a_curve_gives_its_own_parameters_back(efficiency: float, floor: float) -> None:
    found = fit(curve(efficiency, floor))
    assert found.efficiency.median == pytest.approx(efficiency, abs=0.01)
    assert found.efficiency.lo <= efficiency <= found.efficiency.hi
    if 1 - efficiency * 3.2 < floor - 0.01:  # reached
        assert found.floor.median == pytest.approx(floor * MS, abs=0.01 * MS)
    hiding = (1 - 0.05) / efficiency * MS
    if floor < 0.05:
        assert found.hiding_compute.median == pytest.approx(hiding, rel=0.02)
        assert found.hiding_compute.lo <= hiding <= found.hiding_compute.hi
    elif floor > 1 - efficiency * 3.2 + 0.01:
        assert math.isnan(found.hiding_compute.median)
        assert "no compute hides it" in found.note
    else:
        assert "beyond the longest compute" in found.note


def test_no_progress_is_an_efficiency_of_nothing_and_no_compute_hides_it() -> None:
    found = fit(curve(0.0, 0.0))
    assert found.efficiency.median == pytest.approx(0.0, abs=1e-6)
    assert found.efficiency.lo <= 0 <= found.efficiency.hi
    assert math.isnan(found.hiding_compute.median)
    assert math.isnan(found.floor.median)
    assert "may be 0" in found.note


def test_noise_is_in_the_interval_as_often_as_promised() -> None:
    rng = np.random.default_rng(3)
    held, runs = 0, 300
    for _ in range(runs):
        noisy = [
            Point(c, around(e.median + rng.normal(0, 0.01 * MS), 1.96 * 0.01 * MS)) for c, e in curve(0.5, 0.0)[:4]
        ]
        found = fit(noisy)
        held += found.efficiency.lo <= 0.5 <= found.efficiency.hi
    assert held / runs >= 0.93


def test_the_slope_is_scipys() -> None:
    rng = np.random.default_rng(4)
    computes = np.array([0.1, 0.2, 0.3, 0.5, 0.6])
    exposed, errors = 1 - 0.7 * computes + rng.normal(0, 0.02, 5), rng.uniform(0.01, 0.04, 5)
    points = [
        Point(c * MS, around(e * MS, 1.959964 * s * MS)) for c, e, s in zip(computes, exposed, errors, strict=True)
    ]
    wanted, covariance = curve_fit(lambda c, a, b: a - b * c, computes, exposed, sigma=errors, absolute_sigma=True)
    found = fit(points)
    assert found.efficiency.median == pytest.approx(wanted[1], rel=1e-6)
    half = (found.efficiency.hi - found.efficiency.lo) / 2
    chi2 = (((exposed - wanted[0] + wanted[1] * computes) / errors) ** 2).sum() / 3
    assert half == pytest.approx(1.959964 * math.sqrt(covariance[1, 1] * max(1, chi2)), rel=1e-4)


def test_one_compute_has_its_slope_from_no_compute() -> None:
    found = fit(curve(0.5, 0.0, computes=(0.8,)))
    assert found.efficiency.median == pytest.approx(0.5)
    assert found.hiding_compute.median == pytest.approx(1.9 * MS)
    assert "one compute" in found.note
    assert "beyond the longest compute" in found.note


def test_computes_that_all_outlast_the_collective_show_a_floor_and_no_slope() -> None:
    found = fit(curve(1.0, 0.02, computes=(2.0, 4.0, 8.0)))
    assert found.floor.median == pytest.approx(0.02 * MS)
    assert math.isnan(found.efficiency.median)
    assert "shorter ones" in found.note


def test_one_compute_longer_than_the_collective_shows_no_slope() -> None:
    found = fit([Point(2 * MS, around(0.4 * MS, 0.005 * MS))])
    assert math.isnan(found.efficiency.median), "a slope of 0.3, or a floor reached long before: who can tell"
    assert math.isnan(found.hiding_compute.median)
    assert found.floor.median == pytest.approx(0.4 * MS)
    assert "hidden by the shortest" not in found.note
    assert "hidden by the shortest" in fit([Point(2 * MS, around(0.01 * MS, 0.005 * MS))]).note
    nothing = fit([Point(2 * MS, around(1.0 * MS, 0.02 * MS))])
    assert nothing.efficiency.lo <= 0 <= nothing.efficiency.hi, "nothing is hidden: that is a slope of 0"


def test_the_narrowest_point_does_not_bend_the_curve() -> None:
    points = curve(0.8, 0.05)
    points[-1] = Point(points[-1].compute_s, around(0.08 * MS, 0.0001 * MS))  # a floor that rises a little, exactly
    found = fit(points)
    assert found.efficiency.median == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("points", [[], [Point(MS, Interval(MS, math.nan, math.nan))]])
def test_without_intervals_there_is_no_fit(points: list[Point]) -> None:
    assert fit(points) == Exposure(note="no interval to fit")


def test_points_of_one_compute_are_one_point() -> None:
    assert fit(curve(0.5, 0.0, computes=(0.8, 0.8))).efficiency.median == pytest.approx(0.5)


def test_rate_and_latency_are_those_of_the_line() -> None:
    sizes = [(n, around(30e-6 + n / 2e9, 1e-6)) for n in (1 << 16, 1 << 18, 1 << 20, 1 << 22)]
    found = hiding_rate([*sizes, (1 << 24, Interval(math.nan, math.nan, math.nan))])
    assert found.rate.median == pytest.approx(2e9)
    assert found.latency.median == pytest.approx(30e-6)
    assert found.rate.lo < 2e9 < found.rate.hi
    assert found.latency.lo < 30e-6 < found.latency.hi


def test_no_rate_without_growth_or_with_too_few_sizes() -> None:
    flat = [(n, around(1e-3, 1e-4)) for n in (1024, 2048, 4096)]
    assert math.isnan(hiding_rate(flat).rate.median)
    assert math.isnan(hiding_rate([(1 << 20, around(1e-3, 1e-5)), (1 << 22, around(4e-3, 1e-5))]).rate.median)
