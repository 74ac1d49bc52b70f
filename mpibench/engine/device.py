"""Devices: who runs the kernel's steps, and where its memory lies.

A device turns a kernel's steps into `Work` that is launched, asked and finished, so that the
loop needs no special case for a synchronous CPU kernel, an emulated accelerator or a GPU
(`engine/cuda.py`). It knows nothing of MPI.
"""

import ctypes
from collections.abc import Callable
from time import perf_counter_ns, sleep
from typing import Any, Protocol

import numpy

from mpibench.protocols import Kernel, Work

_SPIN_NS = 100_000  # the last part of an emulated kernel is spun: a sleep may wake late
_PR_SET_TIMERSLACK = 29


class Compute(Protocol):
    """A kernel with its fixed number of steps, ready to be launched again and again."""

    def launch(self) -> Work:
        """Begin the steps."""


class Device(Protocol):
    """Where kernels run."""

    name: str
    """Value of the `device` column."""

    @property
    def array_module(self) -> Any:
        """The modules numpy or cupy."""

    @property
    def identity(self) -> str:
        """Same GPU of a host, same identity; empty on the CPU."""

    def compute(self, kernel: Kernel, steps: int) -> Compute:
        """`steps` of the kernel, ready to be launched."""

    def allocate(self, count: int, dtype: str) -> Any:
        """A one-dimensional array on the device."""

    def allocate_pinned(self, count: int, dtype: str) -> Any:
        """A one-dimensional numpy array that the device copies to and from at full speed."""

    def copy_to_host(self, target: Any, source: Any) -> Callable[[], bool]:
        """Begin copying a device array to a pinned one; the result asks whether it is done."""

    def copy_from_host(self, target: Any, source: Any) -> Callable[[], bool]:
        """Begin copying a pinned array to a device one; the result asks whether it is done."""

    def synchronise(self) -> None:
        """Return when everything that was enqueued is done. MPI may touch device memory then."""


class HostWork:
    """Steps that run inside `advance`, on the calling thread. Its own Compute: launching resets it."""

    __slots__ = ("_left", "_step", "_steps", "elapsed_ns")

    def __init__(self, step: Callable[[], None], steps: int) -> None:
        self._step, self._steps = step, steps
        self._left = 0
        self.elapsed_ns = 0  # the loop's own stamps tell; a host-driven kernel has no other time

    def launch(self) -> Work:
        """All steps lie ahead again."""
        self._left = self._steps
        return self

    def advance(self, quantum: int) -> bool:
        """Run at most `quantum` steps; True once none is left."""
        step = self._step
        now = quantum if quantum < self._left else self._left
        for _ in range(now):
            step()
        self._left -= now
        return self._left == 0

    def finish(self) -> None:
        """Run what is left."""
        self.advance(self._left)


class EmulatedWork:
    """Steps that pass by themselves: the host sleeps in quanta and spins at the end."""

    __slots__ = ("_end", "_step_ns", "elapsed_ns")

    def __init__(self, step_s: float, steps: int) -> None:
        self._step_ns = step_s * 1e9
        self.elapsed_ns = round(self._step_ns * steps)
        self._end = 0

    def launch(self) -> Work:
        """The emulated device starts now."""
        self._end = perf_counter_ns() + self.elapsed_ns
        return self

    def advance(self, quantum: int) -> bool:
        """Sleep (at the end: spin) for at most `quantum` steps; True once the time is over."""
        now = perf_counter_ns()
        left = self._end - now
        if left > _SPIN_NS:
            sleep(min(quantum * self._step_ns, left - _SPIN_NS) * 1e-9)
            return False
        until = min(now + quantum * self._step_ns, self._end)
        while now < until:
            now = perf_counter_ns()
        return now >= self._end

    def finish(self) -> None:
        """Spin to the end."""
        while perf_counter_ns() < self._end:
            pass


class HostDevice:
    """The CPU, with numpy. A kernel that is emulated gets its time kept instead of being run."""

    name = "cpu"
    identity = ""

    array_module = numpy

    def compute(self, kernel: Kernel, steps: int) -> Compute:
        """Host steps, or the emulated accelerator for a kernel that asks for it."""
        if not kernel.emulated:
            return HostWork(kernel.step, steps)
        # A sleep ends up to 50 us late by default: let the timer be exact for this thread.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        assert kernel.step_s is not None
        return EmulatedWork(kernel.step_s, steps)

    def allocate(self, count: int, dtype: str) -> Any:
        """A numpy array, its pages touched."""
        return self.array_module.full(count, 1, dtype=dtype)

    allocate_pinned = allocate

    def copy_to_host(self, target: Any, source: Any) -> Callable[[], bool]:
        """Copies at once."""
        target[:] = source
        return _done

    copy_from_host = copy_to_host

    def synchronise(self) -> None:
        """Nothing is ever enqueued."""


def _done() -> bool:
    return True
