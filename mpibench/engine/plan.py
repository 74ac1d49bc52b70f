"""What to measure next: a pure function of the plan, the history and the time.

A sweep runs in passes; a pass visits every unfinished cell once, for about ten iterations or its
share of the time that is left, whichever is first, so that drift hits all cells alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan

from mpibench.analysis.figures import overlap
from mpibench.analysis.statistics import Interval, series_interval
from mpibench.engine import stopping
from mpibench.engine.history import History
from mpibench.engine.order import block_length
from mpibench.engine.phases import PhaseName, phase_names
from mpibench.protocols import ALLREDUCE, COMPUTE, NONBLOCKING, OVERLAPPED, Cell
from mpibench.units import IterationRange

_ABOUT = 10  # iterations of a visit
_CLOSING_S = 1.0  # kept from the budget for the last tables


@dataclass(frozen=True)
class Plan:
    """A sweep."""

    cells: tuple[Cell, ...]  # in the order of the `cell` column
    strategies: tuple[str, ...]  # one T each
    precision: float  # asked half-width: a share of B, N and T, and absolute for overlap
    iterations: IterationRange  # least and most of a cell
    budget_s: float  # from MPI's start to the last file

    @property
    def names(self) -> list[PhaseName]:
        """The phases of every cell."""
        return phase_names(self.strategies)

    @property
    def visit_length(self) -> int:
        """Iterations of a full visit: whole balanced blocks, about ten."""
        block = block_length(len(self.names))
        return block * max(1, round(_ABOUT / block))


@dataclass(frozen=True)
class Visit:
    """A cell's turn in a pass."""

    cell: int  # index
    number: int  # of this cell's visits, from 0
    iterations: int  # at most
    share_s: float  # of the time: not to be exceeded by more than one iteration


def next_visit(plan: Plan, history: History, elapsed_s: float) -> Visit | None:
    """The next visit, or None when all cells are finished or the budget is spent.

    Args:
        plan: the sweep.
        history: what has been measured.
        elapsed_s: since MPI's start.
    """
    left_s = plan.budget_s - elapsed_s - _CLOSING_S
    unfinished = [cell for cell in plan.cells if outcome(plan, history, cell.index) == stopping.GO_ON]
    if not unfinished or left_s <= 0:
        return None
    passes = min(history.visits(cell.index) for cell in unfinished)
    waiting = [cell for cell in unfinished if history.visits(cell.index) == passes]
    cell = waiting[0].index
    due = []
    for other in unfinished:
        visits = history.visits(other.index)
        least = 1 if visits == passes else 0  # this pass's, and those up to the first look
        due.append((_visit_cost(plan, history, other), max(least, stopping.LEAST_VISITS - visits)))
    share_s = level(left_s, due)
    iterations = min(plan.visit_length, plan.iterations.most - history.iterations(cell))
    cost = history.seconds_per_iteration(cell)
    if cost is not None:
        iterations = max(1, int(min(iterations, share_s / cost)))
    block = block_length(len(plan.names))
    if iterations > block:
        iterations -= iterations % block  # only whole blocks are balanced
    return Visit(cell, history.next_number(cell), iterations, share_s)


def level(left_s: float, due: Sequence[tuple[float, int]]) -> float:
    """The time that no visit may exceed, so that all that are due fit: cheap ones leave theirs to the others.

    Args:
        left_s: the time there is.
        due: expected cost of a visit in seconds, infinity if unknown, and how many such visits.

    Returns:
        The L for which the sum of min(cost, L) over all visits is `left_s`. If all fit: the dearest
        one's cost and all that is left over.
    """
    cost, ascending = 0.0, sorted(due)
    visits = sum(number for _, number in ascending)
    for cost, number in ascending:
        if cost * visits > left_s:
            return left_s / visits
        left_s -= cost * number
        visits -= number
    return cost + left_s


def _visit_cost(plan: Plan, history: History, cell: Cell) -> float:
    """Seconds that a full visit is expected to take; infinity before the first."""
    cost = history.seconds_per_iteration(cell.index)
    return inf if cost is None else cost * plan.visit_length


def outcome(plan: Plan, history: History, cell: int, last: bool = False) -> str:
    """A word of `stopping` for a cell; one that was skipped or gave wrong data is exhausted.

    `last`: nothing more will be measured.
    """
    if plan.cells[cell].skip or cell in history.skipped or history.wrong.get(cell):
        return stopping.EXHAUSTED
    return stopping.decide(
        worst_interval(plan, history, cell),
        history.iterations(cell),
        history.visits(cell),
        plan.iterations,
        plan.visit_length,
        last,
    )


def worst_interval(plan: Plan, history: History, cell: int) -> float:
    """The widest interval of B, N, each T and each overlap as the rule looks at it: half-width over what was asked for.

    Infinity where there are too few effective iterations for an interval.
    """
    visits, worst = history.worst.get(cell, (0, 0.0))
    if visits != history.visits(cell):
        worst = max(_half_widths(plan, history, cell))
        history.worst[cell] = history.visits(cell), worst
    return worst / plan.precision


def _half_widths(plan: Plan, history: History, cell: int) -> Iterator[float]:
    n, c = (history.times(cell, (name, "")).span for name in (NONBLOCKING, COMPUTE))
    for name in plan.names:
        if name[0] in (ALLREDUCE, NONBLOCKING, OVERLAPPED):
            times = history.times(cell, name).span
            interval = series_interval(times, stopping.CONFIDENCE, stopping.CAUTION)
            yield _half(interval) / interval.median
        if name[0] == OVERLAPPED:
            yield _half(series_interval(overlap(n, c, times), stopping.CONFIDENCE, stopping.CAUTION))


def _half(interval: Interval) -> float:
    return inf if isnan(interval.lo) else (interval.hi - interval.lo) / 2
