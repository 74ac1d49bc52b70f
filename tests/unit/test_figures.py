"""The figures of a case against numbers worked out by hand, and scipy's intervals."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mpibench.analysis import statistics
from mpibench.analysis.figures import Times, bus_bandwidth, case_figures, overlap

MS = 1e-3
SPANS = ("allreduce", "nonblocking", "compute", "sequential", "overlapped")


def times(span: Any, **others: Any) -> Times:
    """A phase, in ms; parts that are not given are NaN, waiting for a core is nil, rank 0 is the slowest."""
    span = np.array(span, dtype=float) * MS
    absent = {"start", "during", "test", "tests", "wait", "skew"} - set(others)
    given = {name: np.array(values) * (1 if name in ("tests", "slowest") else MS) for name, values in others.items()}
    values = dict.fromkeys(absent, np.full(len(span), math.nan))
    zero = np.zeros(len(span))
    return Times(**{"span": span, "cpu_wait": zero, "slowest": zero.astype(int), **values, **given})


def figures(*phases: Times, **others: Any) -> dict[str, float]:
    return case_figures(*phases, **{"nbytes": 1 << 20, "ranks": 4, "host_driven": True, **others})


@pytest.fixture
def independent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few values look dependent by chance: here they count as they are."""
    monkeypatch.setattr(statistics, "effective_count", lambda values, _caution: len(values))


def by_hand() -> tuple[Times, ...]:
    """Seven iterations, for which the interval of a median runs from the least value to the largest."""
    return (
        times([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6], cpu_wait=[0, 0, 0, 0, 0.13, 0.13, 0.13]),
        times([2, 2, 2, 2, 2, 2, 4], start=[0.5] * 7, wait=[1.5] * 7),
        times([4, 4, 4, 4, 4, 4, 3]),
        times([5, 6, 5, 6, 5, 6, 5], during=[4] * 7, wait=[1] * 7, cpu_wait=[0.6] * 7),
        times(
            [4, 5, 6, 4.5, 5.5, 6.5, 4], start=[0.1] * 7, during=[4.5] * 7, test=[0.3] * 7, wait=[0.2] * 7,
            tests=[10, 12, 14, 10, 12, 14, 9], skew=[0.01] * 7, cpu_wait=[0.1] * 7, slowest=[3, 1, 3, 1, 3, 2, 0],
        ),
    )  # fmt: skip


# (N + C - T) / min(N, C) of the seven: 1, 0.5, 0, 0.75, 0.25, -0.25 and 3 / 3.
KNOWN = {
    "iterations": 7, "outliers": 0, "slowest_rank": 3, "tests": 12,
    "allreduce_s": 1.3 * MS, "allreduce_lo_s": 1.0 * MS, "allreduce_hi_s": 1.6 * MS,
    "nonblocking_s": 2 * MS, "nonblocking_lo_s": 2 * MS, "nonblocking_hi_s": 4 * MS,
    "compute_s": 4 * MS, "compute_lo_s": 3 * MS, "compute_hi_s": 4 * MS,
    "sequential_s": 5 * MS, "sequential_lo_s": 5 * MS, "sequential_hi_s": 6 * MS,
    "overlapped_s": 5 * MS, "overlapped_lo_s": 4 * MS, "overlapped_hi_s": 6.5 * MS,
    "overlapped_mean_s": 35.5 / 7 * MS, "overlapped_p95_s": (6 + 0.7 * 0.5) * MS,
    "overlap": 0.5, "overlap_lo": -0.25, "overlap_hi": 1.0,
    "exposed_s": 1 * MS, "exposed_lo_s": 0, "exposed_hi_s": 2.5 * MS,  # 0, 1, 2, 0.5, 1.5, 2.5, 1
    "gain_s": 1 * MS,  # 1, 1, -1, 1.5, -0.5, -0.5, 1
    "speedup": 6 / 5, "speedup_lo": 5 / 6, "speedup_hi": 6 / 4.5,  # 1.25, 1.2, 0.83, 1.33, 0.91, 0.92, 1.25
    "bias_s": 0.4 * MS,  # 0, 0.9, -0.2, 0.7, -0.4, 0.5, 0.4
    "nonblocking_penalty": 2 / 1.2,  # 2/1.0 ... 2/1.5, 4/1.6
    "compute_slowdown": 4.2 / 4, "skew_s": 0.01 * MS, "cpu_wait_s": 0.1 * MS,
    "busbw_Bps": 1.5 * (1 << 20) / (1.3 * MS),
    "start_s": 0.1 * MS, "during_s": 4.5 * MS, "test_s": 0.3 * MS, "wait_s": 0.2 * MS,
    "start_share": 0.05, "wait_share": 0.1, "exposed_share": 0.5,
    "cpu_wait_share": 0.12,  # 0.6 of 5 in S; the median of B's shares is nil
}  # fmt: skip


@pytest.mark.usefixtures("independent")
def test_every_figure_by_hand() -> None:
    found = figures(*by_hand())
    effective = found.pop("effective_iterations")
    assert 0 < effective <= 7
    assert found == pytest.approx(KNOWN)


def test_the_parts_of_gain_add_up_in_every_iteration() -> None:
    rng = np.random.default_rng(0)
    b, n, c, s, t = rng.uniform(1, 3, (5, 50))
    for i in range(50):
        found = figures(*(times([phase[i]]) for phase in (b, n, c, s, t)))
        algorithm = found["allreduce_s"] - found["nonblocking_s"]
        overlapped = found["overlap"] * min(found["nonblocking_s"], found["compute_s"])
        assert found["gain_s"] == pytest.approx(algorithm + overlapped + found["bias_s"])


@pytest.mark.parametrize(
    ("n", "c", "t", "wanted"),
    [(1, 2, 2, 1), (2, 1, 2, 1), (1, 2, 3, 0), (1, 2, 3.5, -0.5), (2, 1, 1.5, 1.5), (1, 1, 1.25, 0.75)],
)
def test_overlap_is_1_where_all_is_hidden_0_where_serial_and_not_clamped(
    n: float, c: float, t: float, wanted: float
) -> None:
    assert overlap(np.array([n]), np.array([c]), np.array([t])) == pytest.approx([wanted])


@pytest.mark.usefixtures("independent")
@pytest.mark.parametrize("n", [6, 7, 30, 51, 200])
def test_intervals_are_those_of_scipys_quantile_test(n: int) -> None:
    rng = np.random.default_rng(n)
    b, nb, c, s, t = (rng.lognormal(0, 0.3, n) for _ in range(5))
    found = figures(*(times(phase) for phase in (b, nb, c, s, t)))
    known = {"overlap": (nb + c - t) / np.minimum(nb, c), "speedup": s / t}
    known |= {f"{name}_s": phase * MS for name, phase in zip(SPANS, (b, nb, c, s, t), strict=True)}
    known["exposed_s"] = (t - c) * MS
    for name, values in known.items():
        stem, unit = (name[:-2], "_s") if name.endswith("_s") else (name, "")
        oracle = stats.quantile_test(values).confidence_interval(0.95)
        assert found[name] == pytest.approx(np.median(values))
        assert [found[f"{stem}_lo{unit}"], found[f"{stem}_hi{unit}"]] == pytest.approx([oracle.low, oracle.high])


@pytest.mark.parametrize("n", [1, 5])
def test_below_6_iterations_there_are_medians_and_no_intervals(n: int) -> None:
    found = figures(*(times([phase] * n) for phase in (1, 1, 2, 3, 2)))
    bounds = [name for name in found if "_lo" in name or "_hi" in name]
    assert len(bounds) == 2 * (len(SPANS) + 3)  # exposed, overlap, speedup
    assert all(math.isnan(found[name]) for name in bounds)
    assert (found["overlap"], found["iterations"]) == (1.0, n)


def test_what_was_not_measured_has_no_figure() -> None:
    found = figures(*(times([phase] * 8) for phase in (1, 1, 2, 3, 2)), host_driven=False)
    absent = {name for name, value in found.items() if math.isnan(value)}
    parts = {f"{part}_s" for part in ("start", "during", "test", "wait", "skew")} | {"tests"}
    assert absent == parts | {f"{part}_share" for part in ("start", "wait")} | {"compute_slowdown"}


def test_the_slowdown_of_a_kernel_that_leaves_the_host_free_is_not_told_by_the_host() -> None:
    assert math.isnan(figures(*by_hand(), host_driven=False)["compute_slowdown"])


def test_outliers_are_counted_and_kept() -> None:
    base = [times([phase] * 20) for phase in (1, 1, 2, 3)]
    span = [2 + 0.01 * i for i in range(19)] + [50]
    found = figures(*base, times(span))
    assert found["outliers"] == 1
    assert found["overlapped_mean_s"] == pytest.approx(sum(span) / 20 * MS)


def test_a_late_rank_is_named_by_how_often_it_was_last() -> None:
    base = [times([phase] * 8) for phase in (1, 1, 2, 3)]
    assert figures(*base, times([2] * 8, slowest=[5, 0, 5, 1, 5, 2, 5, 3]))["slowest_rank"] == 5


@pytest.mark.parametrize(
    ("nbytes", "ranks", "seconds", "wanted"),
    [(1 << 20, 2, 1e-3, (1 << 20) * 1e3), (8_000_000, 8, 0.01, 1.4e9), (0, 4, 1e-6, 0), (100, 1, 1, 0)],
)
def test_bus_bandwidth(nbytes: int, ranks: int, seconds: float, wanted: float) -> None:
    assert bus_bandwidth(nbytes, ranks, seconds) == pytest.approx(wanted)
