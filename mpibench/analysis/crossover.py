"""Up to which message size a compute covers the collective, and up to which it hides it.

The *cover point* is where N = C: what would be hidden if progress were free. The *hidden point*
is the largest size whose exposed time is nil (at most 5 % of B). Definitions: docs/overlap.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpibench.analysis.statistics import Interval, effective_count, holm, sign_test_below

HIDDEN_SHARE = 0.05  # of B: an exposed time up to this counts as none
_HALF = 0.025  # of the error, for each direction
_JUMP = 1.5  # N growing so much faster than the message is a switch of algorithm, not growth

FOUND, AT_SWITCH, BEYOND, NEVER, UNRESOLVED = "found", "at-switch", "beyond", "never", "unresolved"
HIDDEN, EXPOSED = "hidden", "exposed"


class CoverInput(NamedTuple):
    """One message size, for the cover point."""

    nbytes: int  # the message
    excess: Interval  # of N - C, seconds: below 0 the compute covers the collective
    nonblocking_s: float  # median N
    reachable_s: float = 0.0  # half-width of `excess` that the most iterations allowed would leave


@dataclass(frozen=True)
class Cover:
    """Where N = C."""

    status: str  # found, at-switch, beyond, never or unresolved
    nbytes: float | None = None  # beyond: the largest size measured; never: None
    lo: float | None = None  # interval of nbytes
    hi: float | None = None
    note: str = ""  # what else the reader must know
    below: int | None = None  # the neighbouring sizes between which it lies
    above: int | None = None


@dataclass(frozen=True)
class Hidden:
    """Up to where the collective is hidden."""

    status: str  # found, beyond, never or unresolved
    nbytes: int | None = None  # the largest hidden size
    lo: int | None = None  # the same
    hi: int | None = None  # the next larger exposed size
    from_nbytes: int | None = None  # the smallest hidden size
    note: str = ""  # holes, and why smaller messages are exposed


def cover_point(points: Sequence[CoverInput], sizes: Sequence[int] = ()) -> Cover:
    """The first size, going up, at which N = C; interpolated linearly in nbytes between neighbours.

    Args:
        points: ascending in nbytes.
        sizes: of all that was measured, ascending, those too that no point tells of; empty if there are none.
    """
    if not points:
        return Cover(UNRESOLVED)
    middle = [point.excess.median for point in points]
    crossing = _first_crossing(points, middle)
    lowest, highest = points[0], points[-1]
    if crossing is None:
        if middle[-1] > 0:
            untold = sizes and sizes[0] < lowest.nbytes
            return Cover(NEVER if lowest.excess.lo > 0 and not untold else UNRESOLVED)
        if highest.excess.hi > 0:
            return Cover(UNRESOLVED)
        if sizes and sizes[-1] > highest.nbytes:
            return Cover(UNRESOLVED, note=f"covered at {highest.nbytes} B; larger messages could not be judged")
        return Cover(BEYOND, highest.nbytes, note=_not_covered(points))
    index, nbytes = crossing
    below, above = points[index], points[index + 1]
    later = [p.nbytes for p in points[index + 2 :] if p.excess.hi <= 0]
    notes = [_not_covered(points[:index]), f"covered again at {', '.join(map(str, later))} B" if later else ""]
    note = "; ".join(filter(None, notes))
    if above.nonblocking_s / below.nonblocking_s > _JUMP * above.nbytes / max(below.nbytes, 1) and below.nbytes:
        text = f"at the switch between {below.nbytes} and {above.nbytes} B"
        note = "; ".join(filter(None, [text, note]))
        return Cover(AT_SWITCH, below.nbytes, below.nbytes, above.nbytes, note, below.nbytes, above.nbytes)
    # Less is covered if N - C is at its upper limit everywhere, more if at its lower one.
    lo = _first_crossing(points, [p.excess.hi for p in points])
    hi = _first_crossing(points, [p.excess.lo for p in points])
    return Cover(FOUND, nbytes, lo[1] if lo else None, hi[1] if hi else None, note, below.nbytes, above.nbytes)


def _not_covered(points: Sequence[CoverInput]) -> str:
    """Sizes below the cover point that are surely not covered, in words."""
    holes = [point.nbytes for point in points if point.excess.lo > 0]
    return f"not covered at {', '.join(map(str, holes))} B" if holes else ""


def _first_crossing(points: Sequence[CoverInput], excess: Sequence[float]) -> tuple[int, float] | None:
    """Where the excess first rises from 0 or below to above 0: the left neighbour's index, and nbytes."""
    for i in range(len(points) - 1):
        left, right = excess[i], excess[i + 1]
        if left <= 0 < right:
            share = -left / (right - left)
            return i, points[i].nbytes + share * (points[i + 1].nbytes - points[i].nbytes)
    return None


def classify(exposed_s: Sequence[Any], allreduce_s: Sequence[Any]) -> list[str]:
    """`hidden`, `exposed` or `unresolved` for each message size of one case family.

    Hidden: the median of exposed - 5 % of B is below 0. Exposed: that of exposed is above 0. Each by the
    sign test that belongs to the order-statistic interval, at 95 % over all sizes together (Holm).

    Args:
        exposed_s, allreduce_s: per size an array of one value per iteration, seconds; an empty one (not
            measured, or not to be trusted) stays unresolved and costs the others nothing.
    """
    usable = [i for i, exposed in enumerate(exposed_s) if len(exposed)]
    hidden_p = [_surely_below(exposed_s[i] - HIDDEN_SHARE * allreduce_s[i]) for i in usable]
    exposed_p = [_surely_below(-exposed_s[i]) for i in usable]
    classes = [UNRESOLVED] * len(exposed_s)
    # Two families of one-sided tests, each with half of the error. What is surely above 0 and surely
    # below 5 % of B is hidden.
    for i, hidden, exposed in zip(usable, holm(hidden_p, _HALF), holm(exposed_p, _HALF), strict=True):
        classes[i] = HIDDEN if hidden else EXPOSED if exposed else UNRESOLVED
    return classes


def _surely_below(series: Any) -> float:
    """The sign test's p-value for a time series."""
    return sign_test_below(series, effective_count(series))


def hidden_point(sizes: Sequence[int], classes: Sequence[str]) -> Hidden:
    """The largest hidden size and what stands around it. `sizes` ascend; `classes` from `classify`."""
    hidden = [n for n, c in zip(sizes, classes, strict=True) if c == HIDDEN]
    exposed = [n for n, c in zip(sizes, classes, strict=True) if c == EXPOSED]
    if not hidden:
        if exposed and len(exposed) == len(sizes):
            return Hidden(NEVER)
        seen = f"{len(exposed)} of {len(sizes)} sizes are exposed, the others unresolved" if exposed else ""
        return Hidden(UNRESOLVED, note=seen)
    top, bottom = hidden[-1], hidden[0]
    larger = [n for n in exposed if n > top]
    notes = []
    if holes := [n for n in exposed if bottom < n < top]:
        notes.append(f"a hole in the hidden range: exposed at {', '.join(map(str, holes))} B")
    if any(n < bottom for n in exposed):
        notes.append(f"below {bottom} B the cost of a start is exposed")
    status = BEYOND if top == sizes[-1] else FOUND if larger else UNRESOLVED
    if status == UNRESOLVED:
        notes.append(f"hidden at least up to {top} B, unresolved above")
    return Hidden(status, top, top, larger[0] if larger else None, bottom, "; ".join(notes))
