"""How far the clocks of a run's hosts are apart, from round trips of messages. Pure; knows no MPI.

A round trip tells the other clock's offset to half its own duration, however unequal the two ways
are: the reply was stamped between sending and receiving (F. Cristian, Distributed Computing 3
(1989) 146). So the least round trip tells most. Two such points make a line: offsets in between
are interpolated, later ones extrapolated, with an uncertainty that grows accordingly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

STRAIGHT = 1000  # clocks that rank 0 still compares with its own one after the other
FAN_OUT = 32  # beyond: clocks that each one compares with its own
_MOST_DRIFT = 5e-4  # between clocks of one synchronisation: what the kernel slews at most (adjtimex(2))


class Point(NamedTuple):
    """A clock against its parent's at one moment. Kept in run.json."""

    at_ns: int  # that clock's own time, at the least round trip
    offset_ns: int  # that clock minus its parent's
    uncertainty_ns: int  # half the least round trip
    round_trips: int  # how many were made
    early: int  # of them, those whose message was received before it was sent, by this estimate


def estimate(sent: Any, stamped: Any, received: Any) -> Point:
    """The point of a series of round trips.

    Args:
        sent, received: the parent's clock around each trip; int64 arrays, nanoseconds.
        stamped: the other clock when it replied.
    """
    trip = received - sent
    least = int(trip.argmin())
    offset = int(stamped[least] - (sent[least] + received[least]) // 2)
    uncertainty = int(trip[least] + 1) // 2
    there = stamped - offset
    slack = uncertainty + 1 + _MOST_DRIFT * np.abs(stamped - stamped[least])
    early = int(((there < sent - slack) | (received < there - slack)).sum())
    return Point(int(stamped[least]), offset, uncertainty, len(trip), early)


@dataclass(frozen=True)
class Line:
    """The offset of a clock against its parent's as it goes on from one point to the next."""

    first: Point
    second: Point

    def _weight(self, stamps: Any) -> Any:
        """0 at the first point, 1 at the second."""
        return (stamps - self.first.at_ns) / (self.second.at_ns - self.first.at_ns)

    def to_parent(self, stamps: Any) -> Any:
        """This clock's int64 stamps as the parent's clock would have read."""
        change = self.second.offset_ns - self.first.offset_ns
        return stamps - self.first.offset_ns - np.rint(self._weight(stamps) * change).astype(np.int64)

    def uncertainty_ns(self, stamps: Any) -> Any:
        """The bound of the error at these stamps, if the drift is steady: the points' own, weighted as they are."""
        weight = self._weight(stamps)
        return np.abs(1 - weight) * self.first.uncertainty_ns + np.abs(weight) * self.second.uncertainty_ns


class Clocks:
    """The clocks of a run and how they differ.

    Args:
        identities: of each rank's clock, by rank; ranks with the same one share a clock.
        straight: number of clocks up to which each is compared with rank 0's; beyond, a tree.
        fan_out: of the tree.

    Attributes:
        leaders: the first rank on each clock; clock 0 is rank 0's.
        parents: the clock that each is compared with; 0 for clock 0.
        points: what is known of each clock against its parent, in the order of time.
    """

    def __init__(self, identities: Sequence[str], straight: int = STRAIGHT, fan_out: int = FAN_OUT) -> None:
        known = list(dict.fromkeys(identities))
        self._clock_of = np.array([known.index(identity) for identity in identities])
        self.leaders = [identities.index(identity) for identity in known]
        direct = len(known) <= straight
        self.parents = [0 if direct else max(0, (clock - 1) // fan_out) for clock in range(len(known))]
        self.points: list[list[Point]] = [[] for _ in known]

    @property
    def one(self) -> bool:
        """Whether all ranks read one clock: there is nothing to compare."""
        return len(self.leaders) == 1

    @property
    def early(self) -> int:
        """Messages that were received before they were sent, by the last two points of each clock."""
        return sum(point.early for points in self.points for point in points[-2:])

    def to_root(self, stamps: Any) -> Any:
        """Stamps of shape (ranks, ...) as rank 0's clock would have read, by the last two points of each clock."""
        there = stamps.copy()
        for clock in range(1, len(self.leaders)):
            ranks = self._clock_of == clock
            there[ranks], _ = self._climb(clock, stamps[ranks])
        return there

    def uncertainty_ns(self, stamps: Any) -> float:
        """The bound of the error between any two ranks' times at `stamps` (ranks, ...); infinite if not known."""
        bounds = [0.0, 0.0]
        for clock in range(1, len(self.leaders)):
            _, bound = self._climb(clock, stamps[self._clock_of == clock])
            bounds.append(bound)
        return sum(sorted(bounds)[-2:])

    def _climb(self, clock: int, stamps: Any) -> tuple[Any, float]:
        """Stamps of a clock by rank 0's, and the bound of their error: from parent to parent."""
        bound = 0.0
        while clock:
            if len(self.points[clock]) < 2:
                return stamps, inf
            line = Line(*self.points[clock][-2:])
            bound += float(line.uncertainty_ns(stamps).max())
            stamps, clock = line.to_parent(stamps), self.parents[clock]
        return stamps, bound
