"""Student's t distribution: tail and quantile. Written out because scipy is no run-time dependency.

An infinite number of degrees of freedom is the normal distribution. Knows nothing of what is tested.
"""

import math

_TINY = 1e-300  # keeps a vanishing denominator of the continued fraction away from zero
_CLOSE = 1e-15
_MOST_TERMS = 2000  # reached by no df below 1e7; above, the normal distribution stands in
_MOST_STEPS = 200
_NORMAL_FROM = 1e7  # degrees of freedom: there a tail of 3e-7 differs by 1e-5 of itself


def upper_tail(t: float, df: float) -> float:
    """P(T > t) for Student's t, small tails to full relative precision.

    P(|T| > t) is the regularised incomplete beta function I_x(df / 2, 1 / 2) at x = df / (df + t^2).

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.1.

    Args:
        t: any number.
        df: degrees of freedom, more than 0, whole or not; infinity: the normal distribution.

    Raises:
        ValueError: if df is not more than 0.
    """
    if not df > 0:
        raise ValueError(f"degrees of freedom must be more than 0, not {df}")
    if t < 0:
        return 1.0 - upper_tail(-t, df)
    if df > _NORMAL_FROM:
        return 0.5 * math.erfc(t / math.sqrt(2))
    return 0.5 * incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t))


def quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p, by bisection between bounds that Newton's steps may not leave.

    Args:
        p: in (0, 1).
        df: degrees of freedom, more than 0; infinity: the normal distribution.

    Raises:
        ValueError: if p is not in (0, 1) or df is not more than 0.
    """
    if not 0 < p < 1:
        raise ValueError(f"p must be in (0, 1), not {p}")
    if p < 0.5:
        return -quantile(1 - p, df)
    tail = 1 - p
    low, high = 0.0, 2.0
    while upper_tail(high, df) > tail:
        low, high = high, 2 * high
    t = (low + high) / 2
    for _ in range(_MOST_STEPS):
        excess = upper_tail(t, df) - tail
        low, high = (t, high) if excess > 0 else (low, t)
        step = t + excess / _density(t, df)
        following = step if low < step < high else (low + high) / 2
        if abs(following - t) <= _CLOSE * max(1.0, t):
            return following
        t = following
    return t


def _density(t: float, df: float) -> float:
    if df > _NORMAL_FROM:
        return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    return max(_TINY, math.exp(scale - (df + 1) / 2 * math.log1p(t * t / df)))


def incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function I_x(a, b).

    By the continued fraction of DLMF 8.17.22, evaluated by Lentz's method on the side of
    x = (a + 1) / (a + b + 2) where it converges fast.

    Args:
        a: more than 0.
        b: more than 0.
        x: in [0, 1].
        rest: 1 - x, given by the caller because the subtraction would lose it near x = 1.
    """
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - incomplete_beta(b, a, rest, x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    return math.exp(front) / (a * _fraction(a, b, x))


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d_1 / (1 + d_2 / (1 + ...)) with the coefficients of DLMF 8.17.23, by Lentz's method."""
    value, above, below = 1.0, 1.0, 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / (1 + d * below or _TINY)
        above = 1 + d / above or _TINY
        value *= above * below
        if abs(above * below - 1) < _CLOSE:
            break
    return value
