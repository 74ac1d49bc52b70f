"""What mpibench says of a network whose answer is known, read back from the files of a run.

A figure is a function from an `Outcome` to readings; checks.py says what each must be. A row in which a rank
waited for a core tells of the machine and not of the instrument: mpibench calls it unresolved itself, so that it
is left out, except where that word is what is asked for. So is a row with too few independent iterations for an
interval.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpibench.analysis.crossover import UNRESOLVED
from mpibench.analysis.statistics import Interval, series_interval
from mpibench.analysis.verdict import UNRESOLVED_VERDICT, WAITED_NOTE, WRONG_DATA
from mpibench.protocols import COMPUTE, NONBLOCKING, OVERLAPPED
from mpibench.records import (
    CROSSOVER_COLUMNS,
    EXPOSURE_COLUMNS,
    OVERLAP_COLUMNS,
    RANK_COLUMNS,
    read_samples,
    read_table,
)
from mpibench.selftest.wire import Wire
from mpibench.units import format_bytes

Row = Mapping[str, str]
_UNSTABLE = "unstable"  # a status of overlap.csv


class Reading(NamedTuple):
    """One figure at one place. NaN limits: it has no interval."""

    where: str  # such as "64K poll"
    value: float
    lo: float = nan
    hi: float = nan


@dataclass(frozen=True)
class Outcome:
    """A run that has ended."""

    directory: Path  # of the run
    log: str  # everything that it printed
    wire: Wire  # what it ran on
    compute_s: tuple[float, ...]  # that were asked for

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        """The measured rows of overlap.csv."""
        return [row for row in read_table(self.directory / "overlap.csv", OVERLAP_COLUMNS) if row["allreduce_s"]]

    def told(self, least_nbytes: int, progress: Sequence[str] = ()) -> list[dict[str, str]]:
        """Rows with an interval, from a size on, of these strategies or all, in which no rank waited for a core."""
        return [
            row for row in self.rows
            if int(row["nbytes"]) >= least_nbytes and row["overlap_lo"] and WAITED_NOTE not in row["note"]
            and (not progress or row["progress"] in progress)
        ]  # fmt: skip

    def whole(self, row: Row) -> bool:
        """Whether all rows that a row of crossover.csv is made of are told."""
        told, all_ = ([r["progress"] for r in rows].count(row["progress"]) for rows in (self.told(0), self.rows))
        return told == all_


Figure = Callable[[Outcome], list[Reading]]


def _number(text: str) -> float:
    return float(text) if text else nan


def _name(row: Row) -> str:
    return f"{format_bytes(int(row['nbytes']))} {row['progress']}"


def share_blank(outcome: Outcome) -> list[Reading]:
    """The share of rows that are called wrong data and hold no time."""
    rows = read_table(outcome.directory / "overlap.csv", OVERLAP_COLUMNS)
    return _share(rows, lambda row: row["verdict"] == WRONG_DATA and not row["allreduce_s"] and not row["overlap"])


def cover_error(outcome: Outcome) -> list[Reading]:
    """The cover point over the true one, less 1; NaN where none was found although every row is told."""
    true = outcome.wire.covered_nbytes(outcome.compute_s[0])
    return [
        Reading(row["progress"], *(_number(row[f"cover_{limit}"]) / true - 1 for limit in ("nbytes", "lo", "hi")))
        for row in read_table(outcome.directory / "crossover.csv", CROSSOVER_COLUMNS)
        if row["cover_nbytes"] or outcome.whole(row)
    ]


def overlap(least_nbytes: int, *progress: str) -> Figure:
    """Overlap of every row from a size on."""

    def figure(outcome: Outcome) -> list[Reading]:
        rows = outcome.told(least_nbytes, progress)
        return [Reading(_name(row), *(_number(row[f"overlap{limit}"]) for limit in ("", "_lo", "_hi"))) for row in rows]

    return figure


def overlap_and_start(least_nbytes: int, *progress: str) -> Figure:
    """Overlap and the share of N that the start call takes, of every row from a size on.

    What the host spends in the start is hidden by nothing: on a network that moves on alone the two make 1.
    """

    def figure(outcome: Outcome) -> list[Reading]:
        shares = [
            float(row["start_s"]) / min(float(row["nonblocking_s"]), float(row["compute_s"]))
            for row in outcome.told(least_nbytes, progress)
        ]
        readings = overlap(least_nbytes, *progress)(outcome)
        return [
            Reading(r.where, r.value + share, r.lo + share, r.hi + share)
            for r, share in zip(readings, shares, strict=True)
        ]

    return figure


def joint_overlap(outcome: Outcome) -> list[Reading]:
    """Overlap of every row from its samples, with intervals that hold 95 % over all rows together (Bonferroni)."""
    rows = outcome.told(0)
    samples, _ = read_samples(outcome.directory)
    readings = [Reading(_name(row), *_overlap(samples, row, 1 - 0.05 / len(rows))) for row in rows]
    return [reading for reading in readings if not isnan(reading.lo)]  # too few independent iterations for that


def table_error(outcome: Outcome) -> list[Reading]:
    """Overlap in the table less the median of what the samples give, of every row."""
    samples, _ = read_samples(outcome.directory)
    return [Reading(_name(row), _number(row["overlap"]) - _overlap(samples, row, 0.95).median) for row in outcome.rows]


def _overlap(samples: Any, row: Row, confidence: float) -> Interval:
    mine = samples[samples["cell"] == int(row["cell"])]

    def spans(phase: str, progress: str = "") -> NDArray[np.float64]:
        part = mine[(mine["phase"] == phase) & (mine["progress"] == progress)]
        ordered: NDArray[np.float64] = part[np.lexsort((part["iteration"], part["visit"]))]["span_ns"].astype(float)
        return ordered

    n, c, t = spans(NONBLOCKING), spans(COMPUTE), spans(OVERLAPPED, row["progress"])
    return series_interval((n + c - t) / np.minimum(n, c), confidence)


def efficiency_error(*progress: str) -> Figure:
    """The progress efficiency less the share that the wire was told; NaN where there was something to fit."""

    def figure(outcome: Outcome) -> list[Reading]:
        share = float(outcome.wire.progress)
        return [
            Reading(_name(row), *(_number(row[f"efficiency{limit}"]) - share for limit in ("", "_lo", "_hi")))
            for row in read_table(outcome.directory / "exposure.csv", EXPOSURE_COLUMNS)
            if row["progress"] in progress and "no interval to fit" not in row["note"]
        ]

    return figure


def share_of_verdicts(least_nbytes: int, *words: str, busy: bool = False) -> Figure:
    """The share of rows from a size on that have one of these verdicts. `busy`: rows that waited for a core too."""

    def figure(outcome: Outcome) -> list[Reading]:
        rows = outcome.told(least_nbytes)
        if busy:
            rows = [row for row in outcome.rows if int(row["nbytes"]) >= least_nbytes]
        return _share(rows, lambda row: row["verdict"] in words)

    return figure


def share_safe(least_nbytes: int, least_overlap: float) -> Figure:
    """The share of rows from a size on that read at least so much overlap, or are unresolved."""

    def figure(outcome: Outcome) -> list[Reading]:
        rows = [row for row in outcome.rows if int(row["nbytes"]) >= least_nbytes]
        return _share(
            rows, lambda row: row["verdict"] == UNRESOLVED_VERDICT or _number(row["overlap"]) >= least_overlap
        )

    return figure


def share_waiting_least(rank: int) -> Figure:
    """The share of visits in which this rank waits least after its start (N): the others wait for it."""

    def figure(outcome: Outcome) -> list[Reading]:
        waits: dict[tuple[str, str], dict[int, int]] = {}
        cells = {row["cell"] for row in outcome.told(0)}
        for row in read_table(outcome.directory / "ranks.csv", RANK_COLUMNS):
            if row["phase"] == NONBLOCKING and row["cell"] in cells:
                waits.setdefault((row["cell"], row["visit"]), {})[int(row["rank"])] = int(row["wait_ns"])
        found = [min(ranks, key=ranks.__getitem__) == rank for ranks in waits.values()]
        return [Reading("", sum(found) / len(found))] if found else []

    return figure


def share_never_hidden(outcome: Outcome) -> list[Reading]:
    """The share of crossovers whose hidden point is "never", of those whose rows all tell.

    Where iterations depend on each other, sizes can stay unclassified: then "unresolved" is right, if it hides none.
    """
    unstable = {row["progress"] for row in outcome.rows if row["status"] == _UNSTABLE}
    rows = [
        row for row in read_table(outcome.directory / "crossover.csv", CROSSOVER_COLUMNS)
        if outcome.whole(row)
        and not (row["progress"] in unstable and row["hidden_status"] == UNRESOLVED and not row["hidden_nbytes"])
    ]  # fmt: skip
    return _share(rows, lambda row: row["hidden_status"] == "never")


def stuck_told(outcome: Outcome) -> list[Reading]:
    """Whether the message says that the job is stuck."""
    return [Reading("", float("stuck: no phase finished" in outcome.log))]


def _share(rows: Sequence[Row], holds: Callable[[Row], bool]) -> list[Reading]:
    """One reading: the share, with the first row for which it does not hold; none without rows."""
    if not rows:
        return []
    others = [row for row in rows if not holds(row)]
    where = f"not {_name(others[0])}: {others[0]['verdict']}" if others and "verdict" in others[0] else ""
    return [Reading(where, 1 - len(others) / len(rows))]


def wire_in_effect(outcome: Outcome) -> bool:
    """Whether every blocking call took at least the time that the wire takes: the launcher loaded the interposer."""
    return all(float(row["allreduce_s"]) > 0.9 * outcome.wire.duration_s(float(row["nbytes"])) for row in outcome.rows)
