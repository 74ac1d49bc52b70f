"""Medians with exact intervals, effective counts, outliers and tests, over plain arrays of numbers.

Knows nothing of phases, units or files: a value is in whatever unit the caller keeps, and a
median and its bounds come back in the same unit. NaN stands for "not measured" and is never
averaged away.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_LEAST_CORRELATION = 0.05  # below it a correlation moves tau by less than the precision of tau itself
_ROUNDING = 1e-9  # of the transform: a correlation that equals the limit is above it
_FENCE = 1.5  # Tukey's, in interquartile ranges


class Interval(NamedTuple):
    """A median and the bounds of its confidence interval, in the unit of the values."""

    median: float  # NaN without values, or with a NaN among them
    lo: float  # lower bound; NaN where the values are too few for an interval
    hi: float  # upper bound; NaN where the values are too few for an interval


@lru_cache(maxsize=4096)
def interval_ranks(n: int, confidence: float = 0.95) -> tuple[int, int] | None:
    """Ranks of the two order statistics that bound the median of a continuous distribution.

    The largest k with 2 P(Bin(n, 1/2) <= k - 1) <= 1 - confidence gives (k, n + 1 - k). That is
    the same as P(k <= Bin(n, 1/2) <= n - k) >= confidence, which is summed from the middle
    outwards, about sqrt(n) terms, in integers: exact for every n.

    Source: H. A. David, H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1.

    Args:
        n: number of independent values.
        confidence: least probability that the interval holds the median, in (0, 1).

    Returns:
        1-based ranks, the lower first; None if n is too small (below 6 at 0.95).

    Raises:
        ValueError: if n is negative or confidence is not in (0, 1).
    """
    if n < 0 or not 0 < confidence < 1:
        raise ValueError(f"n must be at least 0 and confidence in (0, 1), not {n} and {confidence}")
    exact = Fraction(confidence)
    wanted = -(-exact.numerator * (1 << n) // exact.denominator)  # rounded up: sums are whole numbers
    k = n // 2
    term = math.comb(n, k)
    held = term if 2 * k == n else 2 * term
    while held < wanted and k > 0:
        term = term * k // (n - k + 1)
        k -= 1
        held += 2 * term
    return (k, n + 1 - k) if k > 0 else None


def median_interval(values: ArrayLike, confidence: float = 0.95, effective: float | None = None) -> Interval:
    """The median of `values` with the order-statistic interval of `interval_ranks`.

    Nothing is assumed of their distribution. Where they depend on each other, the ranks move away
    from the middle by the factor sqrt(n / effective): the variance of the number of values below
    the median is greater by that factor's square.

    Source for the variance: P. K. Sen, Asymptotic normality of sample quantiles for m-dependent
    processes, Annals of Mathematical Statistics 39, 1968.

    Args:
        values: shape (n,), any unit.
        confidence: least probability that the interval holds the median, in (0, 1).
        effective: how many independent values tell as much, in (0, n]; None if these are independent.

    Returns:
        Without bounds where the effective values are too few for any (below about 6 at 0.95).

    Raises:
        ValueError: if confidence is not in (0, 1).
    """
    ordered = np.sort(_series(values))
    n = len(ordered)
    ranks = interval_ranks(n, confidence)
    if not n or np.isnan(ordered[-1]):
        return Interval(math.nan, math.nan, math.nan)
    median = float(np.median(ordered))
    if ranks is None:
        return Interval(median, math.nan, math.nan)
    middle = (n + 1) / 2
    lower = math.floor(middle - (middle - ranks[0]) * math.sqrt(n / (effective or n)))
    if lower < 1:
        return Interval(median, math.nan, math.nan)
    return Interval(median, float(ordered[lower - 1]), float(ordered[n - lower]))


def series_interval(values: ArrayLike, confidence: float = 0.95, caution: float = 1.0) -> Interval:
    """`median_interval` of values in the order they were measured, with their `effective_count` and this caution."""
    return median_interval(values, confidence, effective_count(values, caution))


def groups_apart(groups: Sequence[ArrayLike], confidence: float = 0.99) -> float:
    """How far the medians of two groups are surely apart: the gap between the two intervals that are farthest apart.

    Groups too small for an interval say nothing.

    Args:
        groups: arrays of any unit, each of independent values.
        confidence: of each group's own interval, in (0, 1).

    Returns:
        The gap in the unit of the values; 0 if all intervals meet.
    """
    intervals = [median_interval(group, confidence) for group in groups]
    bounded = [interval for interval in intervals if not math.isnan(interval.lo)]
    if not bounded:
        return 0.0
    return max(0.0, max(interval.lo for interval in bounded) - min(interval.hi for interval in bounded))


def effective_count(values: ArrayLike, caution: float = 0.0) -> float:
    """How many independent values tell as much about the median as these in a row do: n / tau.

    tau = 1 + 2 (r_1 + r_2 + ...), over the autocorrelations r_k of 1{x > median}, which is what
    the rank of the median counts: an outlier weighs as any value. The sum ends before the first
    r_k below max(0.05, 1 / sqrt(n)), where noise begins, and tau is at least 1: values that
    alternate are not counted as more than n.

    Where no value exceeds the median (a constant series, or a clock so coarse that the upper half
    are all one value), the indicator never changes and no dependence can be seen: n. The
    interval is then as narrow as the clock can tell, whatever the count.

    Source: A. Sokal, Monte Carlo methods in statistical mechanics, 1996, section 3 (integrated
    autocorrelation time, self-consistent window; standard error tau sqrt(2 (2 M + 1) / n) with M
    correlations in the sum).

    Args:
        values: shape (n,), in the order they were measured, any unit.
        caution: standard errors by which tau is taken to be greater than estimated, where any dependence is seen.

    Returns:
        A number in (0, n]; NaN if a value is NaN.
    """
    series = _series(values)
    n = len(series)
    if np.isnan(series).any():
        return math.nan
    if n < 2:
        return float(n)
    above = (series > np.median(series)).astype(np.float64)
    above -= above.mean()
    if not above.any():
        return float(n)
    spectrum = np.fft.rfft(above, 1 << (2 * n - 1).bit_length())  # padded: no wrap-around
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[:n]
    correlation = covariance[1:] / covariance[0]
    small = correlation < max(_LEAST_CORRELATION, 1 / math.sqrt(n)) - _ROUNDING
    window = int(np.argmax(small)) if small.any() else n - 1
    tau = 1 + 2 * correlation[:window].sum()
    if window:
        tau *= 1 + caution * math.sqrt(2 * (2 * window + 1) / n)
    return float(n / tau)


def outlier_count(values: ArrayLike) -> int:
    """How many values lie beyond Tukey's fences: 1.5 interquartile ranges outside the quartiles.

    Source: J. W. Tukey, Exploratory Data Analysis, 1977.

    Args:
        values: shape (n,), any unit; 0 without values or with a NaN among them.
    """
    series = _series(values)
    if not len(series):
        return 0
    first, third = np.percentile(series, (25, 75))
    reach = _FENCE * (third - first)
    return int(np.count_nonzero((series < first - reach) | (series > third + reach)))


def sign_test_below(values: ArrayLike, effective: float | None = None) -> float:
    """One-sided p-value of the sign test that the median of `values` is below 0.

    The probability that a fair coin shows heads at least as often as values are below 0. It is
    tossed once for each value, or for each effective value where they depend on each other: the
    share of heads is kept, rounded against the claim. A value of exactly 0, and NaN, counts
    against the claim. Exact for independent values.

    Args:
        values: shape (n,), any unit.
        effective: how many independent values tell as much, in (0, n]; None if these are independent.

    Returns:
        p in [0, 1] (0 only where it is below the smallest double); 1.0 without values.
    """
    series = _series(values)
    n = len(series)
    tosses = n if effective is None else math.floor(effective)
    if not tosses:
        return 1.0
    below = int(np.count_nonzero(series < 0)) * tosses // n
    return _fair_tail(tosses, tosses - below)


def holm(p_values: Sequence[float], alpha: float = 0.05) -> list[bool]:
    """Which hypotheses Holm's step-down procedure rejects, at family-wise error rate `alpha`.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian
    Journal of Statistics 6, 1979.

    Args:
        p_values: one per hypothesis, each in [0, 1].
        alpha: probability of one or more false rejections, in (0, 1).

    Returns:
        True where rejected, in the order of `p_values`.

    Raises:
        ValueError: if a p-value or alpha is out of range.
    """
    if not 0 < alpha < 1 or not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"p-values must be in [0, 1] and alpha in (0, 1), not {list(p_values)} and {alpha}")
    rejected = [False] * len(p_values)
    ascending = sorted(range(len(p_values)), key=p_values.__getitem__)
    for step, index in enumerate(ascending):
        if p_values[index] > alpha / (len(p_values) - step):
            break
        rejected[index] = True
    return rejected


def _series(values: ArrayLike) -> NDArray[Any]:
    return np.asarray(values, dtype=np.float64).reshape(-1)


def _fair_tail(n: int, k: int) -> float:
    """P(Bin(n, 1/2) <= k), 0 <= k <= n, summed from k downwards until terms no longer count."""
    if 2 * k >= n:
        return 1.0 if k == n else 1.0 - _fair_tail(n, n - k - 1)
    total, term = 0, math.comb(n, k)
    while term.bit_length() > total.bit_length() - 80 and term:
        total += term
        term = term * k // (n - k + 1)
        k -= 1
    return total / (1 << n)
