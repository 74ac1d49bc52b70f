"""How often the 95 % intervals hold the true median, by simulation under the real rule of stopping."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from mpibench.analysis.statistics import series_interval
from mpibench.engine.stopping import CAUTION, CONFIDENCE, GO_ON, decide
from mpibench.units import IterationRange

VISIT, RUNS, MOST = 12, 600, 1000
Draw = Callable[[np.random.Generator], np.ndarray]


def normal(rng: np.random.Generator) -> np.ndarray:
    return 1 + 0.1 * rng.standard_normal(MOST)


def log_normal(rng: np.random.Generator) -> np.ndarray:
    return np.exp(0.3 * rng.standard_normal(MOST))


def bimodal(rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(MOST) < 0.4, 1.3, 1.0) + 0.03 * rng.standard_normal(MOST)


def autoregressive(rng: np.random.Generator) -> np.ndarray:
    return 1 + 0.1 * lfilter([np.sqrt(0.75)], [1.0, -0.5], rng.standard_normal(MOST + 100))[100:]


def two_states(rng: np.random.Generator) -> np.ndarray:
    """A fast state and one 20 % slower, each kept for about three iterations."""
    changes = rng.random(MOST) < 0.3
    slow = (np.cumsum(changes) + rng.integers(2)) % 2
    return 1 + 0.2 * slow + 0.05 * rng.standard_normal(MOST)


def mixture_median(second: float, share: float, sd: float) -> float:
    """The median of N(1, sd) and N(second, sd), the second with this share."""
    grid = np.linspace(0.5, 2, 200_001)
    below = (1 - share) * stats.norm.cdf(grid, 1, sd) + share * stats.norm.cdf(grid, second, sd)
    return float(np.interp(0.5, below, grid))


def run(series: np.ndarray, precision: float) -> int:
    """The iterations at which the rule stops."""
    visits = 0
    while True:
        visits += 1
        n = min(visits * VISIT, MOST)
        median, lo, hi = series_interval(series[:n], CONFIDENCE, CAUTION)
        worst = np.inf if np.isnan(lo) else (hi - lo) / 2 / median / precision
        if decide(worst, n, visits, IterationRange(50, MOST), VISIT) != GO_ON:
            return n


@pytest.mark.parametrize("precision", [0.05, 0.02])
@pytest.mark.parametrize(
    ("draw", "median", "least"),
    [
        (normal, 1.0, 0.93),
        (log_normal, 1.0, 0.93),
        (bimodal, mixture_median(1.3, 0.4, 0.03), 0.93),
        (autoregressive, 1.0, 0.88),
        (two_states, 1.1, 0.88),
    ],
)
def test_intervals_hold_the_true_median_as_often_as_promised(
    draw: Draw, median: float, least: float, precision: float
) -> None:
    rng = np.random.default_rng(20)
    held = 0
    for _ in range(RUNS):
        series = draw(rng)
        interval = series_interval(series[: run(series, precision)])
        held += interval.lo <= median <= interval.hi
    assert held / RUNS >= least


def test_the_looks_at_99_percent_are_needed() -> None:
    """Stopping at the first visit whose 95 % interval pleases holds the median too rarely: the test above can fail."""
    rng = np.random.default_rng(21)
    held = 0
    for _ in range(RUNS):
        series = two_states(rng)
        for n in range(24, MOST, 2):
            interval = series_interval(series[:n])
            if interval.hi - interval.lo <= 0.1:
                break
        held += interval.lo <= 1.1 <= interval.hi
    assert held / RUNS < 0.88
