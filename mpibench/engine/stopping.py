"""When a cell has enough iterations. A first rule, of three outcomes; the budget is the plan's."""

from mpibench.units import IterationRange

LEAST_VISITS = 5  # so that drift over the run is in every figure

GO_ON, CONVERGED, FUTILE, EXHAUSTED = "go-on", "converged", "futile", "exhausted"


def decide(worst: float, iterations: int, visits: int, allowed: IterationRange, visit_length: int) -> str:
    """Whether to go on with a cell.

    Args:
        worst: the widest of its intervals, as half-width over what was asked for: at most 1 is good
            enough; infinity without an interval.
        iterations, visits: so far.
        allowed: least and most iterations.
        visit_length: iterations of a visit.

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
    if worst <= 1:
        return CONVERGED
    return FUTILE if iterations * worst**2 > allowed.most else GO_ON
