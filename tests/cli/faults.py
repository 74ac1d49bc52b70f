"""Kernels that break on cue, as a user's own would: `--kernel tests.cli.faults:Raises`.

The fault happens in the first step after the file FAULT_WHEN exists, on the ranks that FAULT_RANKS
lists; each of them leaves the file FAULT_WHEN.<rank> just before. A step sleeps, so that more
ranks than cores do not slow each other down.
"""

import os
import time
from pathlib import Path
from typing import Any


class Steady:
    """Never breaks."""

    device_driven = False
    emulated = False
    takes_order = False
    step_s = None

    def __init__(self, array_module: Any, dtype: str, order: int | None) -> None:
        rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK", "0")
        self._broken = rank in os.environ.get("FAULT_RANKS", "").split(",")
        self._when = os.environ.get("FAULT_WHEN", "")
        self._reached = Path(f"{self._when}.{rank}")

    def step(self) -> None:
        if self._broken and os.path.exists(self._when):
            self._reached.touch()
            self.break_down()
        time.sleep(50e-6)

    def verify(self) -> bool:
        return True

    def break_down(self) -> None:
        """The fault."""


class Raises(Steady):
    """An exception in the user's code."""

    def break_down(self) -> None:
        raise RuntimeError("the step broke")


class HangsInMpi(Steady):
    """Waits inside MPI for a message that never comes."""

    def break_down(self) -> None:
        from mpi4py import MPI

        MPI.COMM_WORLD.recv(source=MPI.ANY_SOURCE, tag=4242)


class HangsInPython(Steady):
    """Never returns to MPI."""

    def break_down(self) -> None:
        while True:
            time.sleep(1)


class Miscomputes(Steady):
    """Its result is wrong."""

    def verify(self) -> bool:
        return False
