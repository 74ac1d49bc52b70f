"""Performs visits: every rank measures, rank 0 gets the samples.

Holds what a launch allocates once: buffers for the largest message, a kernel per compute, a
prepared collective per cell. Knows the plan's decisions only as visits to perform.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from mpibench.engine import measure
from mpibench.engine.buffers import Buffers
from mpibench.engine.calibrate import Calibration
from mpibench.engine.device import Compute
from mpibench.engine.fold import Measured, Where, fold
from mpibench.engine.order import orders
from mpibench.engine.phases import build_hot_phases, build_phases, phase_names
from mpibench.engine.plan import Visit
from mpibench.engine.session import Session
from mpibench.engine.synchronisation import Synchronisation
from mpibench.errors import Unsupported
from mpibench.protocols import Cell, Collective, Kernel, Marks, Phase, Progress
from mpibench.records import ABSENT

_WARM_UP_CALLS = 10  # of each operation: MPICH changes its algorithm after 5
_HOT_CALLS, _HOT_NS = 1000, 100_000_000
_COMPUTE_INDEX = 2  # of C among the phases


@dataclass(frozen=True)
class Load:
    """A compute, ready to run: what the cells of one `--compute` share."""

    kernel: Kernel
    compute: Compute  # the timed steps
    preamble: Compute  # untimed, before every phase
    calibration: Calibration

    def quantum(self, poll_interval_s: float) -> int:
        """Steps between two tests."""
        return max(1, round(poll_interval_s / self.calibration.step_s))


class Bench:
    """All that measuring needs, on every rank.

    Args:
        session: MPI.
        buffers: for the largest message.
        loads: by the cells' `compute` label.
        collective: makes one for a cell.
        strategies: instances of the plugins, by name.
        poll_interval_s: target time between tests.
        seed: of the orders.
        checked: whether results are checked.
        keep_ranks: whether every rank's times are kept.
        clocks: compares the hosts' clocks; made from the session if not given.
        clock: tells nanoseconds, for the stamps.
    """

    def __init__(
        self, session: Session, buffers: Buffers, loads: Mapping[str, Load], collective: Callable[[], Collective],
        strategies: Mapping[str, Progress], poll_interval_s: float, *, seed: int, checked: bool, keep_ranks: bool,
        clocks: Synchronisation | None = None, clock: Callable[[], int] = perf_counter_ns,
    ) -> None:  # fmt: skip
        self._session, self._buffers, self._loads = session, buffers, loads
        self._collective, self._strategies, self._names = collective, strategies, phase_names(tuple(strategies))
        self._poll_interval_s = poll_interval_s
        self._seed, self._checked, self._keep_ranks = seed, checked, keep_ranks
        self._prepared: dict[int, tuple[Collective, list[Phase]]] = {}
        self.clocks, self._clock = clocks or Synchronisation(session), clock
        self._round = 0
        self._flag = np.ones(1, dtype=np.int8)
        self._cpu_wait = cpu_wait_clock()
        session.guard.describe = self._describe

    def _describe(self, iteration: int, phase: int) -> str:
        return " ".join(filter(None, self._names[phase]))

    def visit(self, cell: Cell, visit: Visit, hot: bool) -> Measured | None:
        """Measure a visit on all ranks; the result on rank 0, None elsewhere. `hot`: the hot loops too.

        Raises:
            Unsupported: on all ranks, if the MPI library lacks the collective.
        """
        go_on = self._until(perf_counter_ns() + visit.share_s * 1e9)
        load = self._loads[cell.compute]
        self._buffers.select(cell.count)
        self.clocks.begin()
        hot_stamps = {}
        if cell.index not in self._prepared:
            self._prepare(cell, load, go_on)
        if hot:
            hot_stamps = self._hot_loops(cell)
        phases = self._prepared[cell.index][1]
        marks = Marks(load.quantum(self._poll_interval_s), self._clock)
        order = orders(len(phases), visit.iterations, f"{self._seed}-{cell.index}-{visit.number}")
        began = perf_counter_ns()
        out = np.zeros((visit.iterations, len(phases), measure.FIELDS), dtype=np.int64)
        done = measure.measure(
            phases, order, first_round=self._round, preamble=lambda: load.preamble.launch().finish(),
            sync=self._session.control.Barrier, keep_going=go_on, cpu_wait=self._cpu_wait,
            beat=self._session.guard.beat, marks=marks, out=out,
        )  # fmt: skip
        self._round += done * len(phases)
        if self._checked and not load.kernel.verify():
            out[:done, _COMPUTE_INDEX, measure.WRONG] += 1
        if self._cpu_wait() == ABSENT:  # no such clock: not measured, rather than 0
            out[:done, :, measure.CPU_WAIT] = ABSENT
        every = self._gather(out[:done])
        hot_every = {name: self._gather(stamps) for name, stamps in hot_stamps.items()}
        self.clocks.renew()
        if every is None:
            return None
        seconds = (perf_counter_ns() - began) * 1e-9
        hosts = [host.name for host in self._session.hosts]
        where = Where(cell.index, visit.number, hosts, self.clocks.clocks, cell.count > 0)
        return fold(where, self._names, every, hot_every, seconds, self._keep_ranks)

    def _until(self, deadline_ns: float) -> Callable[[], bool]:
        """Asks rank 0 whether the time is not over; the same answer on all ranks."""
        flag, control, root = self._flag, self._session.control, self._session.rank == 0

        def go_on() -> bool:
            if root:
                flag[0] = perf_counter_ns() < deadline_ns
            control.Bcast(flag)
            return bool(flag[0])

        return go_on

    def _prepare(self, cell: Cell, load: Load, go_on: Callable[[], bool]) -> None:
        """Bind the collective to this message size and warm up."""
        collective = self._collective()
        reason = ""
        try:
            collective.prepare(self._session.comm, self._buffers)
        except Unsupported as error:
            reason = str(error)
        reasons = [text for text in self._session.control.allgather(reason) if text]
        if reasons:
            raise Unsupported(reasons[0])
        phases = build_phases(collective, self._buffers, load.compute, self._strategies, self._checked)
        self._prepared[cell.index] = (collective, phases)
        self._buffers.fill(self._round)
        marks = Marks(load.quantum(self._poll_interval_s))
        for _ in range(_WARM_UP_CALLS):
            for phase in phases[:2]:
                self._session.guard.beat(-1, -1)
                phase.run(marks)
            if not go_on():
                break
        load.preamble.launch().finish()

    def _hot_loops(self, cell: Cell) -> dict[str, Any]:
        """B and N as OSU and IMB time them: stamps (calls, 1, FIELDS) by phase, checked once after."""
        stamps = {}
        marks = Marks(clock=self._clock)
        sync = self._session.control.Barrier
        for name, phase in build_hot_phases(self._prepared[cell.index][0], self._buffers, self._checked).items():
            self._session.guard.beat(-1, -1)
            begin = perf_counter_ns()
            sync()
            phase.run(marks)
            calls = int(min(_HOT_CALLS, max(1, _HOT_NS // (perf_counter_ns() - begin))))
            calls = self._session.control.bcast(calls)
            out = np.full((calls, 1, measure.FIELDS), ABSENT, dtype=np.int64)
            phase.prepare(self._round)
            stamps_of = (out[:, 0, measure.BEGIN], out[:, 0, measure.END])
            measure.measure_hot(phase, sync=sync, marks=marks, begin=stamps_of[0], end=stamps_of[1])
            if self._buffers.in_place:  # every call added up the sums of the one before: check one more call
                phase.prepare(self._round)
                phase.run(marks)
            out[:, :, measure.WRONG] = 0
            out[-1, 0, measure.WRONG] = phase.check(self._round)
            self._round += 1
            stamps[name] = out
        return stamps

    def _gather(self, own: Any) -> Any:
        """The arrays of all ranks on rank 0, (ranks, ...); None elsewhere."""
        root = self._session.rank == 0
        every = np.empty((self._session.ranks, *own.shape), dtype=np.int64) if root else None
        self._session.control.Gather(np.ascontiguousarray(own), every)
        return every

    def release(self) -> None:
        """Free what the collectives hold; collective."""
        self.clocks.finish()
        for collective, _ in self._prepared.values():
            collective.release()
        self._prepared.clear()


def cpu_wait_clock() -> Callable[[], int]:
    """A function that tells for how many nanoseconds this thread was runnable but not running so far.

    Reads /proc/thread-self/schedstat; where there is none it tells ABSENT, and the difference is 0.
    """
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return lambda: ABSENT

    def read() -> int:
        return int(os.pread(file, 64, 0).split()[1])

    return read
