"""From all ranks' stamps of a visit to the rows of the files. Pure; rank 0 calls it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpibench.engine import measure
from mpibench.engine.clocks import Spans, spans
from mpibench.engine.offsets import Clocks
from mpibench.engine.phases import PhaseName
from mpibench.protocols import COMPUTE, NONBLOCKING, NONBLOCKING_HOT, OVERLAPPED
from mpibench.records import ABSENT, SAMPLE_COLUMNS, SAMPLE_DTYPE

_PARTS = {
    "start_ns": measure.START,
    "during_ns": measure.DURING,
    "test_ns": measure.TEST,
    "tests": measure.TESTS,
    "wait_ns": measure.WAIT,
}
_STAMPS = [measure.BEGIN, measure.END]
_CERTAIN = 5  # clocks tell a span if their uncertainty is at most one part in so many of N


class Where(NamedTuple):
    """What a visit's rows have in common."""

    cell: int  # index
    visit: int  # of the cell's visits, from 0
    hosts: Sequence[str]  # by rank
    clocks: Clocks  # how the ranks' clocks differ
    carries: bool  # whether its messages hold anything


class Iteration(NamedTuple):
    """One iteration as a timeline."""

    visit: int  # of the cell
    number: int  # of the visit's iterations
    names: Sequence[PhaseName]  # of the phases
    stamps: Any  # int64, (ranks, phases, measure.FIELDS); begin and end on rank 0's clock
    uncertainty_ns: float  # between any two ranks


@dataclass(frozen=True)
class Measured:
    """A visit as rank 0 keeps it."""

    samples: Any  # of records.SAMPLE_DTYPE, hot loops first, then in the order in which phases ran
    local: Any  # the same by the slowest local durations; None if all ranks read one clock
    ranks: list[tuple[Any, ...]]  # rows of ranks.csv
    rank_samples: list[tuple[Any, ...]]  # rows of rank_samples.csv; empty unless asked for
    wrong: int  # elements, over all ranks and phases
    early: int  # messages received before they were sent, by clocks that must then be wrong
    typical: dict[str, Iteration]  # by strategy, the iteration whose T is nearest its median
    seconds: float  # that its iterations took, preambles and checks included


class _Part(NamedTuple):
    """One phase of a visit, by the ranks' own clocks and by rank 0's."""

    name: PhaseName
    own: Any  # (ranks, iterations, FIELDS)
    root: Any  # the same, begin and end by rank 0's clock

    def spans(self, common: bool) -> Spans:
        stamps = self.root if common else self.own
        return spans(stamps[..., measure.BEGIN], stamps[..., measure.END], common)


def fold(
    where: Where, names: Sequence[PhaseName], every: Any, hot: Mapping[str, Any], seconds: float, keep_ranks: bool
) -> Measured:
    """Combine the ranks' stamps.

    Where hosts have clocks of their own, the spans are those of the corrected stamps if the clocks
    are known to a fifth of N and no message was received before it was sent; else the slowest local
    durations, with an empty skew. All phases of a visit are taken the same way; so are the hot loops,
    by their own N.

    Args:
        where: what the rows have in common.
        names: of the phases of `every`.
        every: int64, (ranks, iterations, phases, measure.FIELDS).
        hot: by phase, int64, (ranks, calls, 1, measure.FIELDS).
        seconds: what the iterations took.
        keep_ranks: whether every rank's times are kept.
    """
    timed = _on_root(where.clocks, every)
    loops = [_Part((name, ""), own[:, :, 0], _on_root(where.clocks, own)[:, :, 0]) for name, own in hot.items()]
    phases = [_Part(name, every[:, :, index], timed[:, :, index]) for index, name in enumerate(names)]
    parts = [*loops, *phases]
    uncertainty = max(where.clocks.uncertainty_ns(stamps[..., _STAMPS]) for stamps in (every, *hot.values()))
    early = where.clocks.early + sum(_early(part, uncertainty) for part in parts if where.carries)
    common = where.clocks.one or (not early and _certain(phases, uncertainty))
    common_hot = where.clocks.one or (not early and _certain(loops, uncertainty))
    return Measured(
        _all_samples(where, loops, phases, common_hot, common),
        None if where.clocks.one else _all_samples(where, loops, phases, False, False),
        [row for part in parts for row in _rank_rows(where, part)],
        [row for part in parts if keep_ranks for row in _rank_sample_rows(where, part)],
        sum(int(part.own[..., measure.WRONG].sum()) for part in parts),
        early,
        {part.name[1]: _typical(where, names, timed, part.spans(common).span, uncertainty)
         for part in phases if part.name[0] == OVERLAPPED},
        seconds,
    )  # fmt: skip


def _on_root(clocks: Clocks, own: Any) -> Any:
    """Stamps (ranks, ..., FIELDS) with begin and end by rank 0's clock."""
    if clocks.one:
        return own
    there = own.copy()
    there[..., _STAMPS] = clocks.to_root(own[..., _STAMPS])
    return there


def _early(part: _Part, uncertainty: float) -> int:
    """Operations that a rank ended before another had begun: no rank has the sum before all have sent their part."""
    if part.name[0] == COMPUTE:
        return 0
    first_end = part.root[..., measure.END].min(axis=0)
    return int((first_end + uncertainty < part.root[..., measure.BEGIN].max(axis=0)).sum())


def _certain(phases: Sequence[_Part], uncertainty: float) -> bool:
    """Whether the clocks are known to a fifth of N."""
    named = (NONBLOCKING, NONBLOCKING_HOT)
    nonblocking = [float(np.median(part.spans(True).span)) for part in phases if part.name[0] in named]
    return all(_CERTAIN * uncertainty <= span for span in nonblocking)


def _typical(where: Where, names: Sequence[PhaseName], timed: Any, overlapped: Any, uncertainty: float) -> Iteration:
    """The iteration whose T is nearest its median."""
    number = int(np.abs(overlapped - np.median(overlapped)).argmin())
    return Iteration(where.visit, number, names, timed[:, number].copy(), uncertainty)


def _all_samples(where: Where, loops: Sequence[_Part], phases: Sequence[_Part], common_hot: bool, common: bool) -> Any:
    """Rows of samples.csv: hot loops first, then in the order in which phases ran."""
    timed = np.concatenate([_samples(where, part, common) for part in phases])
    timed = timed[np.lexsort((timed["position"], timed["iteration"]))]
    return np.concatenate([*(_samples(where, part, common_hot) for part in loops), timed])


def _samples(where: Where, part: _Part, common: bool) -> Any:
    """Rows of samples.csv for one phase."""
    iterations = part.own.shape[1]
    rows = np.full(iterations, ABSENT, dtype=[(column, SAMPLE_DTYPE[column]) for column in SAMPLE_COLUMNS])
    span = part.spans(common)
    slowest = part.own[span.slowest, np.arange(iterations)]
    rows["cell"], rows["visit"], rows["iteration"] = where.cell, where.visit, np.arange(iterations)
    rows["phase"], rows["progress"] = part.name
    rows["span_ns"], rows["skew_ns"], rows["slowest_rank"] = span
    rows["position"] = slowest[:, measure.POSITION]
    for column, field in _PARTS.items():
        rows[column] = slowest[:, field]
    rows["cpu_wait_ns"] = part.own[..., measure.CPU_WAIT].max(axis=0)
    return rows


def _rank_rows(where: Where, part: _Part) -> list[tuple[Any, ...]]:
    """Rows of ranks.csv for one phase."""
    medians = np.median(part.own[..., measure.END] - part.own[..., measure.BEGIN], axis=1)
    waits = np.median(part.own[..., measure.WAIT], axis=1)
    return [
        (where.cell, where.visit, rank, host, *part.name, part.own.shape[1], int(medians[rank]), int(waits[rank]))
        for rank, host in enumerate(where.hosts)
    ]


def _rank_sample_rows(where: Where, part: _Part) -> list[tuple[Any, ...]]:
    """Rows of rank_samples.csv for one phase."""
    fields = (measure.BEGIN, measure.END, *_PARTS.values(), measure.CPU_WAIT)
    return [
        (where.cell, where.visit, iteration, *part.name, rank, *part.root[rank, iteration, fields].tolist())
        for iteration in range(part.root.shape[1])
        for rank in range(part.root.shape[0])
    ]
