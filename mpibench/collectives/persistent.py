"""persistent: MPI_Allreduce_init once (MPI-4), then MPI_Start and MPI_Wait every time.

Shows what planning ahead saves: the start of a persistent collective skips argument checks and
the choice of the algorithm. What would fool you: it says nothing about progress, and libraries
often implement it as a non-blocking collective in disguise.
"""

from typing import Any

from mpibench.collectives.iallreduce import Iallreduce
from mpibench.errors import Unsupported
from mpibench.protocols import Transfer


class Persistent(Iallreduce):
    """A persistent all-reduce; the blocking counterpart is MPI_Allreduce."""

    def prepare(self, comm: Any, buffers: Any) -> None:
        """Bind and initialise.

        Raises:
            Unsupported: if the MPI library has no MPI_Allreduce_init.
        """
        super().prepare(comm, buffers)
        try:
            request = self._request = comm.Allreduce_init(buffers.send, buffers.receive)
        except NotImplementedError:
            raise Unsupported("this MPI library has no MPI_Allreduce_init (it is MPI-4)") from None
        start = request.Start

        def start_again() -> Transfer:
            start()
            return request  # type: ignore[no-any-return]

        self.start = start_again

    def release(self) -> None:
        """Free the persistent request."""
        self._request.Free()
