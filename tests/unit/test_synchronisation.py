"""How many round trips are made, and when: with a partner who answers at once on a clock moved by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from mpibench.engine.offsets import Clocks
from mpibench.engine.synchronisation import Synchronisation


class Partner:
    """Rank 1, seen from rank 0: each round trip lasts as the list says, the last one for all that follow."""

    def __init__(self, trips: list[int]) -> None:
        self.trips, self.made, self.now, self.asked = trips, 0, 0, True

    def clock(self) -> int:
        return self.now

    def Send(self, message: Any, rank: int, tag: int) -> None:  # noqa: N802
        self.asked = bool(message[0])

    def Recv(self, reply: Any, rank: int, tag: int) -> None:  # noqa: N802
        lasts = self.trips[min(self.made, len(self.trips) - 1)]
        reply[0] = self.now + lasts // 2 + 10**12
        self.now += lasts
        self.made += 1

    def bcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value, {}]


def synchronisation(trips: list[int], identities: str = "ab") -> tuple[Synchronisation, Partner]:
    partner = Partner(trips)
    hosts = [SimpleNamespace(name=f"host-{name}", clock=name) for name in identities]
    guard = SimpleNamespace(beat=lambda iteration, phase: None)
    session: Any = SimpleNamespace(rank=0, hosts=hosts, control=partner, guard=guard)
    return Synchronisation(session, Clocks(identities), partner.clock), partner


@pytest.mark.parametrize(
    ("trips", "made"),
    [
        ([500], 100),  # the least 100
        ([500] * 19 + [400, 500], 100),
        ([500] * 89 + [400, 500], 120),  # 30 after the last fall
        ([500] * 89 + [400] + [500] * 28 + [390, 500], 149),
        ([1000 - i for i in range(200)] + [2000], 230),
    ],
)
def test_round_trips_until_the_least_has_settled(trips: list[int], made: int) -> None:
    synchronised, partner = synchronisation(trips)
    synchronised.synchronise()
    assert partner.made == made
    assert not partner.asked, "the partner was told that it is over"
    (point,) = synchronised.clocks.points[1]
    assert (point.offset_ns, point.uncertainty_ns, point.round_trips) == (10**12, -(-min(trips) // 2), made)


def test_one_clock_is_not_compared() -> None:
    synchronised, partner = synchronisation([500], "aa")
    synchronised.begin()
    synchronised.renew()
    synchronised.finish()
    assert partner.made == 0
    assert synchronised.record() == []


def test_it_is_repeated_where_it_is_cheap_or_extrapolating_would_double_the_uncertainty() -> None:
    """A synchronisation takes 100 x 500 ns = 50 us."""
    synchronised, partner = synchronisation([500])

    def renewed(after: int) -> bool:
        """Whether one is made `after` ns behind the end of the last."""
        before, partner.now = partner.made, partner.now + after
        synchronised.renew()
        return partner.made > before

    synchronised.begin()
    synchronised.begin()
    assert partner.made == 100, "once"
    assert renewed(0), "a visit between the first two"
    assert renewed(0), "50 us later: half of what is between the two before, or more"
    assert renewed(10**7), "cheap: under a tenth of the time"
    assert not renewed(10**5), "a third of the time, and known as well as before"
    assert renewed(5 * 10**5), "600 us behind the last"
    synchronised.finish()
    record = synchronised.record()
    assert [(host["host"], host["rank"], host["against_rank"]) for host in record] == [("host-b", 1, 0)]
    assert len(record[0]["synchronisations"]) == partner.made // 100
    assert set(record[0]["synchronisations"][0]) == {"at_ns", "offset_ns", "uncertainty_ns", "round_trips", "early"}
