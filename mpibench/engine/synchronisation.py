"""Compares the clocks of a run's hosts by messages on the harness's own communicator.

One rank per clock answers its parent's: rank 0's, or with very many clocks another in a tree.
Each comparison is at least 100 round trips, and goes on until the least has not fallen for 30.
Ranks that share a clock need none, and none is made where all do.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

from mpibench.engine.offsets import Clocks, Point, estimate
from mpibench.engine.session import Session

_LEAST_TRIPS = 100
_STEADY_TRIPS = 30  # without a shorter one
_TAG = 77
_SHARE = 10  # a synchronisation that is not needed costs at most one part in so many of the time


class Synchronisation:
    """The clocks of all ranks, compared again and again while a run measures.

    Args:
        session: MPI.
        clocks: which ranks share one; as the session knows it if not given.
        clock: tells nanoseconds; that of the stamps which are to be compared.

    Attributes:
        clocks: what is known; complete on rank 0 only.
    """

    def __init__(
        self, session: Session, clocks: Clocks | None = None, clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        self._session, self._clock = session, clock
        self.clocks = clocks or Clocks([host.clock for host in session.hosts])
        self._began: list[int] = []  # of each synchronisation, rank 0's clock
        self._cost_ns = 0

    def begin(self) -> None:
        """Before something is measured: there must be a point before it. Collective, as the following."""
        if not self.clocks.one and not self._began:
            self.synchronise()

    def renew(self) -> None:
        """After something was measured: another point, if it is worth its time."""
        if not self.clocks.one and self._session.control.bcast(self._due()):
            self.synchronise()

    def finish(self) -> None:
        """At the end: the last point is behind everything that was measured."""
        if not self.clocks.one and self._began:
            self.synchronise()

    def _due(self) -> bool:
        """Whether a synchronisation is cheap, or extrapolating would double the uncertainty of the last. On rank 0."""
        if len(self._began) < 2:
            return True
        elapsed = self._clock() - self._began[-1]
        return elapsed > _SHARE * self._cost_ns or 2 * elapsed > self._began[-1] - self._began[-2]

    def synchronise(self) -> None:
        """Compare all clocks."""
        self._session.guard.beat(-1, -1)
        self._began.append(self._clock())
        leaders, parents = self.clocks.leaders, self.clocks.parents
        points = {}
        if self._session.rank in leaders:
            own = leaders.index(self._session.rank)
            if own:
                self._answer(leaders[parents[own]])
            for child in range(1, len(leaders)):
                if parents[child] == own:
                    points[child] = self._ask(leaders[child])
        for told in self._session.control.gather(points) or ():
            for clock, point in told.items():
                self.clocks.points[clock].append(Point(*point))
        self._cost_ns = self._clock() - self._began[-1]

    def _ask(self, rank: int) -> Point:
        """Round trips to `rank` until the least one has settled."""
        control, clock, reply = self._session.control, self._clock, np.zeros(1, dtype=np.int64)
        go, stop = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        trips: list[tuple[int, int, int]] = []
        least, settled = 1 << 62, 0
        while len(trips) < _LEAST_TRIPS or settled < _STEADY_TRIPS:
            sent = clock()
            control.Send(go, rank, _TAG)
            control.Recv(reply, rank, _TAG)
            received = clock()
            settled = settled + 1 if received - sent >= least else 0
            least = min(least, received - sent)
            trips.append((sent, int(reply[0]), received))
        control.Send(stop, rank, _TAG)
        return estimate(*np.array(trips, dtype=np.int64).T)

    def _answer(self, rank: int) -> None:
        """Reply with this clock's time to whatever `rank` asks."""
        control, clock, asked, stamp = self._session.control, self._clock, np.ones(1, np.int64), np.ones(1, np.int64)
        while True:
            control.Recv(asked, rank, _TAG)
            if not asked[0]:
                return
            stamp[0] = clock()
            control.Send(stamp, rank, _TAG)

    def record(self) -> list[dict[str, Any]]:
        """What run.json keeps: each clock's offsets against its parent's, with times and uncertainties."""
        hosts, leaders, parents = self._session.hosts, self.clocks.leaders, self.clocks.parents
        return [
            {
                "host": hosts[leaders[clock]].name,
                "rank": leaders[clock],
                "against_rank": leaders[parents[clock]],
                "synchronisations": [point._asdict() for point in points],
            }
            for clock, points in enumerate(self.clocks.points)
            if clock
        ]
