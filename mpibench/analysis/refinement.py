"""Where to measure next, so that a cover or hidden point is known more exactly.

A point lies in a bracket of two neighbouring message sizes. A new size inside narrows the
bracket; once its half-width is within the precision, the rest of the uncertainty is that of the
times themselves.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import isinf, log, sqrt
from typing import NamedTuple

from mpibench.analysis.crossover import AT_SWITCH, FOUND, Cover, CoverInput, Hidden

_EDGE = 0.2  # of a bracket, by the logarithm: a new size stays so far from both ends

_PLATEAU = 0.5  # relative growth of N over that of the message: below it latency is the greater part
_WIDER = "the point cannot be told as exactly as asked"


class Next(NamedTuple):
    """What would sharpen a point."""

    nbytes: float | None = None  # the message size to measure; None if there is none
    note: str = ""  # why there is none, where that is not plain


def next_for_cover(points: Sequence[CoverInput], cover: Cover, precision: float) -> Next:
    """The size to measure for the cover point: where N = C by interpolation, or the middle of a switch.

    Args:
        points: as for `cover_point`.
        cover: what `cover_point` made of them.
        precision: asked half-width of the point, as a share of it.

    Returns:
        Without a size if the point is no crossing, is known well enough, or cannot be known so well:
        on a latency plateau N hardly grows with the message, and the most iterations allowed would
        leave the point more uncertain than asked.
    """
    if cover.status not in (FOUND, AT_SWITCH) or cover.below is None or cover.above is None:
        return Next()
    below, above = (next(p for p in points if p.nbytes == nbytes) for nbytes in (cover.below, cover.above))
    if (above.nbytes - below.nbytes) / 2 <= precision * above.nbytes:
        return Next()
    slope = (above.nonblocking_s - below.nonblocking_s) / (above.nbytes - below.nbytes)
    reachable_s = max(below.reachable_s, above.reachable_s)
    if isinf(reachable_s):  # too few iterations so far
        return Next()
    if reachable_s > slope * precision * above.nbytes:
        between = f"between {below.nbytes} and {above.nbytes} B"
        if slope * below.nbytes < _PLATEAU * below.nonblocking_s:
            growth = above.nonblocking_s / below.nonblocking_s - 1
            return Next(note=f"on a latency plateau, N grows only by {growth:.0%} {between}: {_WIDER}")
        return Next(note=f"N is too noisy {between}: {_WIDER}")
    if cover.status == AT_SWITCH or cover.nbytes is None or below.nbytes == 0:
        return Next(_middle(below.nbytes, above.nbytes))
    width = log(above.nbytes / below.nbytes)
    share = min(max(log(cover.nbytes / below.nbytes) / width, _EDGE), 1 - _EDGE)
    return Next(below.nbytes * (above.nbytes / below.nbytes) ** share)


def next_for_hidden(sizes: Sequence[int], hidden: Hidden, precision: float) -> Next:
    """The size to measure for the hidden point: the middle of the widest gap between it and the next exposed size.

    Args:
        sizes: that were classified, ascending.
        hidden: what `hidden_point` made of them.
        precision: asked half-width of the point, as a share of it.
    """
    if hidden.status != FOUND or hidden.nbytes is None or hidden.hi is None:
        return Next()
    inside = [nbytes for nbytes in sizes if hidden.nbytes <= nbytes <= hidden.hi]
    below, above = max(pairwise(inside), key=lambda pair: pair[1] / max(pair[0], 1))
    if (above - below) / 2 <= precision * above:
        return Next()
    return Next(_middle(below, above))


def _middle(below: float, above: float) -> float:
    return sqrt(below * above) if below else above / 2
