"""What the tests of this folder share: every collective, and one that gives one rank a wrong element."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpibench.collectives.iallreduce import Iallreduce
from mpibench.engine.bench import Bench, Load
from mpibench.engine.buffers import Buffers
from mpibench.engine.calibrate import Calibration
from mpibench.engine.device import HostDevice
from mpibench.engine.session import Session
from mpibench.kernels.gemm import Gemm
from mpibench.progress.none import NoProgress
from mpibench.progress.poll import Poll
from mpibench.protocols import Cell, Collective, Kernel

STRATEGIES = ("none", "poll")


class CorruptTransfer:
    """A transfer whose result is wrong in one element."""

    def __init__(self, transfer: Any, spoil: Callable[[], None]) -> None:
        self._transfer, self._spoil = transfer, spoil

    def Test(self) -> bool:
        return self._transfer.Test()

    def Wait(self) -> None:
        self._transfer.Wait()
        self._spoil()


class Corrupt(Iallreduce):
    """MPI_Allreduce or MPI_Iallreduce, with the last element of one rank's result off by one.

    Args:
        rank: the one that gets the wrong element.
        which: "blocking" or "start".
    """

    def __init__(self, rank: int, which: str) -> None:
        self._rank, self._which = rank, which

    def prepare(self, comm: Any, buffers: Any) -> None:
        super().prepare(comm, buffers)
        start, blocking, result, mine = self.start, self.blocking, buffers.receive_array, comm.rank == self._rank

        def spoil() -> None:
            if mine:
                result[-1] += 1

        def block_and_spoil() -> None:
            blocking()
            spoil()

        if self._which == "start":
            self.start = lambda: CorruptTransfer(start(), spoil)
        else:
            self.blocking = block_and_spoil


def make_buffers(session: Session, count: int, dtype: str = "float32", in_place: bool = False) -> Buffers:
    return Buffers(HostDevice(), session.mpi, count, dtype, session.rank, session.ranks, in_place)


def make_cell(count: int, dtype: str = "float32", in_place: bool = False, index: int = 0) -> Cell:
    nbytes = count * np.dtype(dtype).itemsize
    return Cell(index, "iallreduce", nbytes, nbytes, count, dtype, in_place, "gemm", "some", 4)


def make_bench(
    session: Session,
    buffers: Buffers,
    collective: Callable[[], Collective] = Iallreduce,
    kernel: Kernel | None = None,
    **options: Any,
) -> Bench:
    """A bench with four short steps of a real kernel as its compute."""
    device = HostDevice()
    kernel = kernel or Gemm(np, "float32", 16)
    load = Load(kernel, device.compute(kernel, 4), device.compute(kernel, 1), Calibration(4, 1e-6, 4e-6))
    strategies = {"none": NoProgress(), "poll": Poll()}
    chosen = {"seed": 0, "checked": True, "keep_ranks": False, **options}
    return Bench(session, buffers, {"some": load}, collective, strategies, 2e-6, **chosen)
