"""iallreduce: MPI_Iallreduce beside MPI_Allreduce, sum, as gradient exchange uses it.

Shows whether the library moves a non-blocking collective while the program computes. What
would fool you: the non-blocking operation often runs another algorithm than the blocking one,
so part of a gain or loss has nothing to do with overlap (the column `nonblocking_penalty`).
"""

import functools
from collections.abc import Callable
from typing import Any

from mpibench.protocols import Transfer


class Iallreduce:
    """MPI_Iallreduce and MPI_Allreduce with MPI_SUM on the buffers' specifications.

    After `prepare`, `start` and `blocking` are the library's calls with their arguments bound: no
    frame of Python stands between a clock read and MPI.
    """

    start: Callable[[], Transfer]
    blocking: Callable[[], None]

    def prepare(self, comm: Any, buffers: Any) -> None:
        """Bind to `comm` and to `buffers.send`, `buffers.receive` (or MPI_IN_PLACE)."""
        self.start = functools.partial(comm.Iallreduce, buffers.send, buffers.receive)
        self.blocking = functools.partial(comm.Allreduce, buffers.send, buffers.receive)

    def release(self) -> None:
        """Nothing to free: every request was waited for."""
