"""Is one configuration slower than another? The unit is the launch.

Launches of one binary differ by more than the iterations inside one do, so that an interval over iterations says
nothing of the next launch. Each launch gives one number, the log of its median; two sets of launches are told
apart by Welch's test, the rows of one figure together by Benjamini and Hochberg's procedure. Definitions:
docs/compare.md. Knows nothing of files or figures' names.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpibench.analysis.student import quantile, upper_tail

FALSE_DISCOVERIES = 0.01  # of the rows of one figure that are called slower or faster, at most so many by chance
CONFIDENCE = 0.95  # of the ratio's interval
POWER = 0.8  # that so many launches a side will tell
MOST_LAUNCHES = 1000  # a side; more are not to be asked for

SLOWER, FASTER, SAME, CANNOT_TELL = "slower", "faster", "same", "cannot tell"


@dataclass(frozen=True)
class Difference:
    """Two sets of launches of one figure of one case, compared."""

    base_launches: int  # how many have a median
    new_launches: int
    base_s: float  # geometric mean of the launches' medians, seconds
    new_s: float
    base_sd: float  # standard deviation of the launches' log medians, about a share; NaN below 2 launches
    new_sd: float
    ratio: float  # new over base
    lo: float  # interval of the ratio; NaN where the spread is not known
    hi: float
    p: float  # of Welch's test that the ratio is 1, two-sided; NaN where the spread is not known
    sd: float  # spread of a launch as used for both sides together; NaN where it is not known


class Answer(NamedTuple):
    """What a comparison says of one row."""

    word: str  # slower, faster, same or cannot tell
    launches: int | None = None  # cannot tell: launches a side it would take; None: over MOST_LAUNCHES, or not known


class _Spread(NamedTuple):
    """What is known of the difference of the two means of logs."""

    error: float  # its standard error
    df: float  # degrees of freedom
    sd: float  # of one launch


def difference(base: Sequence[float], new: Sequence[float], launch_sd: float | None, resolution: float) -> Difference:
    """Compare the launches' medians of one figure.

    With two launches or more on both sides the spread of each is its own (Welch). A side of one launch borrows
    the spread: `launch_sd` if it is given, else that of the other side.

    Source: B. L. Welch, The generalization of Student's problem when several different population variances are
    involved, Biometrika 34, 1947.

    Args:
        base: a launch's median each, seconds, more than 0.
        new: the same.
        launch_sd: standard deviation between launches to assume for a side of one, as a share.
        resolution: of the medians, in seconds. A spread is never taken for less than what rounding
            alone makes, resolution / sqrt(12): medians that happen to be equal are not known exactly.

    Raises:
        ValueError: if a side is empty.
    """
    if not len(base) or not len(new):
        raise ValueError("both sides need a launch")
    logs = [[math.log(value) for value in side] for side in (base, new)]
    means = [math.fsum(side) / len(side) for side in logs]
    sds = [_deviation(side, mean) for side, mean in zip(logs, means, strict=True)]
    floors = [resolution / math.sqrt(12) / math.exp(mean) for mean in means]
    used = [math.nan if math.isnan(sd) else max(sd, floor) for sd, floor in zip(sds, floors, strict=True)]
    spread = _spread((len(base), len(new)), (used[0], used[1]), launch_sd)
    apart = means[1] - means[0]
    lo = hi = p = sd = math.nan
    if spread:
        reach = quantile((1 + CONFIDENCE) / 2, spread.df) * spread.error
        lo, hi, sd = math.exp(apart - reach), math.exp(apart + reach), spread.sd
        p = min(1.0, 2 * upper_tail(abs(apart) / spread.error, spread.df))
    return Difference(
        len(base), len(new), math.exp(means[0]), math.exp(means[1]), sds[0], sds[1], math.exp(apart), lo, hi, p, sd
    )


def _deviation(logs: Sequence[float], mean: float) -> float:
    if len(logs) < 2:
        return math.nan
    return math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1))


def _spread(counts: tuple[int, int], sds: tuple[float, float], launch_sd: float | None) -> _Spread | None:
    """What is known of the spread; None if nothing is."""
    several = [index for index in (0, 1) if counts[index] > 1]
    if len(several) == 2:
        parts = [sd * sd / count for sd, count in zip(sds, counts, strict=True)]
        df = sum(parts) ** 2 / sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
        return _Spread(math.sqrt(sum(parts)), df, math.sqrt((sds[0] ** 2 + sds[1] ** 2) / 2))
    if launch_sd is not None:
        known = [sds[index] if index in several else launch_sd for index in (0, 1)]
        if several:  # one side's own spread, the other's as told: Welch with one part known exactly
            own = known[several[0]] ** 2 / counts[several[0]]
            whole = own + launch_sd**2
            df = whole**2 / (own**2 / (counts[several[0]] - 1))
            return _Spread(math.sqrt(whole), df, math.sqrt((known[0] ** 2 + known[1] ** 2) / 2))
        return _Spread(launch_sd * math.sqrt(2), math.inf, launch_sd)
    if several:
        sd, count = sds[several[0]], counts[several[0]]
        return _Spread(sd * math.sqrt(1 / counts[0] + 1 / counts[1]), count - 1, sd)
    return None


def benjamini_hochberg(p_values: Sequence[float], q: float = FALSE_DISCOVERIES) -> list[bool]:
    """Which hypotheses are rejected so that at most the share `q` of the rejections is expected to be false.

    Source: Y. Benjamini, Y. Hochberg, Controlling the false discovery rate, Journal of the Royal Statistical
    Society B 57, 1995.

    Args:
        p_values: one per hypothesis; NaN (not tested) is not rejected and does not count.
        q: false discovery rate, in (0, 1).

    Returns:
        True where rejected, in the order of `p_values`.
    """
    tested = sorted(p for p in p_values if not math.isnan(p))
    limit = max((p for rank, p in enumerate(tested, 1) if p <= q * rank / len(tested)), default=-1.0)
    return [p <= limit for p in p_values]


def judge(differences: Sequence[Difference], tolerance: float) -> list[Answer]:
    """The answers for all rows of one figure.

    Slower or faster: significant among the rows, and the ratio's interval beyond 1 +- tolerance. Same: the
    interval inside. Else it cannot be told.

    Args:
        differences: of every row of the figure.
        tolerance: a share, such as 0.03.
    """
    significant = benjamini_hochberg([difference.p for difference in differences])
    tested = sum(not math.isnan(difference.p) for difference in differences)
    level = FALSE_DISCOVERIES * min(1 + sum(significant), tested) / max(1, tested)  # for one rejection more
    return [_answer(d, told, tolerance, level) for d, told in zip(differences, significant, strict=True)]


def _answer(found: Difference, significant: bool, tolerance: float, level: float) -> Answer:
    if significant and found.lo > 1 + tolerance:
        return Answer(SLOWER)
    if significant and found.hi < 1 - tolerance:
        return Answer(FASTER)
    if found.lo >= 1 - tolerance and found.hi <= 1 + tolerance:
        return Answer(SAME)
    if math.isnan(found.sd):
        return Answer(CANNOT_TELL)
    least = max(2, min(found.base_launches, found.new_launches) + 1)
    return Answer(CANNOT_TELL, launches_needed(math.log(found.ratio), found.sd, tolerance, level, least))


def launches_needed(apart: float, sd: float, tolerance: float, level: float, least: int = 2) -> int | None:
    """Launches a side after which the answer is expected not to be `cannot tell`, with probability POWER.

    That is if the ratio and the spread that were seen are the true ones. None if it is over MOST_LAUNCHES: the ratio
    is as good as at the edge of the tolerance.

    Args:
        apart: log of the ratio.
        sd: standard deviation of a launch's log median.
        tolerance: a share.
        level: p-value below which a row is significant.
        least: to begin with.
    """
    if _chance(apart, sd, tolerance, level, MOST_LAUNCHES) < POWER:
        return None
    low, high = least - 1, least
    while high < MOST_LAUNCHES and _chance(apart, sd, tolerance, level, high) < POWER:
        low, high = high, min(2 * high, MOST_LAUNCHES)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _chance(apart, sd, tolerance, level, middle) >= POWER else (middle, high)
    return high


def _chance(apart: float, sd: float, tolerance: float, level: float, launches: int) -> float:
    """Probability that `launches` a side tell, by the t distribution around `apart`."""
    df, error = 2 * launches - 2, sd * math.sqrt(2 / launches)
    upper, lower = math.log1p(tolerance), math.log1p(-tolerance)
    reach, enough = quantile((1 + CONFIDENCE) / 2, df) * error, quantile(1 - level / 2, df) * error

    def beyond(limit: float) -> float:
        return upper_tail((limit - apart) / error, df)

    slower, faster = beyond(max(upper + reach, enough)), 1 - beyond(min(lower - reach, -enough))
    return slower + faster + max(0.0, beyond(lower + reach) - beyond(upper - reach))
