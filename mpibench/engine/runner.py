"""Runs a plan to its end: rank 0 decides, all measure, rank 0 keeps the record and the tables.

The record on disk leads: a visit is on disk before the next one is decided, and the tables are
made anew from it after every pass and whenever the run ends, in order or not.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any, Protocol

from mpibench.engine.bench import Bench
from mpibench.engine.calibrate import Calibration
from mpibench.engine.cells import case_name
from mpibench.engine.exposures import exposure_row
from mpibench.engine.fold import Measured
from mpibench.engine.history import History
from mpibench.engine.plan import Plan, Visit, next_visit, outcome
from mpibench.engine.refinement import grow
from mpibench.engine.results import Facts, Results, crossover_row, evaluate, overlap_row
from mpibench.engine.session import Session
from mpibench.engine.stopping import GO_ON
from mpibench.engine.trace import Trace
from mpibench.errors import DiskFault, Unsupported
from mpibench.protocols import ALLREDUCE_HOT, Caution, Cell
from mpibench.records import CROSSOVER_COLUMNS, EXPOSURE_COLUMNS, OVERLAP_COLUMNS, RunDirectory, read_run, read_samples
from mpibench.units import IterationRange, format_bytes

_OWN = ("plan", "facts", "wrong", "skipped")  # keys of run.json that a Store holds as objects


class Reporter(Protocol):
    """Told of a run's course on rank 0; prints, or does not."""

    def begin(
        self, plan: Plan, facts: Facts, calibrations: Mapping[str, Calibration], path: Path, cautions: Sequence[Caution]
    ) -> None:
        """What is going to be measured, and what could mislead."""

    def say(self, text: str) -> None:
        """What goes on."""

    def warn(self, text: str) -> None:
        """Something that must be said, even if quiet."""

    def pass_done(self, number: int, cells: int, finished: int, elapsed_s: float, budget_s: float) -> None:
        """A pass is over."""


@dataclasses.dataclass
class Store:
    """A run on disk and in memory; on rank 0 only."""

    directory: RunDirectory
    plan: Plan
    facts: Facts
    history: History
    run: dict[str, Any]  # what run.json holds beside this
    passes: int = 0  # of this launch
    clocks: Callable[[], list[dict[str, Any]]] = list  # tells how the hosts' clocks differ, for run.json
    trace: Trace | None = None  # typical iterations, if a trace is asked for

    def write_tables(self, ended: str) -> Results:
        """Bring every table and run.json up to date. `ended` is how the run ended; empty while it runs."""
        results = evaluate(self.plan, self.history, self.facts)
        if self.run["launches"][-1]["ended"]:
            return results  # the last tables are written: the first reason to end counts
        self.run["launches"][-1] |= {"end": now(), "ended": ended}
        self.write_run()
        rows = [overlap_row(record, self.facts) for record in results.records]
        self.directory.write_table("overlap.csv", OVERLAP_COLUMNS, rows)
        crossovers = [crossover_row(crossover, self.facts) for crossover in results.crossovers]
        self.directory.write_table("crossover.csv", CROSSOVER_COLUMNS, crossovers)
        sizes = [exposure_row(size, self.facts.emulated) for size in results.exposures]
        self.directory.write_table("exposure.csv", EXPOSURE_COLUMNS, sizes)
        if self.trace is not None:
            self.directory.write_trace(self.trace.document([record.case for record in results.records]))
        return results

    def write_run(self) -> None:
        """Bring run.json up to date."""
        plan = {
            "cells": [dataclasses.asdict(cell) for cell in self.plan.cells],
            "strategies": self.plan.strategies,
            "precision": self.plan.precision,
            "iterations": self.plan.iterations,
        }
        state = {"wrong": self.history.wrong, "skipped": self.history.skipped, "early": self.history.early}
        if clocks := self.clocks():
            self.run["launches"][-1]["clocks"] = clocks
        self.directory.write_run({**self.run, "facts": dataclasses.asdict(self.facts), "plan": plan, **state})


def load(path: Path) -> tuple[Store, str]:
    """A run read back from its directory, and what was dropped of its samples in words.

    Raises:
        UsageError: if it is no run's directory or is of a newer schema.
    """
    run = read_run(path, ("launches", "calibration", "versions", *_OWN))
    samples, dropped = read_samples(path)
    plan = Plan(
        tuple(Cell(**cell) for cell in run["plan"]["cells"]),
        tuple(run["plan"]["strategies"]),
        run["plan"]["precision"],
        IterationRange(*run["plan"]["iterations"]),
        0.0,
    )
    history = History()
    local = None
    if (path / "local_samples.csv").exists():
        local, torn = read_samples(path, "local_samples.csv")
        dropped = dropped or torn
    history.add_all(samples, local)
    history.early = {int(cell): count for cell, count in run.pop("early", {}).items()}  # older runs lack it
    history.wrong = {int(cell): count for cell, count in run["wrong"].items()}
    history.skipped = {int(cell): reason for cell, reason in run["skipped"].items()}
    facts = Facts(**run["facts"])
    for key in ("schema", *_OWN):
        del run[key]
    return Store(RunDirectory(path), plan, facts, history, run), dropped


def now() -> str:
    """This moment, UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def run_plan(
    session: Session, bench: Bench, store: Store | None, reporter: Reporter, elapsed_s: Callable[[], float]
) -> Results | None:
    """Measure until the plan is done, its crossovers as sharp as asked, or its time spent.

    Args:
        session, bench: of every rank.
        store: the plan and what has been measured, on rank 0; None elsewhere.
        reporter: told after every pass, on rank 0.
        elapsed_s: seconds since MPI's start.

    Returns:
        The results on rank 0, None elsewhere.

    Raises:
        DiskFault: on all ranks, if rank 0 could not write.
    """
    measured: Measured | None = None
    visit: Visit | None = None
    while True:
        turn = session.on_root(partial(_turn, store, reporter, elapsed_s, visit, measured))
        if turn is None:
            break
        visit, cell, hot = turn
        session.guard.enter(f"cell {cell.index} ({format_bytes(cell.asked_nbytes)}, {cell.compute})")
        try:
            measured = bench.visit(cell, visit, hot)
        except Unsupported as error:
            measured = None
            if store is not None:
                store.history.skipped[cell.index] = str(error)
    session.guard.enter("writing the last tables")
    bench.release()
    results: list[Results] = []
    session.on_root(lambda: results.append(store.write_tables("finished")) if store else None)
    return results[0] if results else None


def _turn(
    store: Store | None,
    reporter: Reporter,
    elapsed_s: Callable[[], float],
    visit: Visit | None,
    measured: Measured | None,
) -> tuple[Visit, Cell, bool] | None:
    """Rank 0's part between two visits: keep the last, close a pass, choose the next, its cell, and whether hot."""
    assert store is not None
    history = store.history
    if visit is not None and measured is not None:
        _keep(store, visit, measured)
    following = next_visit(store.plan, history, elapsed_s())
    done = history.visits(visit.cell) if visit is not None else 0
    if visit is not None and (following is None or history.visits(following.cell) >= done):
        _close_pass(store, reporter, elapsed_s())
        following = next_visit(store.plan, history, elapsed_s())
    if following is None:
        return None
    cell = store.plan.cells[following.cell]
    same = [other.index for other in store.plan.cells if other.count == cell.count]
    return following, cell, isnan(history.hot_median(same, ALLREDUCE_HOT))


def _keep(store: Store, visit: Visit, measured: Measured) -> None:
    """Commit a visit, to the disk first."""
    if measured.wrong:  # on disk before the samples, which look like any others
        store.history.wrong[visit.cell] = store.history.wrong.get(visit.cell, 0) + measured.wrong
        store.write_run()
    try:
        store.directory.append_visit(measured.samples, measured.ranks, measured.rank_samples, measured.local)
    except DiskFault as fault:
        with suppress(DiskFault):
            store.write_tables(str(fault))
        raise
    store.history.add(visit.cell, measured.samples, measured.seconds, measured.local)
    if measured.early:
        store.history.early[visit.cell] = store.history.early.get(visit.cell, 0) + measured.early
    if store.trace is not None:
        for strategy, iteration in measured.typical.items():
            store.trace.add(case_name(store.plan.cells[visit.cell], strategy), strategy, iteration)


def _close_pass(store: Store, reporter: Reporter, elapsed_s: float) -> None:
    """Bring the tables up to date, and add the cells that would sharpen the crossovers."""
    results = store.write_tables("")
    finished = sum(outcome(store.plan, store.history, cell.index) != GO_ON for cell in store.plan.cells)
    store.passes += 1
    reporter.pass_done(store.passes, len(store.plan.cells), finished, elapsed_s, store.plan.budget_s)
    grown = grow(store.plan, store.history, results)
    if grown is not store.plan:
        store.plan = grown
        store.write_run()  # before there are samples of its cells


def rebuild(path: Path, ended: str, earlier: int) -> None:
    """Bring the tables of a run up to date from what is on disk: any rank that sees it can.

    Does nothing while the run has no more than its `earlier` launches: this one is not on disk yet.
    """
    store, _ = load(path)
    if len(store.run["launches"]) > earlier:
        store.write_tables(ended)
