"""A sweep from its options to its results: sets everything up in order, then runs the plan.

The order matters: what could refuse the run comes before its directory exists, the directory
before anything is measured, and the guard knows each of them as soon as it is there.
"""

import dataclasses
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mpibench.collectives import COLLECTIVES
from mpibench.engine import environment, launcher, memory, setup
from mpibench.engine.bench import Bench, Load
from mpibench.engine.calibrate import Calibration
from mpibench.engine.device import Device
from mpibench.engine.history import History
from mpibench.engine.plan import Plan
from mpibench.engine.results import Facts, Results
from mpibench.engine.runner import Reporter, Store, load, now, rebuild, run_plan
from mpibench.engine.session import Session
from mpibench.engine.trace import Trace
from mpibench.engine.tuning import UNTUNED_S, MakesBench, Tuning, longest_s, read_tuning, tune
from mpibench.errors import EnvironmentRefused, Unsupported, UsageError, WrongData
from mpibench.kernels import KERNELS
from mpibench.progress import PROGRESS
from mpibench.protocols import Caution, Cell, Kernel, Progress
from mpibench.records import RunDirectory
from mpibench.units import format_duration


class _Opened(NamedTuple):
    """A run's directory before its plan is known, on rank 0."""

    directory: RunDirectory
    earlier: Store | None  # what was read back of the run to resume


class _Known(NamedTuple):
    """What an earlier launch found, and this one need not look for."""

    calibrations: dict[str, Calibration]  # by compute label
    tuning: Tuning | None


class Sweep:
    """One launch of the overlap benchmark, on every rank.

    Args:
        session: MPI.
        config: options with the fields of overlap.Config.
        settings: the same as text, for run.json.
        make_cells: from calibrated steps by compute label and the MPI standard's major version to the cells.
        reporter: told of the course, on rank 0.

    Attributes:
        store: the run on disk and in memory, on rank 0; None elsewhere.
    """

    def __init__(
        self, session: Session, config: Any, settings: dict[str, str],
        make_cells: Callable[[dict[str, int], int], tuple[Cell, ...]], reporter: Reporter,
    ) -> None:  # fmt: skip
        self._session, self._config, self._settings = session, config, settings
        self._make_cells, self._reporter = make_cells, reporter
        self._standard = session.mpi.Get_version()[0]
        self._kernel: type[Kernel] = KERNELS.load(config.kernel)
        self._opened: _Opened | None = None
        self.store: Store | None = None

    def run(self, command: str, elapsed_s: Callable[[], float]) -> Results | None:
        """Set up and measure; the results on rank 0, None elsewhere.

        Args:
            command: the command line, for run.json.
            elapsed_s: seconds since MPI's start.

        Raises:
            MpibenchError: on all ranks, if the options do not fit this machine or the disk fails.
        """
        session, config = self._session, self._config
        if "thread" in config.progress and session.thread_level != "multiple":
            raise EnvironmentRefused(
                f"--progress thread: needs MPI_THREAD_MULTIPLE, this MPI library gives {session.thread_level}"
            )
        self._refuse_too_large()
        device = session.everywhere(lambda: setup.open_device(config.device, self._kernel, session))
        kind = session.everywhere(lambda: setup.choose_buffers(config.buffers, device))
        path, known, earlier = session.on_root(self._open)
        self._set_guard(path, earlier)
        loads = setup.make_loads(session, device, self._kernel, config.compute, config.kernel_dtype, known.calibrations)
        calibrations = {label: load.calibration for label, load in loads.items()}
        buffers, collective = setup.make_buffers(
            kind, device, session, COLLECTIVES.load(config.collective),
            count=self._largest(), dtype=config.dtype, in_place=config.in_place,
        )  # fmt: skip

        def make_bench(strategies: Mapping[str, Progress], poll_interval_s: float = UNTUNED_S) -> Bench:
            return Bench(
                session, buffers, loads, collective, strategies, poll_interval_s,
                seed=config.seed, checked=not config.no_check, keep_ranks=config.samples == "all",
            )  # fmt: skip

        plan, tuning = self._plan(calibrations), known.tuning
        interval_s = tuning.interval_s if tuning else config.poll_interval or UNTUNED_S
        facts = self._facts(device, kind, interval_s, tuning is not None and tuning.told)
        gpus = session.control.allgather(device.identity)
        cautions = environment.cautions(session, self._kernel, interval_s, calibrations, gpus)
        session.on_root(lambda: self._begin(plan, facts, calibrations, tuning, cautions, gpus, command))
        if config.poll_interval is None and tuning is None:
            interval_s = self._tune(plan, make_bench, loads)
        bench = make_bench({name: PROGRESS.load(name)() for name in config.progress}, interval_s)
        if self.store is not None:
            self.store.run["buffer_alignment_nbytes"] = buffers.alignment_nbytes
            self.store.clocks = bench.clocks.record
        return run_plan(session, bench, self.store, self._reporter, elapsed_s)

    def _tune(self, plan: Plan, make_bench: MakesBench, loads: Mapping[str, Load]) -> float:
        """Search for the best poll interval, in seconds, and keep the curve; untuned, with a warning, if that fails."""
        most_s = longest_s(self._config.budget)
        cells = [cell for cell in plan.cells if not cell.skip]
        tuning, why = None, "no compute can be split, or there is no time for a single turn of the candidates"
        if self.store is not None:
            self._reporter.say(f"tuning the poll interval, for up to {format_duration(most_s)}")
        try:
            tuning = tune(self._session, make_bench, cells, loads, most_s) if cells else None
        except (Unsupported, WrongData) as error:  # the rows are going to say so
            why = str(error)
        if self.store is not None and tuning is not None:
            self.store.facts = dataclasses.replace(
                self.store.facts, poll_interval_s=tuning.interval_s, poll_tuned=tuning.told
            )
            self.store.run["tuning"] = dataclasses.asdict(tuning)
            self.store.write_run()
        elif self.store is not None:
            self._reporter.warn(f"--poll-interval tune: not tuned, {format_duration(UNTUNED_S)} is used: {why}")
        return tuning.interval_s if tuning is not None else UNTUNED_S

    def _largest(self) -> int:
        """Elements of the largest message that is measured."""
        return max((cell.count for cell in self._make_cells({}, self._standard) if not cell.skip), default=0)

    def _refuse_too_large(self) -> None:
        config, session = self._config, self._session
        largest = max(cell.nbytes for cell in self._make_cells({}, self._standard))
        kernel_nbytes = memory.kernel_nbytes(self._kernel, config.compute)
        need = memory.need_per_rank(largest, config.in_place, kernel_nbytes)
        free = session.control.allgather((session.hosts[session.rank].name, memory.available_nbytes()))
        session.on_root(lambda: memory.refuse_too_large(free, need, largest))

    def _open(self) -> tuple[Path, _Known, int]:
        """Rank 0: make or read back the run's directory; what was found before, and the number of earlier launches."""
        config, session = self._config, self._session
        if not config.resume:
            known = setup.steps_from(Path(config.steps_from), config) if config.steps_from else {}
            moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            path = Path(config.output or f"results/overlap-{moment}-{socket.gethostname()}-n{session.ranks}")
            self._opened = _Opened(RunDirectory.create(path), None)
            return path, _Known(known, None), 0
        path = Path(config.resume)
        store, dropped = load(path)
        if store.facts.ranks != session.ranks:
            raise UsageError(
                f"--resume {path}: measured with {store.facts.ranks} ranks, this launch has {session.ranks}; "
                f"use mpirun -n {store.facts.ranks}"
            )
        store.directory.require_writable()
        if dropped:
            store.directory.keep_only(store.history.all_samples())
            self._reporter.warn(dropped)
        store.directory.forget_ending()
        self._opened = _Opened(store.directory, store)
        known = {label: Calibration(**values) for label, values in store.run["calibration"].items()}
        return path, _Known(known, read_tuning(store.run)), len(store.run["launches"])

    def _set_guard(self, path: Path, earlier: int) -> None:
        """From here on whatever ends the job leaves tables that are up to date."""

        def flush(ended: str) -> None:
            if self.store is not None:
                self.store.write_tables(ended)
            elif self._session.rank and (path / "run.json").exists():
                rebuild(path, ended, earlier)

        self._session.guard.directory = path
        self._session.guard.flush = flush

    def _plan(self, calibrations: dict[str, Calibration]) -> Plan:
        config = self._config
        steps = {label: calibration.steps for label, calibration in calibrations.items()}
        cells = self._make_cells(steps, self._standard)
        return Plan(cells, config.progress, config.precision, config.iterations, config.budget)

    def _facts(self, device: Device, kind: str, poll_interval_s: float, tuned: bool) -> Facts:
        session = self._session
        return Facts(
            session.ranks, session.nodes, session.thread_level, session.oversubscribed,
            launcher.blas_threads(os.environ), device.name, kind, poll_interval_s, session.common_clock,
            self._kernel.device_driven or device.name == "cuda", self._kernel.emulated, not self._config.no_check,
            launcher.async_progress(os.environ), tuned,
        )  # fmt: skip

    def _begin(
        self,
        plan: Plan,
        facts: Facts,
        calibrations: dict[str, Calibration],
        tuning: Tuning | None,
        cautions: list[Caution],
        gpus: list[str],
        command: str,
    ) -> None:
        """Rank 0: the store with its first run.json; warnings are shown."""
        assert self._opened is not None
        directory, earlier = self._opened
        around = environment.describe(self._session)
        launch = {"command": command, "start": now(), "end": now(), "ended": "", **around}
        if earlier:
            cautions = [*cautions, *environment.changes(earlier.run["launches"][0], around)]
        run = {
            "benchmark": "overlap",
            "settings": self._settings,
            "launches": [*(earlier.run["launches"] if earlier else ()), launch],
            "calibration": {label: dataclasses.asdict(calibration) for label, calibration in calibrations.items()},
            "tuning": dataclasses.asdict(tuning) if tuning else None,
            "thread_level_asked": self._config.thread_level,
            "gpus": gpus,
            "warnings": [dataclasses.asdict(caution) for caution in cautions],
            **around,
        }
        if earlier:
            self._refuse_other_machine(earlier, facts, run)
            refined = tuple(cell for cell in earlier.plan.cells if cell.refined)
            plan = dataclasses.replace(plan, cells=plan.cells + refined)
        trace = Trace(self._session.hosts, directory.path) if self._config.trace else None
        self.store = Store(directory, plan, facts, earlier.history if earlier else History(), run, trace=trace)
        self.store.write_run()
        self._reporter.begin(plan, facts, calibrations, directory.path, cautions)

    def _refuse_other_machine(self, earlier: Store, facts: Facts, run: dict[str, Any]) -> None:
        """What was measured elsewhere, or differently, is not gone on with."""
        before = {**dataclasses.asdict(earlier.facts), "MPI library": earlier.run["versions"]["mpi"]}
        after = {**dataclasses.asdict(facts), "MPI library": run["versions"]["mpi"]}
        for name, value in after.items():
            if before[name] != value:
                raise UsageError(
                    f"--resume {self._config.resume}: measured with {name.replace('_', ' ')} {before[name]}, here "
                    f"it is {value}; resume where it was begun, or start a new run"
                )
