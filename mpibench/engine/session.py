"""The session: MPI started as asked, two private communicators, and every way a job can end.

`with open_session(...) as session:` sets mpi4py up before importing it, duplicates
MPI_COMM_WORLD once for what is measured and once for the harness, and ends the whole job if
this rank raises. The only module, with the guard, that may write to stderr, in extremis.
"""

import os
import platform
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from mpibench.engine.clocks import clock_identity
from mpibench.engine.guard import Guard, block_signals
from mpibench.engine.launcher import Launch, refuse_single_rank
from mpibench.errors import FAULT, MpibenchError

T = TypeVar("T")
THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")


@dataclass(frozen=True)
class Host:
    """What a rank tells of itself once, at the start."""

    name: str  # MPI's processor name
    clock: str  # same clock, same identity
    cores: tuple[int, ...]  # its affinity mask
    pid: int  # on its host


class Session:
    """MPI while a benchmark runs. Made by `open_session`; use as a context manager.

    Attributes:
        mpi: the module mpi4py.MPI.
        comm: the communicator that is measured.
        control: the harness's own communicator.
        rank, ranks: this rank and their number.
        hosts: what each rank told of itself, by rank.
        thread_level: provided by the library.
        common_clock: whether all ranks read one clock.
    """

    def __init__(self, mpi: Any, guard: Guard, launch: Launch) -> None:
        self.mpi, self.guard, self.launch = mpi, guard, launch
        self.comm = mpi.COMM_WORLD.Dup()
        self.control = mpi.COMM_WORLD.Dup()
        self.rank, self.ranks = self.comm.rank, self.comm.size
        cores = tuple(sorted(os.sched_getaffinity(0)))
        own = Host(mpi.Get_processor_name() or platform.node(), clock_identity(), cores, os.getpid())
        self.hosts: list[Host] = self.control.allgather(own)
        self.thread_level = THREAD_LEVELS[
            [mpi.THREAD_SINGLE, mpi.THREAD_FUNNELED, mpi.THREAD_SERIALIZED, mpi.THREAD_MULTIPLE].index(
                mpi.Query_thread()
            )
        ]
        self.common_clock = len({host.clock for host in self.hosts}) == 1
        self.library = mpi.Get_library_version().strip().split("\n")[0].strip()
        guard.rank, guard.ranks = self.rank, self.ranks
        guard.abort = mpi.COMM_WORLD.Abort

    @property
    def local_ranks(self) -> int:
        """Ranks on this rank's host."""
        return [host.name for host in self.hosts].count(self.hosts[self.rank].name)

    @property
    def nodes(self) -> int:
        """Number of hosts."""
        return len({host.name for host in self.hosts})

    @property
    def oversubscribed(self) -> bool:
        """Whether any machine has more ranks than the cores that these may use.

        Hosts with one clock (containers, an emulated cluster) are one machine, and share its cores.
        """
        for clock in {host.clock for host in self.hosts}:
            members = [host for host in self.hosts if host.clock == clock]
            if len(members) > len({core for host in members for core in host.cores}):
                return True
        return False

    def on_root(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 and give its result, or its MpibenchError, to every rank."""
        outcome: Any = None
        if self.rank == 0:
            try:
                outcome = work()
            except MpibenchError as error:
                outcome = error
        outcome = self.control.bcast(outcome)
        if isinstance(outcome, MpibenchError):
            outcome.agreed = True
            raise outcome
        return outcome  # type: ignore[no-any-return]

    def everywhere(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank; an MpibenchError of any rank is raised on all, the lowest rank's first."""
        result: Any = None
        error = None
        try:
            result = work()
        except MpibenchError as raised:
            error = raised
        for any_error in self.control.allgather(error):
            if any_error is not None:
                any_error.agreed = True
                raise any_error
        return result  # type: ignore[no-any-return]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not getattr(error, "agreed", False):
            self._end_job(error)
        self.guard.enter("MPI_Finalize")
        self.comm.Free()
        self.control.Free()
        self.mpi.Finalize()
        self.guard.stop()

    def _end_job(self, error: BaseException) -> None:
        """One rank cannot go on: end all. An error of ours is a line, any other its traceback."""
        if isinstance(error, MpibenchError):
            self.guard.end(error.status, str(error))
        text = "".join(traceback.format_exception(error))
        place = self.guard.where()
        self.guard.end(FAULT, f"raised {type(error).__name__} at {place}\n{text.rstrip()}\nmpibench: ended")


def open_session(launch: Launch, thread_level: str, watchdog_s: float, module: str) -> Session:
    """Start the guard and MPI.

    Args:
        launch: from `launcher.identify`.
        thread_level: to ask for, one of THREAD_LEVELS.
        watchdog_s: longest silence in seconds.
        module: the benchmark, for messages.

    Raises:
        EnvironmentRefused: with one rank. MPI is finalised then.
    """
    block_signals()
    guard = Guard(watchdog_s)
    guard.rank = launch.rank
    guard.enter("MPI_Init")
    guard.start()
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    levels = [MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED, MPI.THREAD_MULTIPLE]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # mpi4py's word on a mismatched launcher: ours is below
        MPI.Init_thread(levels[THREAD_LEVELS.index(thread_level)])
    try:
        refuse_single_rank(MPI.COMM_WORLD.size, launch, MPI.Get_library_version().split("\n")[0].strip(), module)
    except MpibenchError:
        MPI.Finalize()
        guard.stop()
        raise
    return Session(MPI, guard, launch)
