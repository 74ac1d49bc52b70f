"""Z: an all-reduce that is started only when it is waited for. Its overlap is 0, whatever the network can do.

`--collective mpibench.selftest.deferred:Deferred`: T is then the compute and after it start and Wait, even on
a network card that moves on alone. An instrument that reads anything but 0 adds, or loses, time of its own.
What would fool you: on a fast network the caches decide. N starts after a preamble of at most 2 ms since the
buffers were written, Z after that and the compute: a colder collective, and an overlap below 0 that is
true. S has the same age as Z: here it is the same calls as well, so that S - T reads 0 on any network.
"""

from collections.abc import Callable
from typing import Any

from mpibench.collectives.iallreduce import Iallreduce
from mpibench.protocols import Transfer


class _Later:
    """The Transfer that has not begun."""

    def __init__(self, start: Callable[[], Transfer]) -> None:
        self._start = start

    def Test(self) -> bool:
        """Nothing is in flight that could be complete."""
        return False

    def Wait(self) -> None:
        """Start, and wait."""
        self._start().Wait()


class Deferred(Iallreduce):
    """MPI_Iallreduce and MPI_Wait, both in Wait; the blocking counterpart is the same."""

    def prepare(self, comm: Any, buffers: Any) -> None:
        """Bind as iallreduce does."""
        super().prepare(comm, buffers)
        later = _Later(self.start)
        self.start = lambda: later
        self.blocking = later.Wait
