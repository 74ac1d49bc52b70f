"""What the ranks of the parity measurement run: alternating blocks of mpibench's loop and the C loop.

One process, one communicator, the same buffers. Every pass runs one pair of blocks of every
size and operation, so that noise hits all alike. Rank 0 leaves a JSON file: the blocks' times,
or the reason why there are none.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mpibench.collectives.iallreduce import Iallreduce
from mpibench.collectives.persistent import Persistent
from mpibench.engine.buffers import Buffers
from mpibench.engine.clocks import spans
from mpibench.engine.device import HostDevice
from mpibench.engine.launcher import identify
from mpibench.engine.measure import measure_hot
from mpibench.engine.phases import Blocking, NonblockingHot
from mpibench.engine.session import Session, open_session
from mpibench.errors import EnvironmentRefused, Unsupported, WrongData
from mpibench.protocols import Marks, Phase
from mpibench.selftest.parity import LEAST_PAIRS, SIZES
from mpibench.units import format_bytes

_DTYPE, _ITEM_NBYTES = "float32", 4
_WARM_UP = 20  # calls of each loop; MPICH changes algorithm after 5
_BLOCK_S = 0.008  # time of a block: short, so that both blocks of a pair see the same machine
_LEAST_CALLS, _MOST_CALLS = 5, 2000  # of a block
_BUDGET_S = 40.0  # no pass begins later, once there are pairs enough for an interval
_WATCHDOG_S = 120.0

Loop = Callable[[Any, Any], None]
"""Makes as many calls as the two int64 arrays have elements, and leaves their begin and end in them."""


@dataclass
class Cell:
    """One message size and operation, with both loops bound to it."""

    nbytes: int  # message size
    operation: str  # allreduce, nonblocking or persistent
    collective: Iallreduce  # what mpibench's side calls
    loops: dict[str, Loop]  # by side: c, mpibench
    calls: int = _WARM_UP  # of a block
    blocks: dict[str, list[float]] = field(default_factory=lambda: {"c": [], "mpibench": []})  # seconds, by side

    @property
    def name(self) -> str:
        return f"{self.operation} of {format_bytes(self.nbytes)} bytes"


def load_reference(path: str, mpi: Any) -> ctypes.CDLL:
    """The C loops, if they were compiled against the MPI library that mpi4py uses.

    Raises:
        EnvironmentRefused: if not, or if this rank cannot load them.
    """
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise EnvironmentRefused(f"a rank cannot load the C loops: {error}; TMPDIR must be shared") from None
    text = ctypes.create_string_buffer(mpi.MAX_LIBRARY_VERSION_STRING)
    library.library_version(text, ctypes.byref(ctypes.c_int()))
    versions = [text.value.decode(errors="replace").strip(), mpi.Get_library_version().strip("\0 \n")]
    if library.handle_bytes() != mpi._sizeof(mpi.Comm) or versions[0] != versions[1]:
        names = " and ".join(version.split("\n")[0].strip() for version in versions)
        raise EnvironmentRefused(f"mpicc and mpi4py use different MPI libraries: {names}; use one environment for both")
    return library


def refuse_oversubscription(session: Session) -> None:
    """Refuse ranks that wait for each other's core: one call would take a time slice, or seconds.

    Raises:
        EnvironmentRefused: if any host has more ranks than cores; on every rank alike.
    """
    if session.oversubscribed:
        cores = len(session.hosts[0].cores)
        raise EnvironmentRefused(f"parity needs a core per rank: {session.ranks} ranks, {cores} cores for rank 0")


def c_loop(function: Any, *arguments: Any) -> Loop:
    """A loop of reference.c on these leading arguments."""

    def loop(begin: Any, end: Any) -> None:
        stamps = [ctypes.c_void_p(array.ctypes.data) for array in (begin, end)]
        error = function(*arguments, ctypes.c_int(len(begin)), *stamps)
        if error:
            raise RuntimeError(f"MPI error {error} in the C loop")

    return loop


def own_loop(phase: Phase, comm: Any, marks: Marks) -> Loop:
    """The hot loop of mpibench."""
    return lambda begin, end: measure_hot(phase, sync=comm.Barrier, marks=marks, begin=begin, end=end)


def build_cells(session: Session, buffers: Buffers, library: ctypes.CDLL, operation: str) -> list[Cell]:
    """The cells of an operation, one per message size.

    Raises:
        Unsupported: if the MPI library lacks it.
    """
    address, marks = session.mpi._addressof, Marks()
    cells: list[Cell] = []
    comm = ctypes.c_void_p(address(session.comm))
    for nbytes in SIZES:
        count = nbytes // _ITEM_NBYTES
        buffers.select(count)
        collective = Persistent() if operation == "persistent" else Iallreduce()
        collective.prepare(session.comm, buffers)
        phase = (Blocking if operation == "allreduce" else NonblockingHot)(collective, buffers, False)
        if operation == "persistent":
            request: Any = collective.start()
            request.Wait()
            arguments: list[Any] = [comm, ctypes.c_void_p(address(request))]
        else:
            arrays = [ctypes.c_void_p(array.ctypes.data) for array in (buffers.send_array, buffers.receive_array)]
            arguments = [comm, *arrays, ctypes.c_int(count)]
        reference = c_loop(getattr(library, f"loop_{operation}"), *arguments)
        loops = {"c": reference, "mpibench": own_loop(phase, session.comm, marks)}
        cells.append(Cell(nbytes, operation, collective, loops))
    return cells


def run_block(session: Session, buffers: Buffers, cell: Cell, side: str, round_: int) -> float:
    """One block, checked; rank 0 gets the median of its calls' times in seconds.

    Both sides are timed as mpibench times a phase: from the last rank's start to the last rank's end.

    Raises:
        WrongData: on every rank, if the last call of the block left a wrong result on any.
    """
    session.guard.enter(f"{cell.name}, {side}")
    begin, end = np.zeros((2, cell.calls), dtype=np.int64)
    buffers.select(cell.nbytes // _ITEM_NBYTES)
    buffers.fill(round_)
    cell.loops[side](begin, end)

    def check() -> None:
        wrong = buffers.count_wrong(round_)
        if wrong:
            raise WrongData(f"wrong data: {cell.name}, {side} loop, rank {session.rank}: {wrong} wrong elements")

    session.everywhere(check)
    every = session.control.gather((begin, end))
    if every is None:
        return 0.0
    stamps = np.array(every)
    return float(np.median(spans(stamps[:, 0], stamps[:, 1], session.common_clock).span)) * 1e-9


def warm_up(session: Session, buffers: Buffers, cell: Cell) -> None:
    """Run both loops, untimed, then agree on the number of calls of a block."""
    for side in cell.loops:
        run_block(session, buffers, cell, side, 0)
    began = time.perf_counter()
    cell.loops["mpibench"](*np.zeros((2, _WARM_UP), dtype=np.int64))
    calls = round(_BLOCK_S * _WARM_UP / (time.perf_counter() - began))
    cell.calls = session.on_root(lambda: min(max(calls, _LEAST_CALLS), _MOST_CALLS))


def run_passes(session: Session, buffers: Buffers, cells: list[Cell], pairs: int) -> int:
    """Run up to `pairs` pairs of blocks of every cell, each side first in turn; the pairs that were run."""
    until = time.perf_counter() + _BUDGET_S
    for cell in cells:
        warm_up(session, buffers, cell)
    for pair in range(pairs):
        if pair >= LEAST_PAIRS and session.on_root(lambda: time.perf_counter() > until):
            return pair
        for cell in cells:
            for position, side in enumerate(("c", "mpibench") if pair % 2 == 0 else ("mpibench", "c")):
                cell.blocks[side].append(run_block(session, buffers, cell, side, 1 + 2 * pair + position))
    return pairs


def measure(session: Session, library: ctypes.CDLL, pairs: int) -> dict[str, Any]:
    """Everything that the parent wants to know; its `cells` mean something on rank 0 only."""
    count = max(SIZES) // _ITEM_NBYTES
    buffers = Buffers(HostDevice(), session.mpi, count, _DTYPE, session.rank, session.ranks, in_place=False)
    cells: list[Cell] = []
    left_out = ""
    try:
        cells += build_cells(session, buffers, library, "allreduce")
        cells += build_cells(session, buffers, library, "nonblocking")
        try:
            cells += build_cells(session, buffers, library, "persistent")
        except Unsupported as reason:
            left_out = str(reason)
        done = run_passes(session, buffers, cells, pairs)
    finally:
        for cell in cells:
            cell.collective.release()  # a persistent request must be gone before MPI_Finalize
    told = {"library": session.library, "thread_level": session.thread_level, "ranks": session.ranks}
    blocks = [
        {"nbytes": c.nbytes, "operation": c.operation, "c_s": c.blocks["c"], "mpibench_s": c.blocks["mpibench"]}
        for c in cells
    ]
    return {**told, "pairs": done, "left_out": left_out, "cells": blocks}


def main(library_path: str, result_path: str, pairs: str) -> None:
    """Measure, and let rank 0 write the result or the reason why there is none."""
    launch = identify(os.environ)
    try:
        session = open_session(launch, "funneled", _WATCHDOG_S, "mpibench.selftest")
    except EnvironmentRefused:
        refused = 'the ranks are alone, each in its own MPI_COMM_WORLD; try --launcher "srun --mpi=pmi2 -n 2"'
        write_result(Path(result_path), {"refused": refused})
        return
    try:
        with session:
            session.everywhere(lambda: refuse_oversubscription(session))
            library = session.everywhere(lambda: load_reference(library_path, session.mpi))
            result = measure(session, library, int(pairs))
    except EnvironmentRefused as error:
        result = {"refused": str(error)}
    except WrongData as error:
        result = {"wrong": str(error)}
    if session.rank == 0:
        write_result(Path(result_path), result)


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Whole or not at all; ranks that are alone may all write."""
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
