"""iallreduce: MPI_Iallreduce beside MPI_Allreduce, sum, as gradient exchange uses it.

Shows whether the library moves a non-blocking collective while the program computes. What
would fool you: the non-blocking operation often runs another algorithm than the blocking one,
so part of a gain or loss has nothing to do with overlap (the column `nonblocking_penalty`).
"""

from typing import Any


class RequestTransfer:
    """An MPI request as a `Transfer`. One object is reused, so that starting allocates nothing."""

    __slots__ = ("request",)

    def __init__(self) -> None:
        self.request: Any = None

    def test(self) -> bool:
        """One MPI_Test."""
        return bool(self.request.Test())

    def wait(self) -> None:
        """MPI_Wait."""
        self.request.Wait()


class Iallreduce:
    """MPI_Iallreduce and MPI_Allreduce with MPI_SUM on the buffers' specifications."""

    def __init__(self) -> None:
        self._transfer = RequestTransfer()

    def prepare(self, comm: Any, buffers: Any) -> None:
        """Bind to `comm` and to `buffers.send`, `buffers.receive` (or MPI_IN_PLACE)."""
        self._comm, self._send, self._receive = comm, buffers.send, buffers.receive
        self._iallreduce, self._allreduce = comm.Iallreduce, comm.Allreduce

    def start(self) -> RequestTransfer:
        """MPI_Iallreduce."""
        self._transfer.request = self._iallreduce(self._send, self._receive)
        return self._transfer

    def blocking(self) -> None:
        """MPI_Allreduce."""
        self._allreduce(self._send, self._receive)

    def release(self) -> None:
        """Nothing to free: every request was waited for."""
