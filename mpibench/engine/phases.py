"""The phases of a cell: B, N, C, S and one T per strategy, built from a collective and a kernel.

Between two clock reads nothing allocates beyond what the library does, formats, looks up a
name or branches on an option: everything is bound in the constructors.
"""

from collections.abc import Mapping

from mpibench.engine.buffers import Buffers
from mpibench.engine.device import Compute
from mpibench.progress.none import NoProgress
from mpibench.protocols import (
    ALLREDUCE,
    ALLREDUCE_HOT,
    COMPUTE,
    NONBLOCKING,
    NONBLOCKING_HOT,
    OVERLAPPED,
    SEQUENTIAL,
    Collective,
    Marks,
    Phase,
    Progress,
)


class Nothing:
    """The Transfer of no communication: gives C."""

    def Test(self) -> bool:
        """Always complete."""
        return True

    def Wait(self) -> None:
        """Returns at once."""


class _Communicating:
    """A phase with a message: filled and poisoned before, compared after."""

    def __init__(self, collective: Collective, buffers: Buffers, checked: bool) -> None:
        self._start, self._blocking = collective.start, collective.blocking
        self._buffers, self._checked = buffers, checked

    def prepare(self, iteration: int) -> None:
        if self._checked:
            self._buffers.fill(iteration)

    def check(self, iteration: int) -> int:
        return self._buffers.count_wrong(iteration) if self._checked else 0


class Blocking(_Communicating):
    """B: the blocking collective."""

    def run(self, marks: Marks) -> None:
        clock, blocking = marks.clock, self._blocking
        begin = clock()
        blocking()
        end = clock()
        marks.begin, marks.end = begin, end


class Nonblocking(_Communicating):
    """N: start, then wait at once."""

    def run(self, marks: Marks) -> None:
        clock, start = marks.clock, self._start
        begin = clock()
        transfer = start()
        started = clock()
        transfer.Wait()
        end = clock()
        marks.begin, marks.started, marks.end = begin, started, end


class NonblockingHot(_Communicating):
    """N of the hot loop: OSU and IMB read no clock between the two calls, so neither does this."""

    def run(self, marks: Marks) -> None:
        clock, start = marks.clock, self._start
        begin = clock()
        start().Wait()
        end = clock()
        marks.begin, marks.end = begin, end


class ComputeAlone:
    """C: the compute, driven by the loop that drives it in T, with nothing in flight."""

    def __init__(self, compute: Compute) -> None:
        self._launch = compute.launch
        self._drive = NoProgress().drive
        self._nothing = Nothing()

    def prepare(self, iteration: int) -> None:
        """Nothing to fill."""

    def check(self, iteration: int) -> int:
        """No message; the kernel's result is verified at the end of a visit."""
        return 0

    def run(self, marks: Marks) -> None:
        clock, launch, drive, nothing = marks.clock, self._launch, self._drive, self._nothing
        begin = clock()
        work = launch()
        drive(work, nothing, marks)
        end = clock()
        marks.begin, marks.computed, marks.end = begin, end, end


class Sequential(_Communicating):
    """S: the compute, then the blocking collective: what most programs do today."""

    def __init__(self, collective: Collective, buffers: Buffers, checked: bool, compute: Compute) -> None:
        super().__init__(collective, buffers, checked)
        self._launch = compute.launch
        self._drive = NoProgress().drive
        self._nothing = Nothing()

    def run(self, marks: Marks) -> None:
        clock, launch, drive, blocking = marks.clock, self._launch, self._drive, self._blocking
        nothing = self._nothing
        begin = clock()
        work = launch()
        drive(work, nothing, marks)
        computed = clock()
        blocking()
        end = clock()
        marks.begin, marks.computed, marks.end = begin, computed, end


class Overlapped(_Communicating):
    """T: start, the same compute under a strategy, wait."""

    def __init__(
        self, collective: Collective, buffers: Buffers, checked: bool, compute: Compute, progress: Progress
    ) -> None:
        super().__init__(collective, buffers, checked)
        self._launch, self._drive = compute.launch, progress.drive

    def run(self, marks: Marks) -> None:
        clock, start, launch, drive = marks.clock, self._start, self._launch, self._drive
        begin = clock()
        transfer = start()
        started = clock()
        work = launch()
        rest = drive(work, transfer, marks)
        computed = clock()
        rest.Wait()
        end = clock()
        marks.begin, marks.started, marks.computed, marks.end = begin, started, computed, end


PhaseName = tuple[str, str]
"""A phase and, for `overlapped`, its strategy (else an empty string): two columns of samples.csv."""


def phase_names(strategies: tuple[str, ...]) -> list[PhaseName]:
    """The phases of a cell in their canonical order."""
    return [(name, "") for name in (ALLREDUCE, NONBLOCKING, COMPUTE, SEQUENTIAL)] + [
        (OVERLAPPED, strategy) for strategy in strategies
    ]


def build_phases(
    collective: Collective,
    buffers: Buffers,
    compute: Compute,
    strategies: Mapping[str, Progress],
    checked: bool,
) -> list[Phase]:
    """The phases of a cell, in the order of `phase_names`."""
    common = (collective, buffers, checked)
    return [
        Blocking(*common),
        Nonblocking(*common),
        ComputeAlone(compute),
        Sequential(*common, compute),
        *(Overlapped(*common, compute, progress) for progress in strategies.values()),
    ]


def build_hot_phases(collective: Collective, buffers: Buffers, checked: bool) -> dict[str, Phase]:
    """The phases of the hot loops, by their word in samples.csv."""
    common = (collective, buffers, checked)
    return {ALLREDUCE_HOT: Blocking(*common), NONBLOCKING_HOT: NonblockingHot(*common)}
