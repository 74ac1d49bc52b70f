"""From stamps of ranks whose clocks differ to rows, by hand-made visits of two hosts."""

from typing import Any

import numpy as np
import pytest

from mpibench.engine import measure
from mpibench.engine.fold import Measured, Where, fold
from mpibench.engine.offsets import Clocks, Point
from mpibench.engine.phases import phase_names

NAMES = phase_names(("none",))
B, N, C, S, T = range(5)
AHEAD = 5_000_000_000  # ns: the second host's clock
LASTS = np.array([900, 1000, 4000, 5000, 4500])  # ns, by phase
SLOT = 100_000
ITERATIONS = 7


def true_stamps(late: int = 200) -> Any:
    """Three ranks: 0 and 1 on one host, 2 on another, `late` ns late, and all end together; T grows by 10 ns."""
    every = np.zeros((3, ITERATIONS, 5, measure.FIELDS), dtype=np.int64)
    zero = SLOT * np.arange(ITERATIONS * 5).reshape(ITERATIONS, 5)
    every[..., measure.BEGIN] = zero
    every[2, ..., measure.BEGIN] += late
    every[..., measure.END] = zero + late + LASTS
    every[:, :, T, measure.END] += 10 * np.arange(ITERATIONS)
    every[..., measure.POSITION] = np.arange(5)
    every[..., measure.WAIT] = [[[10]], [[20]], [[30]]]
    return every


def by_own_clocks(every: Any) -> Any:
    own = every.copy()
    own[2, ..., [measure.BEGIN, measure.END]] += AHEAD
    return own


def clocks(uncertainty: int, wrong_by: int = 0, early: int = 0) -> Clocks:
    made = Clocks(["a", "a", "b"])
    made.points[1] = [
        Point(AHEAD + at, AHEAD + wrong_by, uncertainty, 100, early) for at in (-SLOT, SLOT * 5 * (ITERATIONS + 1))
    ]
    return made


def folded(known: Clocks, every: Any, hot: dict[str, Any] | None = None, *, carries: bool = True) -> Measured:
    return fold(Where(3, 1, "hhi", known, carries), NAMES, every, hot or {}, 1.0, True)


def of(samples: Any, phase: int) -> Any:
    return samples[(samples["phase"] == NAMES[phase][0]) & (samples["progress"] == NAMES[phase][1])]


def test_spans_are_those_of_one_clock() -> None:
    alone = folded(Clocks(["a"] * 3), true_stamps())
    assert alone.local is None
    assert of(alone.samples, N)["span_ns"].tolist() == [1000] * ITERATIONS
    assert of(alone.samples, N)["skew_ns"].tolist() == [200] * ITERATIONS
    corrected = folded(clocks(100), by_own_clocks(true_stamps()))
    assert corrected.samples.tolist() == alone.samples.tolist()
    assert corrected.rank_samples == alone.rank_samples, "all on rank 0's clock"
    assert corrected.ranks == alone.ranks


def test_local_durations_are_kept_beside_them() -> None:
    local = folded(clocks(100), by_own_clocks(true_stamps())).local
    rows = of(local, N)
    assert rows["span_ns"].tolist() == [1200] * ITERATIONS, "a late start of another rank counts"
    assert rows["skew_ns"].tolist() == [-1] * ITERATIONS
    assert rows["slowest_rank"].tolist() == [0] * ITERATIONS
    assert rows["wait_ns"].tolist() == [10] * ITERATIONS, "the parts of that rank"


@pytest.mark.parametrize(("uncertainty", "common"), [(199, True), (201, False)])
def test_a_fifth_of_n_decides_for_all_phases(uncertainty: int, common: bool) -> None:
    measured = folded(clocks(uncertainty), by_own_clocks(true_stamps()))
    assert ((measured.samples["skew_ns"] == 200) == common).all()
    assert (measured.samples["skew_ns"] == -1).all() == (not common)
    assert (measured.samples.tolist() == measured.local.tolist()) == (not common)
    assert measured.early == 0


def test_unknown_clocks_tell_nothing() -> None:
    unknown = Clocks(["a", "a", "b"])
    measured = folded(unknown, by_own_clocks(true_stamps()))
    assert measured.samples.tolist() == measured.local.tolist()


@pytest.mark.parametrize("wrong_by", [2000, -2000])
def test_messages_received_before_they_were_sent_are_found(wrong_by: int) -> None:
    """Rank 2 seems to be 2000 ns earlier or later than it was: longer than B and N last, shorter than S and T."""
    every = by_own_clocks(true_stamps())
    measured = folded(clocks(100, wrong_by), every)
    assert measured.early == 2 * ITERATIONS
    assert measured.samples.tolist() == measured.local.tolist()
    assert folded(clocks(2000, wrong_by), every).early == 0, "within the uncertainty"
    assert folded(clocks(100, wrong_by), every, carries=False).early == 0, "nothing was sent"


def test_early_messages_of_the_comparison_itself_count() -> None:
    measured = folded(clocks(100, early=2), by_own_clocks(true_stamps()))
    assert measured.early == 4
    assert (measured.samples["skew_ns"] == -1).all()


def test_a_hot_loop_is_judged_by_its_own_n() -> None:
    hot = {}
    for name, lasts in (("allreduce-hot", 300), ("nonblocking-hot", 400)):
        stamps = np.full((3, 4, 1, measure.FIELDS), -1, dtype=np.int64)
        stamps[..., measure.BEGIN] = (1000 * np.arange(4))[:, None]
        stamps[..., measure.END] = stamps[..., measure.BEGIN] + lasts
        stamps[..., measure.WRONG] = 0
        hot[name] = by_own_clocks(stamps)
    samples = folded(clocks(100), by_own_clocks(true_stamps()), hot).samples
    loops = np.isin(samples["phase"], list(hot))
    assert (samples["skew_ns"][loops] == -1).all()
    assert (samples["skew_ns"][~loops] == 200).all()
    samples = folded(clocks(80), by_own_clocks(true_stamps()), hot).samples
    assert (samples["skew_ns"][loops] == 0).all()
    assert samples["span_ns"][loops].tolist() == [300] * 4 + [400] * 4


def test_the_typical_iteration_has_the_median_t() -> None:
    (typical,) = folded(clocks(100), by_own_clocks(true_stamps())).typical.values()
    assert (typical.visit, typical.number) == (1, ITERATIONS // 2)
    assert (typical.stamps == true_stamps()[:, ITERATIONS // 2]).all(), "by rank 0's clock"
    assert typical.uncertainty_ns == pytest.approx(100)
