"""persistent: MPI_Allreduce_init once (MPI-4), then MPI_Start and MPI_Wait every time.

Shows what planning ahead saves: the start of a persistent collective skips argument checks and
the choice of the algorithm. What would fool you: it says nothing about progress, and libraries
often implement it as a non-blocking collective in disguise.
"""

from typing import Any

from mpibench.collectives.iallreduce import Iallreduce, RequestTransfer
from mpibench.errors import Unsupported


class Persistent(Iallreduce):
    """A persistent all-reduce; the blocking counterpart is MPI_Allreduce."""

    def prepare(self, comm: Any, buffers: Any) -> None:
        """Bind and initialise.

        Raises:
            Unsupported: if the MPI library has no MPI_Allreduce_init.
        """
        super().prepare(comm, buffers)
        try:
            self._transfer.request = comm.Allreduce_init(self._send, self._receive)
        except NotImplementedError:
            raise Unsupported("this MPI library has no MPI_Allreduce_init (it is MPI-4)") from None
        self._start = self._transfer.request.Start

    def start(self) -> RequestTransfer:
        """MPI_Start."""
        self._start()
        return self._transfer

    def release(self) -> None:
        """Free the persistent request."""
        self._transfer.request.Free()
