"""mpibench.analysis.student against scipy."""

import math

import pytest
from scipy import special, stats

from mpibench.analysis.student import incomplete_beta, quantile, upper_tail

DEGREES = [0.5, 1, 1.7, 2, 4, 8, 30, 200, 5e3, 1e5, math.inf]


@pytest.mark.parametrize("df", DEGREES)
@pytest.mark.parametrize("t", [0, 0.1, 1, 2, 5, 20])
def test_tails_are_those_of_scipy_however_small(df: float, t: float) -> None:
    assert upper_tail(t, df) == pytest.approx(stats.t.sf(t, df), rel=1e-9, abs=0)
    assert upper_tail(-t, df) == pytest.approx(stats.t.sf(-t, df), rel=1e-9, abs=0)


@pytest.mark.parametrize("df", DEGREES)
@pytest.mark.parametrize("p", [1e-6, 0.001, 0.025, 0.4, 0.5, 0.6, 0.8, 0.975, 0.999, 1 - 1e-6])
def test_quantiles_are_those_of_scipy(df: float, p: float) -> None:
    assert quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-7, abs=1e-9)


def test_where_the_normal_distribution_stands_in_the_step_is_small() -> None:
    assert quantile(0.975, 2e7) == pytest.approx(stats.t.ppf(0.975, 2e7), rel=1e-6)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (3, 0.5), (0.5, 40), (7, 2), (300, 0.5)])
@pytest.mark.parametrize("x", [0, 1e-12, 0.2, 0.5, 0.9, 1 - 1e-9, 1])
def test_the_incomplete_beta_function_is_that_of_scipy(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x, 1 - x) == pytest.approx(special.betainc(a, b, x), rel=1e-9)


@pytest.mark.parametrize("p", [0, 1, -0.1, math.nan])
def test_a_quantile_is_of_a_probability(p: float) -> None:
    with pytest.raises(ValueError, match="p must be in"):
        quantile(p, 3)


@pytest.mark.parametrize("df", [0, -1, math.nan])
def test_there_are_degrees_of_freedom(df: float) -> None:
    with pytest.raises(ValueError, match="degrees of freedom"):
        upper_tail(1, df)
