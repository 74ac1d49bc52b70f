"""Clocks that are apart by a known amount, compared by messages of known delays."""

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpibench.engine.offsets import Clocks, Line, Point, estimate

BOOT = 8_000_000_000_000_000  # ns: three months, more than a float can tell to the nanosecond


class Simulated:
    """A clock that is ahead of its parent's, and gains or loses steadily."""

    def __init__(self, ahead_ns: int, drift: float = 0.0) -> None:
        self.ahead_ns, self.drift = ahead_ns, drift

    def at(self, parent_ns: Any) -> Any:
        since = np.asarray(parent_ns, dtype=np.int64) - BOOT
        return BOOT + self.ahead_ns + since + np.rint(since * self.drift).astype(np.int64)


def round_trips(clock: Simulated, begin: int, there: Any, back: Any) -> Point:
    """The estimate from messages that take `there` and `back` ns, one after the other from `begin` on."""
    there, back = np.asarray(there, dtype=np.int64), np.asarray(back, dtype=np.int64)
    sent = begin + np.concatenate([[0], np.cumsum(there + back)[:-1]])
    return estimate(sent, clock.at(sent + there), sent + there + back)


def jitter(seed: int, shape: int = 120) -> Any:
    return (2000 + np.random.default_rng(seed).exponential(3000, shape)).astype(np.int64)


@given(
    st.integers(-(10**15), 10**15),
    st.floats(-1e-4, 1e-4),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=50),
)
def test_the_true_offset_lies_within_the_uncertainty_however_unequal_the_ways(
    ahead: int, drift: float, delays: list[tuple[int, int]]
) -> None:
    clock = Simulated(ahead, drift)
    point = round_trips(clock, BOOT + 5, *zip(*delays, strict=True))
    least = min(there + back for there, back in delays)
    assert point.uncertainty_ns == -(-least // 2)
    assert point.round_trips == len(delays)
    assert point.early == 0
    parent_then = point.at_ns - BOOT - ahead  # without drift: when the reply was stamped, on the parent's clock
    true = ahead + drift * parent_then / (1 + drift)
    assert abs(point.offset_ns - true) <= point.uncertainty_ns + 2  # two roundings


def test_equal_ways_are_exact() -> None:
    assert round_trips(Simulated(-12345), BOOT, [900, 500, 700], [900, 500, 700])[1:3] == (-12345, 500)


def test_a_clock_that_is_set_while_it_is_compared_is_found() -> None:
    sent = BOOT + np.arange(100) * 10_000
    stamped = sent + 2_000
    stamped[60:] += 50_000
    assert estimate(sent, stamped, sent + 4_000).early == 40, "one side of the step cannot be true"
    stamped[60:] -= 50_000
    assert estimate(sent, stamped, sent + 4_000).early == 0


def compared(clock: Simulated, *times: int) -> list[Point]:
    return [round_trips(clock, BOOT + time, jitter(time), jitter(time + 1)) for time in times]


@pytest.mark.parametrize("drift", [0.0, 3e-5, -1e-4])
def test_between_two_points_time_is_known_to_their_uncertainty(drift: float) -> None:
    clock, second = Simulated(-(10**12), drift), 10**9
    line = Line(*compared(clock, 0, second))
    true = BOOT + np.arange(10**7, second, 10**7)
    bound = line.uncertainty_ns(clock.at(true))
    assert (np.abs(line.to_parent(clock.at(true)) - true) <= bound + 3).all()
    assert bound.max() <= max(line.first.uncertainty_ns, line.second.uncertainty_ns) + 1e-6
    assert bound.max() < 5000, "the least of 120 trips of 4 us and more"


@pytest.mark.parametrize("drift", [3e-5, -1e-4])
def test_behind_the_last_point_it_is_known_less_and_less(drift: float) -> None:
    clock, second = Simulated(0, drift), 10**9
    line = Line(*compared(clock, 0, second))
    true = BOOT + np.array([second, 3 * second // 2, 2 * second])
    bound = line.uncertainty_ns(clock.at(true))
    assert (np.abs(line.to_parent(clock.at(true)) - true) <= bound + 3).all()
    equal = Line(Point(0, 0, 100, 1, 0), Point(second, 0, 100, 1, 0))
    assert equal.uncertainty_ns(np.array([0, second // 2, second, 3 * second // 2, 2 * second])).tolist() == [
        100, 100, 100, 200, 300
    ]  # fmt: skip


def test_ranks_on_one_clock_need_no_comparison() -> None:
    clocks = Clocks(["a", "a", "a"])
    assert clocks.one
    stamps = BOOT + np.arange(6).reshape(3, 2)
    assert (clocks.to_root(stamps) == stamps).all()
    assert clocks.uncertainty_ns(stamps) == 0


def test_the_first_rank_of_each_clock_stands_for_it() -> None:
    clocks = Clocks(["a", "b", "a", "c", "b"])
    assert (clocks.leaders, clocks.parents) == ([0, 1, 3], [0, 0, 0])
    ahead = {"a": 0, "b": 7 * 10**9, "c": -(10**15)}
    for clock, uncertainty in ((1, 40), (2, 100)):
        offset = list(ahead.values())[clock]
        clocks.points[clock] = [Point(BOOT + offset + at, offset, uncertainty, 100, 0) for at in (0, 10**6)]
    true = BOOT + np.arange(10).reshape(5, 2)
    own = true + np.array([[ahead[name]] for name in "abacb"])
    assert (clocks.to_root(own) == true).all(), "to the nanosecond"
    assert clocks.uncertainty_ns(own) == pytest.approx(140), "of two ranks against each other"


def test_up_to_a_thousand_clocks_rank_0_asks_each_and_beyond_a_tree_does() -> None:
    assert set(Clocks([str(i) for i in range(1000)]).parents) == {0}
    parents = Clocks([str(i) for i in range(5000)]).parents
    children = np.bincount(parents[1:])
    assert children.max() == 32
    assert all(parent < clock for clock, parent in enumerate(parents) if clock), "each has been compared before it asks"
    depth = [0]
    for clock in range(1, 5000):
        depth.append(depth[parents[clock]] + 1)
    assert max(depth) == 3  # 32 + 32^2 + 32^3


def test_in_a_tree_offsets_and_uncertainties_add_up() -> None:
    clocks = Clocks(["a", "b", "c"], straight=2, fan_out=1)
    assert clocks.parents == [0, 0, 1]
    steps = [Simulated(0), Simulated(10**9, 2e-5), Simulated(-(10**11), -5e-5)]
    for clock in (1, 2):
        clocks.points[clock] = compared(steps[clock], 0, 10**9)
    true = BOOT + np.array([[10**8], [5 * 10**8], [9 * 10**8]])
    own = np.array([true[0], steps[1].at(true[1]), steps[2].at(steps[1].at(true[2]))])
    bound = clocks.uncertainty_ns(own)
    assert (np.abs(clocks.to_root(own) - true) <= bound + 5).all()
    sums = [min(point.uncertainty_ns for point in clocks.points[clock]) for clock in (1, 2)]
    assert bound >= sums[0] + sum(sums)


def test_a_single_point_does_not_tell_how_a_clock_goes_on() -> None:
    clocks = Clocks(["a", "b"])
    clocks.points[1] = [Point(BOOT, 0, 10, 100, 0)]
    assert clocks.uncertainty_ns(BOOT + np.zeros((2, 1), dtype=np.int64)) == inf
