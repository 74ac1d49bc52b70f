"""What the machine itself allows: the clock's resolution, and how often it takes the core away.

Measured by reading the clock again and again: a difference far above the usual one is an interruption.
Source: the fixed-time quantum of M. Sottile and R. Minnich, Analysis of microbenchmarks for performance tuning
of clusters, IEEE Cluster 2004.
"""

from time import perf_counter_ns
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SECONDS = 1.0
_BLOCK = 10_000  # reads between two looks at the time
_INTERRUPTION = 10.0  # of the median difference: far more than a cache miss


class Noise(NamedTuple):
    """Of one core, with nothing else to do."""

    resolution_s: float  # the least difference of two reads that is not 0
    read_s: float  # the median difference: what a read costs
    lost_share: float  # of the time that went to interruptions
    longest_s: float  # interruption


def measure_noise(seconds: float = _SECONDS) -> Noise:
    """Read the clock for so long."""
    gaps = []
    until = perf_counter_ns() + seconds * 1e9
    stamps = np.empty(_BLOCK, dtype=np.int64)
    while perf_counter_ns() < until:
        for i in range(_BLOCK):
            stamps[i] = perf_counter_ns()
        gaps.append(np.diff(stamps))
    return evaluate(np.concatenate(gaps))


def evaluate(gaps_ns: NDArray[np.int64]) -> Noise:
    """The figures of a series of differences between reads, nanoseconds."""
    usual = float(np.median(gaps_ns))
    interruptions = gaps_ns[gaps_ns > _INTERRUPTION * max(usual, 1.0)]
    return Noise(
        float(gaps_ns[gaps_ns > 0].min(initial=np.iinfo(np.int64).max)) * 1e-9,
        usual * 1e-9,
        float((interruptions - usual).sum() / gaps_ns.sum()),
        float(interruptions.max(initial=0)) * 1e-9,
    )
