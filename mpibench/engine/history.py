"""What has been measured so far: the committed visits, and views of them by cell and phase.

The plan, the tables and the picture of a case read it; it is the same whether its visits were
measured just now or read back from disk.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from mpibench.analysis.figures import Times
from mpibench.engine.phases import PhaseName
from mpibench.protocols import ALLREDUCE_HOT, COMPUTE, NONBLOCKING_HOT
from mpibench.records import ABSENT, SAMPLE_DTYPE

_REST_SHARE = 2.0  # preamble, barriers and checks, beside the timed phases: guess for visits read back


class History:
    """Visits by cell. Wrong elements and reasons for skipping are kept beside them."""

    def __init__(self) -> None:
        self._visits: dict[int, list[Any]] = {}
        self._local: dict[int, list[Any]] = {}
        self._uncertain: set[int] = set()
        self._seconds: dict[int, float] = {}
        self._times: dict[tuple[int, PhaseName], Times] = {}
        self.worst: dict[int, tuple[int, float]] = {}  # plan.worst_interval's memory: visits, half-width
        self.wrong: dict[int, int] = {}  # elements, by cell
        self.skipped: dict[int, str] = {}  # reason, by cell
        self.early: dict[int, int] = {}  # messages received before they were sent, by the hosts' clocks, by cell

    def add(self, cell: int, samples: Any, seconds: float | None = None, local: Any = None) -> None:
        """Commit a visit: `samples` of records.SAMPLE_DTYPE, all of one cell and visit, and what it cost.

        `local`: the same by the slowest local durations, where the hosts have clocks of their own.
        """
        if seconds is None:
            timed = samples[~_hot(samples)]
            seconds = float(timed["span_ns"].sum()) * 1e-9 * _REST_SHARE
        self._visits.setdefault(cell, []).append(samples)
        self._local.setdefault(cell, []).append(samples if local is None else local)
        if (samples["skew_ns"][~_hot(samples)] == ABSENT).any():
            self._uncertain.add(cell)
        self._seconds[cell] = self._seconds.get(cell, 0.0) + seconds
        for key in [key for key in self._times if key[0] == cell]:
            del self._times[key]

    def add_all(self, samples: Any, local: Any = None) -> None:
        """Commit visits read back from disk, in their order; `local` as in `add`: a visit that it lacks is left out."""
        durations = {} if local is None else {_key(rows): rows for rows in _visits_of(local)}
        for visit in _visits_of(samples):
            if local is None or _key(visit) in durations:
                self.add(_key(visit)[0], visit, local=durations.get(_key(visit)))

    def is_local(self, cell: int) -> bool:
        """Whether a cell's times are slowest local durations: the hosts' clocks did not tell more in every visit."""
        return cell in self._uncertain

    def _used(self, cell: int) -> list[Any]:
        """The visits of a cell, all by one definition of a phase's time."""
        return (self._local if self.is_local(cell) else self._visits).get(cell, [])

    def visits(self, cell: int) -> int:
        """Number of committed visits."""
        return len(self._visits.get(cell, ()))

    def next_number(self, cell: int) -> int:
        """The number of a cell's next visit: one more than the last, though one before may have been dropped."""
        visits = self._visits.get(cell)
        return int(visits[-1]["visit"][0]) + 1 if visits else 0

    def iterations(self, cell: int) -> int:
        """Number of committed iterations."""
        return len(self.times(cell, (COMPUTE, "")).span)

    def seconds_per_iteration(self, cell: int) -> float | None:
        """What an iteration costs, preambles and checks included; None before the first."""
        done = self.iterations(cell)
        return self._seconds[cell] / done if done else None

    def times(self, cell: int, name: PhaseName) -> Times:
        """One phase over all iterations of a cell, in seconds."""
        key = (cell, name)
        if key not in self._times:
            rows = [_of(samples, name) for samples in self._used(cell)]
            self._times[key] = _seconds_of(np.concatenate(rows) if rows else np.empty(0, _EMPTY))
        return self._times[key]

    def by_visit(self, cell: int, values: Any) -> list[Any]:
        """An array of one value per iteration of a cell, split into its visits."""
        lengths = [len(_of(samples, (COMPUTE, ""))) for samples in self._visits.get(cell, ())]
        return np.split(values, np.cumsum(lengths)[:-1])

    def all_samples(self) -> Any:
        """Every committed visit, by cell."""
        visits = [samples for _, cell in sorted(self._visits.items()) for samples in cell]
        return np.concatenate(visits) if visits else np.empty(0, SAMPLE_DTYPE)

    def hot_median(self, cells: Iterable[int], phase: str) -> float:
        """Median time of a hot loop, measured in any one of `cells`; NaN if in none."""
        for cell in cells:
            spans = self.times(cell, (phase, "")).span
            if len(spans):
                return float(np.median(spans))
        return float("nan")


_EMPTY = np.dtype([(name, "i8") for name in (
    "span_ns", "skew_ns", "start_ns", "during_ns", "test_ns", "tests", "wait_ns", "cpu_wait_ns", "slowest_rank",
)])  # fmt: skip


def _visits_of(samples: Any) -> list[Any]:
    """Samples split where the visit changes."""
    if not len(samples):
        return []
    change = (np.diff(samples["cell"]) != 0) | (np.diff(samples["visit"]) != 0)
    return np.split(samples, np.flatnonzero(change) + 1)


def _key(visit: Any) -> tuple[int, int]:
    """Cell and number of a visit."""
    return int(visit["cell"][0]), int(visit["visit"][0])


def _hot(samples: Any) -> Any:
    return (samples["phase"] == ALLREDUCE_HOT) | (samples["phase"] == NONBLOCKING_HOT)


def _of(samples: Any, name: PhaseName) -> Any:
    return samples[(samples["phase"] == name[0]) & (samples["progress"] == name[1])][list(_EMPTY.names or ())]


def _seconds_of(rows: Any) -> Times:
    def column(name: str, scale: float = 1e-9) -> Any:
        values = rows[name]
        return np.where(values == ABSENT, np.nan, values * scale)

    return Times(
        span=column("span_ns"),
        skew=column("skew_ns"),
        start=column("start_ns"),
        during=column("during_ns"),
        test=column("test_ns"),
        tests=column("tests", 1.0),
        wait=column("wait_ns"),
        cpu_wait=column("cpu_wait_ns"),
        slowest=rows["slowest_rank"],
    )
