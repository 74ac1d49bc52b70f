"""mpibench.analysis.statistics against scipy, exact tables and simulation."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import lfilter

from mpibench.analysis.statistics import (
    Interval,
    effective_count,
    groups_apart,
    holm,
    interval_ranks,
    median_interval,
    outlier_count,
    series_interval,
    sign_test_below,
)

# Nanoseconds up to an hour: sums and shifts of them are exact.
nanoseconds = st.integers(-(10**12), 10**12)
series = st.lists(nanoseconds, min_size=1, max_size=60)
p_values = st.lists(st.floats(0, 1), max_size=12)


def exact_coverage(n: int, k: int) -> Fraction:
    """P(k <= Bin(n, 1/2) <= n - k): that x_(k) .. x_(n+1-k) holds the median."""
    return Fraction(sum(math.comb(n, i) for i in range(k, n - k + 1)), 2**n)


def autoregressive(rng: np.random.Generator, n: int, phi: float) -> np.ndarray:
    """A Gaussian AR(1) series, its start forgotten."""
    return lfilter([1.0], [1.0, -phi], rng.standard_normal(n + 500))[500:]


# interval_ranks


@pytest.mark.parametrize(("counts", "lower"), [((6, 7, 8), 1), ((9, 10, 11), 2), ((12, 13, 14), 3), ((15, 16), 4)])
def test_ranks_are_those_of_the_published_table(counts: tuple[int, ...], lower: int) -> None:
    assert [interval_ranks(n) for n in counts] == [(lower, n + 1 - lower) for n in counts]


@pytest.mark.parametrize("n", range(6))
def test_below_six_values_there_is_no_interval(n: int) -> None:
    assert interval_ranks(n) is None


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_ranks_are_the_narrowest_that_hold_the_confidence(confidence: float) -> None:
    for n in range(1, 130):
        ranks = interval_ranks(n, confidence)
        inner = 1 if ranks is None else ranks[0] + 1
        if ranks is not None:
            assert ranks[1] == n + 1 - ranks[0]
            assert exact_coverage(n, ranks[0]) >= confidence
        if 2 * inner <= n + 1:
            assert exact_coverage(n, inner) < confidence


@pytest.mark.parametrize("n", [50, 51, 999, 1000, 9_999, 100_000])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_ranks_agree_with_scipy_for_many_values(n: int, confidence: float) -> None:
    lower, upper = interval_ranks(n, confidence)
    assert 2 * stats.binom.cdf(lower - 1, n, 0.5) <= 1 - confidence < 2 * stats.binom.cdf(lower, n, 0.5)
    assert upper == n + 1 - lower


@pytest.mark.parametrize(("n", "confidence"), [(-1, 0.95), (10, 0.0), (10, 1.0), (10, math.nan)])
def test_ranks_refuse_nonsense(n: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence in"):
        interval_ranks(n, confidence)


# median_interval


@pytest.mark.parametrize("n", [6, 9, 12, 50, 173])
def test_interval_agrees_with_scipys_quantile_test(n: int) -> None:
    values = np.random.default_rng(n).lognormal(size=n)
    theirs = stats.quantile_test(values, p=0.5).confidence_interval(confidence_level=0.95)
    interval = median_interval(values)
    assert (interval.lo, interval.hi) == (theirs.low, theirs.high)
    assert interval.median == np.median(values)


def test_few_values_have_a_median_and_no_bounds() -> None:
    interval = median_interval([3.0, 1.0, 2.0, 5.0, 4.0])
    assert interval.median == 3.0
    assert math.isnan(interval.lo)
    assert math.isnan(interval.hi)


@pytest.mark.parametrize("values", [[], [1.0, math.nan, 2.0] * 5])
def test_without_a_median_everything_is_nan(values: list[float]) -> None:
    assert all(math.isnan(figure) for figure in median_interval(values))


def test_an_infinite_value_is_a_value() -> None:
    assert median_interval([1, 2, 3, 4, 5, 6, math.inf]) == Interval(4, 1, math.inf)


@given(series)
def test_interval_holds_the_median_and_its_bounds_were_measured(values: list[int]) -> None:
    median, lo, hi = median_interval(values)
    assert median == np.median(values)
    if len(values) >= 6:
        assert lo <= median <= hi
        assert {lo, hi} <= set(values)


@given(st.lists(nanoseconds, min_size=6, max_size=60), st.data())
def test_interval_ignores_the_order(values: list[int], data: st.DataObject) -> None:
    assert median_interval(data.draw(st.permutations(values))) == median_interval(values)


@given(st.lists(nanoseconds, min_size=6, max_size=60), nanoseconds, st.sampled_from([0.25, 2.0, 1024.0, -1.0, -8.0]))
def test_interval_moves_and_stretches_with_the_values(values: list[int], shift: int, scale: float) -> None:
    median, lo, hi = (scale * figure + shift for figure in median_interval(values))
    moved = median_interval(scale * np.array(values, dtype=float) + shift)
    assert moved == Interval(median, min(lo, hi), max(lo, hi))


@given(st.lists(nanoseconds, min_size=6, max_size=60))
def test_more_confidence_is_never_narrower(values: list[int]) -> None:
    usual, careful = median_interval(values, 0.9), median_interval(values, 0.96)
    assert careful.lo <= usual.lo
    assert careful.hi >= usual.hi


def test_dependent_values_have_the_interval_of_fewer() -> None:
    values = np.arange(1.0, 401)  # ranks: 400 values, exactly 180.5 +- 20 at 95 %
    lower, upper = interval_ranks(400)
    assert median_interval(values) == (200.5, lower, upper)
    _, lo, hi = median_interval(values, effective=100)  # half the information of a value: twice the reach
    assert (200.5 - lo, hi - 200.5) == pytest.approx((2 * (200.5 - lower),) * 2, abs=1)
    assert math.isnan(median_interval(values[:30], effective=4).lo)


def test_a_series_is_taken_with_its_effective_count() -> None:
    rng = np.random.default_rng(6)
    values = autoregressive(rng, 2000, 0.8)
    assert series_interval(values) == median_interval(values, effective=effective_count(values, caution=1))
    assert series_interval(values).hi > median_interval(values).hi


def test_groups_are_apart_by_the_gap_between_their_intervals() -> None:
    low, high = np.arange(12.0), np.arange(12.0) + 20  # at 99 %: the second to the eleventh value
    assert groups_apart([low, high]) == 21 - 10
    assert groups_apart([low, low + 5, low + 3]) == 0
    assert groups_apart([low[:5], high[:5]]) == groups_apart([]) == 0  # too few for an interval
    assert groups_apart([high, low[:5], low]) == 11


@pytest.mark.parametrize("n", [6, 10, 25, 60])
def test_interval_covers_the_true_median_as_often_as_the_binomial_says(n: int) -> None:
    rng, trials = np.random.default_rng(20261 + n), 4000
    draws = rng.exponential(size=(trials, n))  # skewed, true median ln 2
    intervals = [median_interval(row) for row in draws]
    covered = sum(interval.lo <= math.log(2) <= interval.hi for interval in intervals)
    assert stats.binomtest(covered, trials, float(exact_coverage(n, interval_ranks(n)[0]))).pvalue > 1e-4
    assert covered / trials > 0.94


# effective_count


@pytest.mark.parametrize("values", [[], [5.0], [7.0] * 40, [1.0, 1.0, 2.0, 2.0, 2.0] * 8])
def test_where_no_value_exceeds_the_median_all_count(values: list[float]) -> None:
    assert effective_count(values) == len(values)


def test_independent_values_count_in_full() -> None:
    assert effective_count(np.random.default_rng(5).standard_normal(20_000)) == 20_000


def test_alternating_values_count_as_no_more_than_there_are() -> None:
    assert effective_count([1.0, 2.0] * 50) == 100


@pytest.mark.parametrize("phi", [0.3, 0.5, 0.8, 0.9])
def test_autoregressive_series_have_their_known_effective_count(phi: float) -> None:
    # Signs of a Gaussian AR(1) series are correlated by the arcsine law: 2/pi asin(phi^k).
    law = [2 / math.pi * math.asin(phi**k) for k in range(1, 200)]
    tau = 1 + 2 * sum(r for r in law if r >= 0.05)
    rng, n = np.random.default_rng(8), 20_000
    measured = [n / effective_count(autoregressive(rng, n, phi)) for _ in range(20)]
    # One estimate spreads by 7 % at 0.9, their mean by 1.6 %.
    assert np.mean(measured) == pytest.approx(tau, rel=0.05)


def test_effective_count_is_the_sum_written_out() -> None:
    values = autoregressive(np.random.default_rng(3), 150, 0.7)
    above = (values > np.median(values)) - 0.5
    tau = 1.0
    for lag in range(1, 150):
        r = float(above[lag:] @ above[:-lag] / (above @ above))
        if r < max(0.05, 1 / math.sqrt(150)):
            break
        tau += 2 * r
    assert tau > 2
    assert effective_count(values) == pytest.approx(150 / tau)


def test_caution_is_standard_errors_of_the_dependence() -> None:
    rng = np.random.default_rng(9)
    estimates = [2000 / effective_count(autoregressive(rng, 2000, 0.5)) for _ in range(300)]
    values = autoregressive(rng, 2000, 0.5)
    told = effective_count(values) / effective_count(values, caution=1) - 1
    assert told == pytest.approx(np.std(estimates) / np.mean(estimates), rel=0.6)


def test_a_drift_leaves_few_effective_values() -> None:
    assert effective_count(np.arange(1000.0)) < 10


def test_outliers_do_not_change_the_effective_count() -> None:
    values = autoregressive(np.random.default_rng(4), 400, 0.6)
    spoilt = values.copy()
    spoilt[values.argmax()] = 1e9
    assert effective_count(spoilt) == effective_count(values)


def test_effective_count_of_nan_is_nan() -> None:
    assert math.isnan(effective_count([1.0, math.nan, 2.0]))


@given(series)
def test_effective_count_lies_between_nothing_and_all(values: list[int]) -> None:
    assert 0 < effective_count(values) <= len(values)


@given(series)
def test_effective_count_does_not_depend_on_the_unit(values: list[int]) -> None:
    assert effective_count([4 * value + 100 for value in values]) == effective_count(values)


# outlier_count


def test_values_beyond_the_fences_are_counted_on_both_sides() -> None:
    values = np.arange(1.0, 101.0)  # quartiles 25.75 and 75.25: fences at -48.5 and 149.5
    assert outlier_count(values) == 0
    assert outlier_count([*values[:-2], -60.0, 1000.0]) == 2


def test_equal_values_make_any_other_an_outlier() -> None:
    assert outlier_count([5.0] * 20 + [5.1]) == 1


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0, math.nan, 1e9]])
def test_too_little_has_no_outliers(values: list[float]) -> None:
    assert outlier_count(values) == 0


@given(series)
def test_at_most_half_are_outliers(values: list[int]) -> None:
    assert outlier_count(values) <= len(values) / 2


# sign_test_below


@given(series)
def test_sign_test_is_scipys(values: list[int]) -> None:
    below = sum(value < 0 for value in values)
    theirs = stats.binomtest(below, len(values), 0.5, alternative="greater").pvalue
    assert sign_test_below(values) == pytest.approx(theirs, rel=1e-12)


def test_sign_test_is_the_share_of_sign_patterns_at_least_as_extreme() -> None:
    n, below = 9, 7
    patterns = sum(sum(signs) >= below for signs in product((0, 1), repeat=n))
    assert sign_test_below([-1.0] * below + [1.0] * (n - below)) == patterns / 2**n


def test_dependent_values_are_fewer_tosses() -> None:
    values = [-1.0] * 30 + [1.0] * 10
    assert sign_test_below(values, effective=20) == pytest.approx(stats.binomtest(15, 20, alternative="greater").pvalue)
    assert sign_test_below(values, effective=0.5) == 1.0


def test_ties_and_nan_count_against_the_claim() -> None:
    assert sign_test_below([-1, -1, -1, 0]) == sign_test_below([-1, -1, -1, 1]) == 5 / 16
    assert sign_test_below([-1, -1, -1, math.nan]) == 5 / 16


@pytest.mark.parametrize(("values", "p"), [([], 1.0), ([1.0] * 7, 1.0), ([0.0] * 7, 1.0), ([-1.0] * 7, 1 / 128)])
def test_sign_test_at_its_ends(values: list[float], p: float) -> None:
    assert sign_test_below(values) == p


@pytest.mark.parametrize("below", [49_000, 49_999, 50_000, 50_001, 50_700, 60_000])
def test_sign_test_of_many_values(below: int) -> None:
    values = np.ones(100_000)
    values[:below] = -1
    assert sign_test_below(values) == pytest.approx(stats.binom.sf(below - 1, 100_000, 0.5), rel=1e-9)


@given(series, st.integers(0, 59))
def test_a_value_moved_below_zero_never_weakens_the_claim(values: list[int], place: int) -> None:
    moved = list(values)
    moved[place % len(values)] = -1
    assert sign_test_below(moved) <= sign_test_below(values)


# holm


def holm_by_adjusted_values(ps: list[float], alpha: float) -> list[bool]:
    """The other way to write it: reject where the running maximum of (m - i) p_(i) is at most alpha."""
    largest, rejected = 0.0, [False] * len(ps)
    for i, index in enumerate(np.argsort(ps, kind="stable")):
        largest = max(largest, (len(ps) - i) * ps[index])
        rejected[index] = largest <= alpha
    return rejected


def test_holm_on_a_worked_example() -> None:
    # Ascending 0.005, 0.01, 0.03, 0.04 against 0.0125, 0.01667, 0.025: the third fails, so the fourth does too.
    assert holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]


def test_holm_rejects_more_than_bonferroni() -> None:
    assert holm([0.016, 0.001, 0.024, 0.05]) == [True, True, True, True]
    assert [p <= 0.05 / 4 for p in (0.016, 0.001, 0.024, 0.05)] == [False, True, False, False]


def test_holm_stops_at_the_first_that_fails() -> None:
    assert holm([0.02, 0.021, 0.022]) == [False, False, False]


@pytest.mark.parametrize(
    ("ps", "rejected"), [([], []), ([0.05], [True]), ([0.0501], [False]), ([0.0, 1.0], [True, False])]
)
def test_holm_at_its_ends(ps: list[float], rejected: list[bool]) -> None:
    assert holm(ps) == rejected


# Whole 1024ths: wherever both sides of a comparison are equal, both are exact, so that both ways must agree.
@given(st.lists(st.integers(0, 1024).map(lambda i: i / 1024), max_size=12))
def test_holm_agrees_with_adjusted_p_values(ps: list[float]) -> None:
    assert holm(ps, 1 / 16) == holm_by_adjusted_values(ps, 1 / 16)


@given(p_values, st.data())
def test_holm_does_not_depend_on_the_order(ps: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(ps))))
    assert holm([ps[i] for i in order]) == [holm(ps)[i] for i in order]


def test_holm_keeps_the_familywise_error_rate() -> None:
    rng, trials = np.random.default_rng(77), 4000
    wrong = sum(any(holm(row)) for row in rng.uniform(size=(trials, 6)).tolist())
    assert stats.binomtest(wrong, trials, 0.05, alternative="greater").pvalue > 1e-4


@pytest.mark.parametrize(
    ("ps", "alpha"), [([1.1], 0.05), ([-0.1], 0.05), ([math.nan], 0.05), ([0.5], 0.0), ([0.5], 1.0)]
)
def test_holm_refuses_nonsense(ps: list[float], alpha: float) -> None:
    with pytest.raises(ValueError, match="p-values"):
        holm(ps, alpha)
