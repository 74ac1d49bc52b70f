"""Cover and hidden points of synthetic curves whose answers are known; the classes of sizes against scipy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mpibench.analysis.crossover import CoverInput, classify, cover_point, hidden_point
from mpibench.analysis.statistics import Interval

SIZES = [1 << k for k in range(10, 21)]
ALPHA, BETA = 5e-6, 1e-9  # N = alpha + nbytes * beta, seconds
H, E, U = "hidden", "exposed", "unresolved"


def point(nbytes: int, nonblocking_s: float, compute_s: float, half: float = 0.0) -> CoverInput:
    excess = nonblocking_s - compute_s
    return CoverInput(nbytes, Interval(excess, excess - half, excess + half), nonblocking_s)


def line(compute_s: float, half: float = 0.0, sizes: Sequence[int] = SIZES) -> list[CoverInput]:
    return [point(n, ALPHA + n * BETA, compute_s, half) for n in sizes]


def curve(excess: dict[int, float], half: float) -> list[CoverInput]:
    """N - C by size in units of C, which is 1 ms, with the interval's half-width in the same unit."""
    return [point(n, (1 + value) * 1e-3, 1e-3, half * 1e-3) for n, value in excess.items()]


# The cover point


@pytest.mark.parametrize("compute_s", [8e-6, 50e-6, 100e-6, 1e-3])
def test_a_line_is_crossed_exactly(compute_s: float) -> None:
    cover = cover_point(line(compute_s, half=0.5e-6))
    exact = (compute_s - ALPHA) / BETA
    assert cover.status == "found"
    assert cover.nbytes == pytest.approx(exact)
    # Less is covered where N - C is at its upper limit, more where it is at its lower one.
    assert [cover.lo, cover.hi] == pytest.approx([exact - 500, exact + 500])
    assert cover.note == ""


def test_a_crossing_on_a_size_is_that_size() -> None:
    assert cover_point(line(ALPHA + SIZES[4] * BETA)).nbytes == pytest.approx(SIZES[4])


def test_an_end_of_the_interval_beyond_the_sweep_is_empty() -> None:
    low = cover_point(line(ALPHA + 1100 * BETA, half=0.2e-6))
    assert (low.nbytes, low.lo, low.hi) == (pytest.approx(1100), None, pytest.approx(1300))
    high = cover_point(line(ALPHA + (SIZES[-1] - 100) * BETA, half=0.2e-6))
    assert (high.lo, high.hi) == (pytest.approx(SIZES[-1] - 300), None)


def test_a_jump_across_c_is_at_the_switch() -> None:
    # N grows with the message, then fourfold where the library switches between 64 K and 128 K.
    points = [point(n, n * BETA * (1 if n <= 1 << 16 else 4), 100e-6, 1e-6) for n in SIZES]
    cover = cover_point(points)
    assert (cover.status, cover.nbytes, cover.lo, cover.hi) == ("at-switch", 1 << 16, 1 << 16, 1 << 17)
    assert "between 65536 and 131072 B" in cover.note


@pytest.mark.parametrize(("growth", "status"), [(1.4, "found"), (1.6, "at-switch")])
def test_a_jump_is_more_than_1_5_times_as_fast_as_the_message(growth: float, status: str) -> None:
    points = [point(1000, 0.9e-3, 1e-3), point(2000, 0.9e-3 * 2 * growth, 1e-3)]
    assert cover_point(points).status == status


def test_beyond_never_and_unresolved() -> None:
    assert cover_point(line(1.0, half=1e-6)) == cover_point(line(2.0))
    beyond = cover_point(line(1.0, half=1e-6))
    assert (beyond.status, beyond.nbytes, beyond.lo, beyond.hi) == ("beyond", SIZES[-1], None, None)
    never = cover_point(line(1e-6, half=0.5e-6))
    assert (never.status, never.nbytes) == ("never", None)
    assert cover_point([]).status == "unresolved"
    assert cover_point(curve({1024: -0.3, 2048: -0.1}, half=0.2)).status == "unresolved"
    assert cover_point(curve({1024: 0.1, 2048: 0.3}, half=0.2)).status == "unresolved"


def test_a_size_of_0_bytes_is_no_switch() -> None:
    cover = cover_point([point(0, 1e-6, 10e-6), point(4096, 19e-6, 10e-6)])
    assert (cover.status, cover.nbytes) == ("found", pytest.approx(2048))


def test_what_is_covered_again_above_is_noted() -> None:
    cover = cover_point(curve({1000: -0.2, 2000: 0.2, 3000: -0.2, 4000: 0.3}, half=0.05))
    assert (cover.status, cover.nbytes) == ("found", pytest.approx(1500))
    assert "covered again at 3000 B" in cover.note


def test_what_is_not_told_at_the_ends_is_unresolved() -> None:
    covered, exposed = line(1.0, half=1e-6), line(-1.0, half=1e-6)
    larger, smaller = (*SIZES, 2 * SIZES[-1]), (SIZES[0] // 2, *SIZES)
    assert cover_point(covered, SIZES).status == "beyond"
    assert cover_point(covered, larger).status == "unresolved"
    assert f"covered at {SIZES[-1]} B" in cover_point(covered, larger).note
    assert cover_point(covered, smaller).status == "beyond"
    assert cover_point(exposed, SIZES).status == "never"
    assert cover_point(exposed, smaller).status == "unresolved"


def test_the_largest_size_covered_is_beyond_though_the_smallest_is_not() -> None:
    cover = cover_point(curve({1000: 0.2, 2000: -0.2, 4000: -0.3}, half=0.05))
    assert (cover.status, cover.nbytes) == ("beyond", 4000)


# Classes


def values(below: int, n: int, amount: float = 1e-6) -> Any:
    """n values, `below` of them -amount, the rest +amount; in an order that shows no dependence."""
    ascending = np.array([-amount] * below + [amount] * (n - below))
    return ascending.reshape(2, n // 2).T.ravel()


@pytest.mark.parametrize("n", [8, 20, 50])
def test_one_size_is_decided_as_a_two_sided_sign_test_says(n: int) -> None:
    for below in range(n + 1):
        p = stats.binomtest(below, n).pvalue
        wanted = U if p > 0.05 else H if 2 * below > n else E
        assert classify([values(below, n)], [np.full(n, 1e-9)]) == [wanted], (below, p)


def test_an_exposed_time_up_to_5_percent_of_b_counts_as_none() -> None:
    b = np.full(30, 100e-6)
    shares = (0.02, 0.049, 0.051, 0.2)
    assert classify([b * share for share in shares], [b] * 4) == [H, H, E, E]


def test_up_to_5_percent_is_hidden_though_surely_above_0_and_not_in_every_iteration() -> None:
    b = np.full(60, 100e-6)
    exposed = np.where(np.arange(60) < 58, 0.02, 0.2) * b
    assert stats.binomtest(58, 60, alternative="greater").pvalue < 1e-12  # below 5 % of B
    assert classify([exposed], [b]) == [H]


def test_holm_asks_more_of_a_borderline_size_among_many() -> None:
    borderline, b = values(9, 10), np.full(10, 1e-9)
    undecided, certain = values(5, 10), values(200, 200)
    assert 0.05 / 3 < stats.binomtest(9, 10).pvalue < 0.05
    assert classify([borderline], [b]) == [H]
    assert classify([borderline, undecided, undecided], [b] * 3) == [U, U, U]
    # Sizes that are decided anyway are out of its way: it is the last one tested.
    many = [np.full(200, 1e-9)] * 5
    assert classify([borderline, *[certain] * 5], [b, *many]) == [H] * 6


def test_sizes_that_were_not_measured_cost_the_others_nothing() -> None:
    borderline, b = values(9, 10), np.full(10, 1e-9)
    nothing = np.empty(0)
    assert classify([nothing, borderline, *[nothing] * 8], [nothing, b, *[nothing] * 8]) == [U, H, *[U] * 8]
    assert classify([], []) == []


def test_the_error_over_all_sizes_together_is_held() -> None:
    """Exposed times of median 0 have no right answer but unresolved, and B is nil."""
    rng = np.random.default_rng(5)
    runs, sizes, n = 300, 8, 40
    wrong = sum(set(classify(list(rng.standard_normal((sizes, n))), [np.zeros(n)] * sizes)) != {U} for _ in range(runs))
    assert stats.binom.sf(wrong - 1, runs, 0.05) > 1e-3


# The hidden point


@pytest.mark.parametrize(
    ("classes", "status", "nbytes", "hi", "bottom", "note"),
    [
        ([H, H, H, E, E], "found", 4, 8, 1, ""),
        ([H, H, H, U, E], "found", 4, 16, 1, ""),
        ([E, H, H, E, E], "found", 4, 8, 2, "below 2 B the cost of a start is exposed"),
        ([E, E, H, E, H], "beyond", 16, None, 4, "exposed at 8 B"),
        ([H, E, E, H, E], "found", 8, 16, 1, "exposed at 2, 4 B"),
        ([H, E, U, H, E], "found", 8, 16, 1, "exposed at 2 B"),
        ([H] * 5, "beyond", 16, None, 1, ""),
        ([U, H, H, H, H], "beyond", 16, None, 2, ""),
        ([H, H, U, U, U], "unresolved", 2, None, 1, "hidden at least up to 2 B"),
        ([E] * 5, "never", None, None, None, ""),
        ([E, E, U, E, E], "unresolved", None, None, None, ""),
        ([U] * 5, "unresolved", None, None, None, ""),
    ],
)
def test_hidden_point(
    classes: list[str], status: str, nbytes: int | None, hi: int | None, bottom: int | None, note: str
) -> None:
    hidden = hidden_point([1, 2, 4, 8, 16], classes)
    assert (hidden.status, hidden.nbytes, hidden.lo, hidden.hi) == (status, nbytes, nbytes, hi)
    assert hidden.from_nbytes == bottom
    assert note in hidden.note
    assert note or status == "unresolved" or not hidden.note


def test_no_sizes_have_no_hidden_point() -> None:
    assert hidden_point([], []).status == "unresolved"


def test_a_smaller_size_that_is_not_covered_is_told() -> None:
    points = [CoverInput(n, Interval(m, m - 0.1, m + 0.1), 1.0) for n, m in ((1024, 1.0), (2048, -1.0))]
    found = cover_point(points)
    assert (found.status, found.nbytes, found.note) == ("beyond", 2048, "not covered at 1024 B")
