"""Staged buffers: gradients on the device, MPI on the host, pinned memory between them.

For MPI libraries that do not take device pointers, or not in non-blocking reductions. Every
operation is a copy out, a reduction on the host and a copy in; each begins only when the one
before is complete, which a test finds out. Nothing moves on between two tests: so without
progress the whole chain lies in the wait.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from mpibench.engine.buffers import Buffers
from mpibench.engine.device import Device
from mpibench.protocols import Collective, Transfer

_POISON = -1
_COPYING_OUT, _REDUCING, _COPYING_IN, _COMPLETE = range(4)


class StagedBuffers(Buffers):
    """Device arrays that are filled and checked, and pinned arrays of the same size that MPI is handed.

    `send_array`, `receive_array` lie on the device; `host_send`, `host_receive` beside MPI. In
    place each pair is one array. Arguments and errors are those of `Buffers`.
    """

    def __init__(self, device: Device, mpi: Any, count: int, dtype: str, rank: int, ranks: int, in_place: bool) -> None:
        self._pinned_receive = device.allocate_pinned(count, dtype)
        self._pinned_send = None if in_place else device.allocate_pinned(count, dtype)
        super().__init__(device, mpi, count, dtype, rank, ranks, in_place)

    def _specify(self, send: Any, receive: Any, count: int) -> None:
        self.host_receive = self._pinned_receive[:count]
        self.host_send = self.host_receive if self._pinned_send is None else self._pinned_send[:count]
        super()._specify(self.host_send, self.host_receive, count)

    def fill(self, round_: int) -> None:
        """As `Buffers.fill`; the pinned arrays are poisoned, so that a copy left out shows."""
        self.host_send.fill(_POISON)
        self.host_receive.fill(_POISON)
        super().fill(round_)


class StagedTransfer:
    """Copy out, reduce on the host, copy in. One object is reused.

    Args:
        copy_out: begins the copy to the host; the result asks whether it is done.
        reduce: starts the host collective.
        copy_in: begins the copy to the device; the result asks whether it is done.
    """

    __slots__ = ("_copy_in", "_copy_out", "_host", "_is_copied", "_reduce", "_stage")

    def __init__(
        self,
        copy_out: Callable[[], Callable[[], bool]],
        reduce: Callable[[], Transfer],
        copy_in: Callable[[], Callable[[], bool]],
    ) -> None:
        self._copy_out, self._reduce, self._copy_in = copy_out, reduce, copy_in
        self._is_copied: Callable[[], bool]
        self._host: Transfer
        self._stage = _COMPLETE

    def begin(self) -> None:
        """Begin the copy out. RuntimeError if the operation before is still in flight."""
        if self._stage != _COMPLETE:
            raise RuntimeError("a staged transfer was started again before it was waited for")
        self._is_copied = self._copy_out()
        self._stage = _COPYING_OUT

    def Test(self) -> bool:
        """Begin the next part if the one in flight is complete; True once the result is on the device."""
        stage = self._stage
        if stage == _COPYING_OUT:
            if self._is_copied():
                self._host = self._reduce()
                self._stage = _REDUCING
        elif stage == _REDUCING:
            if self._host.Test():
                self._begin_copy_in()
        elif stage == _COPYING_IN and self._is_copied():
            self._stage = _COMPLETE
        return self._stage == _COMPLETE

    def Wait(self) -> None:
        """Drive what is left to the end; the result is on the device on return."""
        while self._stage == _COPYING_OUT:
            self.Test()
        if self._stage == _REDUCING:
            self._host.Wait()
            self._begin_copy_in()
        while self._stage == _COPYING_IN:
            self.Test()

    def _begin_copy_in(self) -> None:
        self._is_copied = self._copy_in()
        self._stage = _COPYING_IN


class Staged:
    """A collective on the host, for `StagedBuffers`.

    Args:
        collective: what runs on the pinned arrays.
        device: copies them.
    """

    def __init__(self, collective: Collective, device: Device) -> None:
        self._collective, self._device = collective, device

    def prepare(self, comm: Any, buffers: StagedBuffers) -> None:
        """Bind to `comm` and to the selected message of `buffers`; raises what the collective raises."""
        self._collective.prepare(comm, buffers)
        self._copy_out = partial(self._device.copy_to_host, buffers.host_send, buffers.send_array)
        self._copy_in = partial(self._device.copy_from_host, buffers.receive_array, buffers.host_receive)
        self._blocking = self._collective.blocking
        self._transfer = StagedTransfer(self._copy_out, self._collective.start, self._copy_in)

    def start(self) -> Transfer:
        """Begin the copy out; the host collective starts in a later test, or in wait."""
        self._transfer.begin()
        return self._transfer

    def blocking(self) -> None:
        """Copy out, the blocking collective, copy in; the result is on the device on return."""
        is_copied = self._copy_out()
        while not is_copied():
            pass
        self._blocking()
        is_copied = self._copy_in()
        while not is_copied():
            pass

    def release(self) -> None:
        """Free what the collective made."""
        self._collective.release()
