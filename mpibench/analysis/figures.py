"""The figures of a case: every one computed per iteration, then the median over iterations.

B, N, C, S and T are one iteration's times of the five phases, in seconds (docs/overlap.md).
Computing per iteration makes the two ends exact: a perfect system reads overlap 1 and a serial
one 0, whatever the noise, because the noise of one iteration is in both terms.
"""

from typing import Any, NamedTuple

import numpy as np

from mpibench.analysis.statistics import Interval, effective_count, outlier_count, series_interval


class Times(NamedTuple):
    """One phase over the iterations of a cell; arrays of one value per iteration, seconds unless said."""

    span: Any  # last rank's start to last rank's end
    skew: Any  # last start - first start; NaN without a common clock
    start: Any  # inside the start call; NaN where the phase has none, as the following
    during: Any  # compute, tests included
    test: Any  # inside tests
    tests: Any  # their number
    wait: Any  # inside wait, or the blocking call of `sequential`
    cpu_wait: Any  # runnable but not running, the rank that waited longest
    slowest: Any  # rank that ended last


def overlap(nonblocking: Any, compute: Any, overlapped: Any) -> Any:
    """(N + C - T) / min(N, C): 1 all hidden, 0 serial, below 0 worse than serial. Never clamped."""
    return (nonblocking + compute - overlapped) / np.minimum(nonblocking, compute)


def bus_bandwidth(nbytes: int, ranks: int, seconds: float) -> float:
    """2 (p - 1)/p nbytes / B in bytes per second, comparable across p. Source: nccl-tests, PERFORMANCE.md."""
    return 2 * (ranks - 1) / ranks * nbytes / seconds


def case_figures(
    allreduce: Times,
    nonblocking: Times,
    compute: Times,
    sequential: Times,
    overlapped: Times,
    *,
    nbytes: int,
    ranks: int,
    host_driven: bool,
) -> dict[str, float]:
    """All figures of a case by column name, NaN where there is none.

    Beyond the columns: `exposed_share` (exposed over N), `wait_share` and `start_share` (of N),
    and `cpu_wait_share`, the largest share of a phase that a rank spent waiting for a core.
    """
    b, n, c, s, t = (phase.span for phase in (allreduce, nonblocking, compute, sequential, overlapped))
    figures: dict[str, float] = {"iterations": len(t), "effective_iterations": effective_count(t) if len(t) else 0}
    for name, times in (
        ("allreduce", b), ("nonblocking", n), ("compute", c), ("sequential", s), ("overlapped", t), ("exposed", t - c),
    ):  # fmt: skip
        put(figures, name, series_interval(times), "_s")
    put(figures, "overlap", series_interval(overlap(n, c, t)))
    put(figures, "speedup", series_interval(s / t))
    figures |= {
        "overlapped_mean_s": float(np.mean(t)),
        "overlapped_p95_s": float(np.percentile(t, 95)),
        "gain_s": median(s - t),
        "bias_s": median(s - (b + c)),
        "nonblocking_penalty": median(n / b),
        "compute_slowdown": median((overlapped.during - overlapped.test) / c) if host_driven else float("nan"),
        "busbw_Bps": bus_bandwidth(nbytes, ranks, figures["allreduce_s"]),
        "skew_s": median(overlapped.skew),
        "cpu_wait_s": median(overlapped.cpu_wait),
        "outliers": outlier_count(t),
        "slowest_rank": int(np.bincount(overlapped.slowest.astype(int)).argmax()),
    }
    figures["exposed_share"] = median((t - c) / n)
    figures["cpu_wait_share"] = max(
        median(phase.cpu_wait / phase.span) for phase in (allreduce, nonblocking, compute, sequential, overlapped)
    )
    return figures | _parts(overlapped, n)


def _parts(overlapped: Times, nonblocking: Any) -> dict[str, float]:
    """The parts of T in seconds, and of some their share of N."""
    figures = {f"{part}_s": median(getattr(overlapped, part)) for part in ("start", "during", "test", "wait")}
    figures["tests"] = median(overlapped.tests)
    for part in ("start", "wait"):
        figures[f"{part}_share"] = median(getattr(overlapped, part) / nonblocking)
    return figures


def put(figures: dict[str, float], name: str, interval: Interval, unit: str = "") -> None:
    """A median and its interval under the names of the columns: name, name_lo and name_hi with the unit."""
    figures[f"{name}{unit}"] = interval.median
    figures[f"{name}_lo{unit}"] = interval.lo
    figures[f"{name}_hi{unit}"] = interval.hi


def median(values: Any) -> float:
    """The median, NaN if there is none or any value is missing."""
    return float(np.median(values)) if len(values) else float("nan")
