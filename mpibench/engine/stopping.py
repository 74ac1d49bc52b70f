"""When a cell has enough iterations: the rule, of four outcomes. The budget is the plan's.

The rule looks at the intervals only after visits 5, 8, 12, 18, ... and at 99 %, while the tables show
95 %: whoever stops at the first look that pleases finds too narrow an interval too often.
"""

from mpibench.units import IterationRange

LEAST_VISITS = 5  # so that drift over the run is in every figure
CONFIDENCE = 0.99  # of the intervals that the rule looks at
CAUTION = 2.0  # standard errors of their dependence; the tables take one

GO_ON, CONVERGED, FUTILE, EXHAUSTED = "go-on", "converged", "futile", "exhausted"


def is_look(visits: int) -> bool:
    """Whether the rule looks at a cell after so many visits: 5, 8, 12, 18, ..., each half as many again."""
    look = LEAST_VISITS
    while look < visits:
        look = -(-look * 3 // 2)
    return look == visits


def decide(
    worst: float, iterations: int, visits: int, allowed: IterationRange, visit_length: int, last: bool = False
) -> str:
    """Whether to go on with a cell.

    Args:
        worst: the widest of its intervals at CONFIDENCE, as half-width over what was asked for: at most 1
            is good enough; infinity without an interval.
        iterations, visits: so far.
        allowed: least and most iterations.
        visit_length: iterations of a visit.
        last: nothing more will be measured: look, whatever the number of visits.

    Returns:
        CONVERGED at the asked precision; FUTILE if the iterations that this needs exceed the most
        allowed (the half-width falls as one over the root of the iterations); EXHAUSTED when these
        are used up; else GO_ON.
    """
    if iterations >= allowed.most:
        return CONVERGED if worst <= 1 else EXHAUSTED
    possible_visits = -(-allowed.most // visit_length)
    if iterations < allowed.least or visits < min(LEAST_VISITS, possible_visits):
        return GO_ON
    if not (last or visits < LEAST_VISITS or is_look(visits)):
        return GO_ON
    if worst <= 1:
        return CONVERGED
    return FUTILE if iterations * worst**2 > allowed.most else GO_ON
