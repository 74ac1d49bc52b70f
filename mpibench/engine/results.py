"""From the samples to the rows of the tables: a pure function of the plan, the history and the facts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isnan, sqrt
from typing import Any

import numpy as np

from mpibench.analysis.crossover import Cover, CoverInput, Hidden, classify, cover_point, hidden_point
from mpibench.analysis.figures import case_figures
from mpibench.analysis.refinement import next_for_cover, next_for_hidden
from mpibench.analysis.statistics import groups_apart, series_interval
from mpibench.analysis.verdict import CORE_SHARE, SKIPPED, WRONG_DATA, judge, slow_blocking
from mpibench.engine import stopping
from mpibench.engine.cells import case_name
from mpibench.engine.exposures import SizeExposure, exposures
from mpibench.engine.history import History
from mpibench.engine.plan import Plan, outcome, worst_interval
from mpibench.protocols import (
    ALLREDUCE,
    ALLREDUCE_HOT,
    COMPUTE,
    NONBLOCKING,
    NONBLOCKING_HOT,
    OVERLAPPED,
    SEQUENTIAL,
    Cell,
    Record,
)

_TOO_DEPENDENT = 3.0  # iterations over effective iterations
UNRESOLVED = "unresolved"


@dataclass(frozen=True)
class Facts:
    """What is the same for all rows of a run; kept in run.json."""

    ranks: int  # of the communicator
    nodes: int  # hosts
    thread_level: str  # provided
    oversubscribed: bool  # more ranks than cores on a host
    blas_threads: int  # per rank
    device: str  # cpu or cuda
    buffers: str  # what MPI was handed
    poll_interval_s: float  # target between tests
    common_clock: bool  # all ranks read one clock
    device_driven: bool  # the host is free while the kernel runs
    emulated: bool  # no device really computed
    checked: bool  # results were compared
    async_progress: str = ""  # the setting of the library's own progress thread, as NAME=VALUE
    poll_tuned: bool = False  # the poll interval is the best of those tried


@dataclass(frozen=True)
class Crossover:
    """One row of crossover.csv: a compute under a strategy, over all sizes."""

    cells: tuple[Cell, ...]  # ascending in nbytes
    progress: str
    compute_s: float  # median over the cells; NaN if nothing was measured
    cover: Cover
    hidden: Hidden
    wanted: tuple[float, ...] = ()  # message sizes in bytes that would sharpen these two points


@dataclass(frozen=True)
class Results:
    """All that the tables and the screen show."""

    records: tuple[Record, ...]  # by cell, then strategy
    crossovers: tuple[Crossover, ...]  # by compute, then strategy
    exposures: tuple[SizeExposure, ...]  # by strategy, then size


def evaluate(plan: Plan, history: History, facts: Facts) -> Results:
    """Every case's figures, the crossovers, and the verdicts that follow from both."""
    records: dict[tuple[int, str], Record] = {}
    crossovers = []
    for compute in dict.fromkeys(cell.compute for cell in plan.cells):
        cells = sorted((cell for cell in plan.cells if cell.compute == compute), key=lambda cell: cell.nbytes)
        for progress in plan.strategies:
            family = [_record(plan, history, facts, cell, progress) for cell in cells]
            crossover, classes = _crossover(plan, cells, progress, family, history)
            crossovers.append(crossover)
            for record, class_ in zip(family, classes, strict=True):
                records[record.cell.index, progress] = _judged(record, class_, plan, facts)
    ordered = tuple(records[cell.index, progress] for cell in _in_order(plan) for progress in plan.strategies)
    return Results(ordered, tuple(crossovers), exposures(ordered))


def _in_order(plan: Plan) -> list[Cell]:
    """The cells as they were asked for, each refined one behind the largest smaller message of its compute."""
    ordered = [cell for cell in plan.cells if not cell.refined]
    for cell in sorted((cell for cell in plan.cells if cell.refined), key=lambda cell: cell.nbytes):
        smaller = [other for other in ordered if other.compute == cell.compute and other.nbytes < cell.nbytes]
        ordered.insert(ordered.index(max(smaller, key=lambda other: other.nbytes)) + 1, cell)
    return ordered


def _record(plan: Plan, history: History, facts: Facts, cell: Cell, progress: str) -> Record:
    """A case with its figures, not yet judged; or the reason why it has none."""
    name = case_name(cell, progress)
    notes = list(_notes(facts, cell, history))
    if reason := cell.skip or history.skipped.get(cell.index, ""):
        return Record(name, cell, progress, "skipped", SKIPPED, reason, "", (*notes, reason))
    wrong = history.wrong.get(cell.index, 0)
    if wrong:
        return Record(
            name, cell, progress, "failed", WRONG_DATA, f"{wrong} elements of a result were wrong",
            "check a kernel of your own; else do not use this collective here, and report it to the library's makers",
            (*notes, f"{wrong} wrong elements"), {"wrong": wrong, "iterations": history.iterations(cell.index)},
        )  # fmt: skip
    if not history.iterations(cell.index):
        evidence = "the run ended before it was measured"
        return Record(name, cell, progress, "not-converged", UNRESOLVED, evidence, "a larger --budget, or fewer sizes",
                      (*notes, evidence), {"iterations": 0})  # fmt: skip
    b, n, c, s = (history.times(cell.index, (p, "")) for p in (ALLREDUCE, NONBLOCKING, COMPUTE, SEQUENTIAL))
    t = history.times(cell.index, (OVERLAPPED, progress))
    figures = case_figures(b, n, c, s, t, nbytes=cell.nbytes, ranks=facts.ranks, host_driven=not facts.device_driven)
    same = [other.index for other in plan.cells if other.count == cell.count]
    figures["allreduce_hot_s"] = history.hot_median(same, ALLREDUCE_HOT)
    figures["nonblocking_hot_s"] = history.hot_median(same, NONBLOCKING_HOT)
    if facts.checked:
        figures["wrong"] = 0
    status, why = _status(plan, history, cell, progress, figures)
    return Record(name, cell, progress, status, notes=tuple([*notes, why] if why else notes), figures=figures)


def _notes(facts: Facts, cell: Cell, history: History) -> Iterator[str]:
    """What could mislead in any row."""
    if facts.emulated:
        yield "emulated accelerator"
    if cell.nbytes != cell.asked_nbytes:
        yield f"{cell.asked_nbytes} B asked, {cell.nbytes} B sent: whole elements of {cell.dtype}"
    if early := history.early.get(cell.index):
        yield f"slowest local durations: by the hosts' clocks {early} messages were received before they were sent"
    elif history.is_local(cell.index):
        yield "slowest local durations: the hosts' clocks are known no better than to a fifth of N"
    if not facts.checked:
        yield "results not checked"
    if facts.oversubscribed:
        yield "more ranks than cores"
    if facts.async_progress:
        yield f"the library's own progress thread was asked for: {facts.async_progress}"


def _status(plan: Plan, history: History, cell: Cell, progress: str, figures: Mapping[str, float]) -> tuple[str, str]:
    """The row's status and, unless it converged, by how much it missed."""
    dependence = figures["iterations"] / figures["effective_iterations"]
    if dependence > _TOO_DEPENDENT:
        return "unstable", f"{dependence:.1f} iterations tell as much as one independent one"
    for phase, name in (((NONBLOCKING, ""), "N"), ((OVERLAPPED, progress), "T")):
        times = history.times(cell.index, phase).span
        apart = groups_apart(history.by_visit(cell.index, times)) / np.median(times)
        if apart > plan.precision:
            return "unstable", f"{name} differs by {apart:.0%} between visits, beyond their intervals"
    word = outcome(plan, history, cell.index, last=True)
    if word == stopping.CONVERGED:
        return "converged", ""
    worst = worst_interval(plan, history, cell.index)
    missed = f"widest interval of the cell {worst:.1f} x the asked precision (at 99 %)"
    if np.isinf(worst):
        missed = "too few independent iterations for an interval at 99 %"
    return (UNRESOLVED if word == stopping.FUTILE else "not-converged"), missed


def _crossover(
    plan: Plan, cells: Sequence[Cell], progress: str, family: Sequence[Record], history: History
) -> tuple[Crossover, list[str]]:
    """The crossover of one compute under one strategy, and the class of every size."""
    points, exposed, allreduce, computes = [], [], [], []
    for cell, record in zip(cells, family, strict=True):
        trusted = "overlap" in record.figures and not record.figures["cpu_wait_share"] > CORE_SHARE
        b, n, c = (history.times(cell.index, (p, "")) for p in (ALLREDUCE, NONBLOCKING, COMPUTE))
        t = history.times(cell.index, (OVERLAPPED, progress))
        exposed.append(t.span - c.span if trusted else np.empty(0))
        allreduce.append(b.span if trusted else np.empty(0))
        if trusted:
            excess = series_interval(n.span - c.span)
            half = inf if isnan(excess.lo) else (excess.hi - excess.lo) / 2
            reachable = half * sqrt(len(n.span) / max(plan.iterations.most, len(n.span)))
            points.append(CoverInput(cell.nbytes, excess, float(np.median(n.span)), reachable))
            computes.append(float(np.median(c.span)))
    classes = classify(exposed, allreduce)
    compute_s = float(np.median(computes)) if computes else float("nan")
    sized = [(cell.nbytes, class_) for cell, record, class_ in zip(cells, family, classes, strict=True)
             if "overlap" in record.figures]  # fmt: skip
    sizes = [size for size, _ in sized]
    cover, hidden = cover_point(points, sizes), hidden_point(sizes, [class_ for _, class_ in sized])
    nexts = (next_for_cover(points, cover, plan.precision), next_for_hidden(sizes, hidden, plan.precision))
    cover = replace(cover, note="; ".join(filter(None, [cover.note, nexts[0].note])))
    wanted = tuple(step.nbytes for step in nexts if step.nbytes is not None)
    return Crossover(tuple(cells), progress, compute_s, cover, hidden, wanted), classes


def _judged(record: Record, class_: str, plan: Plan, facts: Facts) -> Record:
    if record.verdict or "overlap" not in record.figures:
        return record
    others = [name for name in plan.strategies if name != record.progress]
    verdict = judge(record.figures, class_, record.progress, others, facts.async_progress, facts.poll_tuned)
    notes = tuple(filter(None, (*record.notes, verdict.note, slow_blocking(record.figures))))
    return replace(record, verdict=verdict.word, evidence=verdict.evidence, advice=verdict.advice, notes=notes)


def overlap_row(record: Record, facts: Facts) -> dict[str, Any]:
    """A row of overlap.csv by column name. Figures that are counts are whole numbers."""
    cell = asdict(record.cell)
    row: dict[str, Any] = {**cell, **asdict(facts), **record.figures}
    for name in ("iterations", "outliers", "slowest_rank", "wrong"):
        if name in record.figures:
            row[name] = int(record.figures[name])
    text = "; ".join(filter(None, [*record.notes, record.evidence, record.advice and f"try: {record.advice}"]))
    return row | {
        "case": record.case, "cell": record.cell.index, "progress": record.progress, "refined": cell["refined"],
        "status": record.status, "verdict": record.verdict, "note": text,
    }  # fmt: skip


def crossover_row(crossover: Crossover, facts: Facts) -> dict[str, Any]:
    """A row of crossover.csv by column name."""
    cover, hidden = crossover.cover, crossover.hidden
    notes = [cover.note, hidden.note, "emulated accelerator" if facts.emulated else ""]
    return {
        "collective": crossover.cells[0].collective, "kernel": crossover.cells[0].kernel,
        "compute_s": crossover.compute_s, "progress": crossover.progress, "poll_interval_s": facts.poll_interval_s,
        "cover_nbytes": cover.nbytes, "cover_lo": cover.lo, "cover_hi": cover.hi, "cover_status": cover.status,
        "hidden_nbytes": hidden.nbytes, "hidden_lo": hidden.lo, "hidden_hi": hidden.hi,
        "hidden_from_nbytes": hidden.from_nbytes, "hidden_status": hidden.status,
        "note": "; ".join(filter(None, notes)),
    }  # fmt: skip
