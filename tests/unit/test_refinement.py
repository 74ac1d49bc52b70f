"""Where to measure next: step by step, and whole refinements of synthetic curves against dense sweeps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from mpibench.analysis.crossover import (
    AT_SWITCH,
    BEYOND,
    EXPOSED,
    FOUND,
    HIDDEN,
    NEVER,
    UNRESOLVED,
    CoverInput,
    Hidden,
    cover_point,
    hidden_point,
)
from mpibench.analysis.refinement import next_for_cover, next_for_hidden
from mpibench.analysis.statistics import Interval

C = 1e-3  # seconds of compute
Curve = Callable[[float], float]


def affine(nbytes: float) -> float:
    """N = 50 us + n / 500 MB/s: the cover point is at 475000 B."""
    return 50e-6 + nbytes / 500e6


def bent(nbytes: float) -> float:
    """N grows with n^1.5, as no straight line does; the cover point is at 10^6 B."""
    return C * (nbytes / 1e6) ** 1.5


def switched(nbytes: float) -> float:
    """Another, far slower algorithm from 100 000 B on."""
    return (0.2 if nbytes < 100_000 else 2.5) * C


def points(curve: Curve, sizes: Sequence[int], error: float = 0.01) -> list[CoverInput]:
    """Every size measured to a half-width of `error` of N, at the most iterations a third of that."""
    made = []
    for nbytes in sizes:
        n = curve(nbytes)
        made.append(CoverInput(nbytes, Interval(n - C, n - C - error * n, n - C + error * n), n, error * n / 3))
    return made


def refine(curve: Curve, precision: float, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Measure where it is wanted until nothing is; the sizes and how many were added."""
    measured = sorted(sizes)
    for added in range(20):
        given = points(curve, measured)
        wanted = next_for_cover(given, cover_point(given), precision).nbytes
        if wanted is None:
            return measured, added
        measured = sorted({*measured, round(wanted)})
    raise AssertionError("does not end")


OCTAVES = [1024 << k for k in range(15)]


@pytest.mark.parametrize(("curve", "truth"), [(affine, 475_000), (bent, 1_000_000)])
def test_a_few_sizes_more_know_the_cover_point_as_a_dense_sweep_does(curve: Curve, truth: float) -> None:
    measured, added = refine(curve, 0.05, OCTAVES)
    cover = cover_point(points(curve, measured))
    assert added <= 4, "64 sizes over the same range are 49 more"
    assert cover.status == FOUND
    assert cover.below is not None
    assert cover.above is not None
    assert (cover.above - cover.below) / 2 <= 0.05 * cover.above
    assert cover.nbytes == pytest.approx(truth, rel=0.01)
    dense = cover_point(points(curve, [round(1024 * 2 ** (k / 63 * 14)) for k in range(64)]))
    assert abs(cover.nbytes - truth) <= max(abs((dense.nbytes or 0) - truth), 0.002 * truth)


def test_a_switch_is_closed_in_on_by_halves() -> None:
    measured, added = refine(switched, 0.05, OCTAVES)
    cover = cover_point(points(switched, measured))
    assert cover.status == AT_SWITCH
    assert cover.below is not None
    assert cover.above is not None
    assert cover.below < 100_000 <= cover.above
    assert (cover.above - cover.below) / 2 <= 0.05 * cover.above
    assert added <= 4  # a factor of 2, then 1.41, 1.19, 1.09


def test_on_a_latency_plateau_nothing_is_spent_and_it_is_said() -> None:
    def plateau(nbytes: float) -> float:
        return C * (0.999 + nbytes / 1e9)

    given = points(plateau, [262_144, 524_288, 1_048_576, 2_097_152])
    step = next_for_cover(given, cover_point(given), 0.05)
    assert step.nbytes is None
    assert "latency plateau" in step.note


def test_noise_is_not_called_a_plateau() -> None:
    given = points(affine, OCTAVES, error=0.5)
    step = next_for_cover(given, cover_point(given), 0.05)
    assert step.nbytes is None
    assert "too noisy" in step.note


def test_a_point_without_an_interval_is_not_refined_and_no_reason_is_invented() -> None:
    given = [p._replace(reachable_s=math.inf, excess=Interval(p.excess.median, math.nan, math.nan))
             for p in points(affine, OCTAVES)]  # fmt: skip
    assert next_for_cover(given, cover_point(given), 0.05) == (None, "")


@pytest.mark.parametrize("sizes", [[1024, 2048], [1 << 24, 1 << 25]])
def test_what_is_no_crossing_is_not_refined(sizes: list[int]) -> None:
    given = points(affine, sizes)
    assert cover_point(given).status in (BEYOND, NEVER)
    assert next_for_cover(given, cover_point(given), 0.05) == (None, "")


def test_a_bracket_from_nothing_up_has_a_middle() -> None:
    given = points(affine, [0, 4_000_000])
    assert next_for_cover(given, cover_point(given), 0.05).nbytes == 2_000_000


def hidden_up_to(limit: int, vague: range) -> Callable[[int], str]:
    return lambda n: UNRESOLVED if n in vague else HIDDEN if n <= limit else EXPOSED


@pytest.mark.parametrize("vague", [range(0), range(290_000, 310_000)])
def test_the_hidden_point_is_closed_in_on(vague: range) -> None:
    class_of = hidden_up_to(300_000, vague)
    sizes, hidden = list(OCTAVES), Hidden(UNRESOLVED)
    for _ in range(20):
        hidden = hidden_point(sizes, [class_of(n) for n in sizes])
        wanted = next_for_hidden(sizes, hidden, 0.05).nbytes
        if wanted is None:
            break
        sizes = sorted({*sizes, round(wanted)})
    assert hidden.status == FOUND
    assert hidden.lo is not None
    assert hidden.hi is not None
    assert hidden.lo <= 300_000 < hidden.hi
    inside = [n for n in sizes if hidden.lo <= n <= hidden.hi]
    assert all((b - a) / 2 <= 0.05 * b for a, b in pairwise(inside))
    assert len(sizes) - len(OCTAVES) <= 6


@pytest.mark.parametrize("status", [BEYOND, NEVER, UNRESOLVED])
def test_a_hidden_point_that_is_none_is_not_refined(status: str) -> None:
    assert next_for_hidden([1, 2, 4], replace(Hidden(status), nbytes=2), 0.05).nbytes is None
