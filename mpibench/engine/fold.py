"""From all ranks' stamps of a visit to the rows of the files. Pure; rank 0 calls it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpibench.engine import measure
from mpibench.engine.clocks import spans
from mpibench.engine.phases import PhaseName
from mpibench.records import ABSENT, SAMPLE_COLUMNS, SAMPLE_DTYPE

_PARTS = {
    "start_ns": measure.START,
    "during_ns": measure.DURING,
    "test_ns": measure.TEST,
    "tests": measure.TESTS,
    "wait_ns": measure.WAIT,
}


class Where(NamedTuple):
    """What a visit's rows have in common."""

    cell: int  # index
    visit: int  # of the cell's visits, from 0
    hosts: Sequence[str]  # by rank
    common_clock: bool  # whether the ranks' stamps can be compared


@dataclass(frozen=True)
class Measured:
    """A visit as rank 0 keeps it."""

    samples: Any  # of records.SAMPLE_DTYPE, hot loops first, then in the order in which phases ran
    ranks: list[tuple[Any, ...]]  # rows of ranks.csv
    rank_samples: list[tuple[Any, ...]]  # rows of rank_samples.csv; empty unless asked for
    wrong: int  # elements, over all ranks and phases
    seconds: float  # that its iterations took, preambles and checks included


def fold(
    where: Where, names: Sequence[PhaseName], every: Any, hot: Mapping[str, Any], seconds: float, keep_ranks: bool
) -> Measured:
    """Combine the ranks' stamps.

    Args:
        where: what the rows have in common.
        names: of the phases of `every`.
        every: int64, (ranks, iterations, phases, measure.FIELDS).
        hot: by phase, int64, (ranks, calls, 1, measure.FIELDS).
        seconds: what the iterations took.
        keep_ranks: whether every rank's times are kept.
    """
    parts = [((name, ""), stamps[:, :, 0]) for name, stamps in hot.items()]
    parts += [(name, every[:, :, index]) for index, name in enumerate(names)]
    samples = [_samples(where, name, stamps) for name, stamps in parts]
    timed = np.concatenate(samples[len(hot) :])
    timed = timed[np.lexsort((timed["position"], timed["iteration"]))]
    return Measured(
        np.concatenate([*samples[: len(hot)], timed]),
        [row for name, stamps in parts for row in _rank_rows(where, name, stamps)],
        [row for name, stamps in parts if keep_ranks for row in _rank_sample_rows(where, name, stamps)],
        sum(int(stamps[..., measure.WRONG].sum()) for _, stamps in parts),
        seconds,
    )


def _samples(where: Where, name: PhaseName, stamps: Any) -> Any:
    """Rows of samples.csv for one phase from stamps (ranks, iterations, FIELDS)."""
    iterations = stamps.shape[1]
    rows = np.full(iterations, ABSENT, dtype=[(column, SAMPLE_DTYPE[column]) for column in SAMPLE_COLUMNS])
    span = spans(stamps[..., measure.BEGIN], stamps[..., measure.END], where.common_clock)
    slowest = stamps[span.slowest, np.arange(iterations)]
    rows["cell"], rows["visit"], rows["iteration"] = where.cell, where.visit, np.arange(iterations)
    rows["phase"], rows["progress"] = name
    rows["span_ns"], rows["skew_ns"], rows["slowest_rank"] = span
    rows["position"] = slowest[:, measure.POSITION]
    for column, field in _PARTS.items():
        rows[column] = slowest[:, field]
    rows["cpu_wait_ns"] = stamps[..., measure.CPU_WAIT].max(axis=0)
    return rows


def _rank_rows(where: Where, name: PhaseName, stamps: Any) -> list[tuple[Any, ...]]:
    """Rows of ranks.csv for one phase."""
    medians = np.median(stamps[..., measure.END] - stamps[..., measure.BEGIN], axis=1)
    waits = np.median(stamps[..., measure.WAIT], axis=1)
    return [
        (where.cell, where.visit, rank, host, *name, stamps.shape[1], int(medians[rank]), int(waits[rank]))
        for rank, host in enumerate(where.hosts)
    ]


def _rank_sample_rows(where: Where, name: PhaseName, stamps: Any) -> list[tuple[Any, ...]]:
    """Rows of rank_samples.csv for one phase."""
    fields = (measure.BEGIN, measure.END, *_PARTS.values(), measure.CPU_WAIT)
    return [
        (where.cell, where.visit, iteration, *name, rank, *stamps[rank, iteration, fields].tolist())
        for iteration in range(stamps.shape[1])
        for rank in range(stamps.shape[0])
    ]
