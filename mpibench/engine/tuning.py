"""The poll interval that makes T least, found before the sweep: `--poll-interval tune`.

Every candidate is a strategy of its own, measured as the sweep measures strategies: interleaved, the
same preamble and barriers, spans, checks. Tuned where it matters most, at the message whose N is
nearest the longest compute: a shorter one is hidden anyway, a longer one is exposed anyway.
Like a calibration the result is kept in run.json, and never redone when resuming.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from time import perf_counter
from typing import Any

import numpy as np

from mpibench.analysis.statistics import series_interval
from mpibench.engine.bench import Bench, Load
from mpibench.engine.history import History
from mpibench.engine.order import block_length
from mpibench.engine.phases import phase_names
from mpibench.engine.plan import Visit
from mpibench.engine.session import Session
from mpibench.errors import WrongData
from mpibench.progress.poll import Poll
from mpibench.protocols import COMPUTE, NONBLOCKING, OVERLAPPED, Cell, Marks, Progress, Transfer, Work

UNTUNED_S = 50e-6  # between two tests, until more is known
_SHORTEST_S = 5e-6  # between two tests: a few times what a test costs
_LONGEST_S = 10.0  # for tuning
_MOST = 12  # candidates
_VISITS = 3
_CERTAIN = 0.99  # that a candidate is worse than the least: there are many of them
_PROBE_ITERATIONS = 4
_PROBE_SHARE = 0.3  # of the time, for finding the message

MakesBench = Callable[[Mapping[str, Progress]], Bench]


@dataclass(frozen=True)
class Point:
    """One candidate."""

    interval_s: float  # between two tests, as asked of the kernel
    tests: float  # median number
    overlapped_s: float  # median of T
    lo_s: float  # 95 % interval; NaN where there is none
    hi_s: float
    as_good: bool  # not known to be longer than the least


@dataclass(frozen=True)
class Tuning:
    """The curve and the interval that was taken; kept in run.json."""

    nbytes: int  # message
    compute: str  # label
    ratio: float  # N / C there
    interval_s: float  # the candidate with the least T; UNTUNED_S if none can be told from it
    told: bool  # whether any can
    points: tuple[Point, ...]  # by interval, descending


def read_tuning(run: Mapping[str, Any]) -> Tuning | None:
    """From what run.json holds; None if the poll interval was not searched for."""
    kept = run.get("tuning")  # older runs lack it
    return Tuning(**{**kept, "points": tuple(Point(**point) for point in kept["points"])}) if kept else None


class _Every:
    """poll with a quantum of its own."""

    def __init__(self, quantum: int) -> None:
        self._quantum, self._drive = quantum, Poll().drive

    def drive(self, work: Work, transfer: Transfer, marks: Marks) -> Transfer:
        """As poll, in its own quanta; the others' stand again afterwards."""
        others, marks.quantum = marks.quantum, self._quantum
        rest = self._drive(work, transfer, marks)
        marks.quantum = others
        return rest


def longest_s(budget_s: float) -> float:
    """The time that tuning may take: a tenth of the budget, and no more than some seconds."""
    return min(0.1 * budget_s, _LONGEST_S)


def candidates(steps: int, step_s: float) -> list[int]:
    """Quanta in steps, descending: all steps at once, then each half the one before, down to a few microseconds."""
    found = [steps]
    while len(found) < _MOST and (half := round(found[-1] / 2)) * step_s >= _SHORTEST_S and half < found[-1]:
        found.append(half)
    return found


def tune(
    session: Session, make_bench: MakesBench, cells: Sequence[Cell], loads: Mapping[str, Load], most_s: float
) -> Tuning | None:
    """Measure and choose; the same on all ranks. None if no compute can be split, or there is no time for one turn.

    Args:
        session: MPI.
        make_bench: a bench for these strategies, by name.
        cells: of the sweep that can be measured.
        loads: by compute label.
        most_s: time it may take, in seconds.

    Raises:
        Unsupported: if the MPI library lacks the collective.
        WrongData: if a result was wrong.
    """
    until = perf_counter() + most_s
    split = {label: load.calibration for label, load in loads.items() if load.calibration.steps > 1}
    if not split:
        return None
    label = max(split, key=lambda name: split[name].measured_s)
    step_s = split[label].step_s
    mine = sorted((cell for cell in cells if cell.compute == label), key=lambda cell: cell.nbytes)
    cell, ratio, phase_s = _nearest(session, make_bench({}), mine, _PROBE_SHARE * most_s)
    quanta = candidates(split[label].steps, step_s)
    strategies = {f"every {quantum} steps": _Every(quantum) for quantum in quanta}
    phases = len(phase_names(tuple(strategies)))
    history, bench = History(), make_bench(strategies)
    for number in range(_VISITS):
        left_s = session.on_root(lambda: until - perf_counter())
        if left_s < phases * phase_s:  # an iteration that has begun is ended
            break
        visit = Visit(cell.index, number, block_length(phases), left_s / (_VISITS - number))
        _visit(session, bench, history, cell, visit)
    bench.release()

    def choose() -> Tuning | None:
        if not history.visits(cell.index):
            return None
        points = tuple(_points(history, cell.index, quanta, list(strategies), step_s))
        least = min(points, key=lambda point: point.overlapped_s)
        told = not all(point.as_good for point in points)
        return Tuning(cell.nbytes, label, ratio, least.interval_s if told else UNTUNED_S, told, points)

    return session.on_root(choose)


def _nearest(session: Session, bench: Bench, ascending: Sequence[Cell], most_s: float) -> tuple[Cell, float, float]:
    """The cell whose N is nearest C, N / C there, and about how long a phase takes there, in seconds.

    Goes up until N exceeds C, or the time is over.
    """
    until, history = perf_counter() + most_s, History()
    found: dict[Cell, tuple[float, float]] = {}
    for cell in ascending:
        _visit(session, bench, history, cell, Visit(cell.index, 0, _PROBE_ITERATIONS, most_s / 2))

        def read(cell: Cell = cell) -> tuple[float, float, bool]:
            n, c = (np.median(history.times(cell.index, (name, "")).span) for name in (NONBLOCKING, COMPUTE))
            phase_s = (history.seconds_per_iteration(cell.index) or 0.0) / len(phase_names(()))
            return float(n / c), phase_s, bool(n > c or perf_counter() > until)

        ratio, phase_s, enough = session.on_root(read)
        found[cell] = ratio, phase_s
        if enough:
            break
    bench.release()
    nearest = min(found, key=lambda cell: abs(log(max(found[cell][0], 1e-9))))
    return nearest, *found[nearest]


def _visit(session: Session, bench: Bench, history: History, cell: Cell, visit: Visit) -> None:
    """Measure and keep a visit, on rank 0; wrong results end the tuning on all ranks."""
    session.guard.enter(f"tuning the poll interval at {cell.nbytes} bytes")
    measured = bench.visit(cell, visit, False)

    def keep() -> None:
        assert measured is not None
        if measured.wrong:
            raise WrongData(f"{measured.wrong} wrong elements at {cell.nbytes} bytes")
        history.add(cell.index, measured.samples, measured.seconds, measured.local)

    session.on_root(keep)


def _points(history: History, cell: int, quanta: Sequence[int], names: Sequence[str], step_s: float) -> Iterator[Point]:
    times = [history.times(cell, (OVERLAPPED, name)) for name in names]
    least = min(times, key=lambda t: float(np.median(t.span)))
    for quantum, taken in zip(quanta, times, strict=True):
        more = series_interval(taken.span - least.span, _CERTAIN)  # by iteration: what disturbs one disturbs all
        yield Point(
            quantum * step_s,
            float(np.median(taken.tests)),
            *series_interval(taken.span),
            taken is least or not more.lo > 0,
        )
