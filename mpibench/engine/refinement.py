"""From the sizes that would sharpen a crossover to cells of the plan. Pure; rank 0 calls it after every pass."""

from dataclasses import replace

from mpibench.engine.history import History
from mpibench.engine.plan import Plan, outcome
from mpibench.engine.results import Results
from mpibench.engine.stopping import GO_ON, LEAST_VISITS
from mpibench.protocols import Cell

_MOST = 12  # refined cells of a compute; a bracket of a factor of two needs two or three for each of its points


def grow(plan: Plan, history: History, results: Results) -> Plan:
    """The plan with a cell for every size that is wanted; the plan itself while a cell still lacks its first look.

    Args:
        plan: the sweep so far.
        history: what has been measured.
        results: what `results.evaluate` makes of both.
    """
    if any(
        history.visits(cell.index) < LEAST_VISITS and outcome(plan, history, cell.index) == GO_ON for cell in plan.cells
    ):
        return plan
    cells = list(plan.cells)
    for crossover in results.crossovers:
        family = [cell for cell in cells if cell.compute == crossover.cells[0].compute]
        for nbytes in crossover.wanted:
            cell = _cell(family, nbytes, len(cells))
            if cell is not None and sum(other.refined for other in family) < _MOST:
                cells.append(cell)
                family.append(cell)
    return plan if len(cells) == len(plan.cells) else replace(plan, cells=tuple(cells))


def _cell(family: list[Cell], nbytes: float, index: int) -> Cell | None:
    """A cell like the others, of the nearest whole number of elements; None if that is measured already."""
    like = next(cell for cell in family if cell.count)
    item = like.nbytes // like.count
    count = round(nbytes / item)
    if any(cell.count == count for cell in family):
        return None
    return replace(
        like, index=index, asked_nbytes=count * item, nbytes=count * item, count=count, skip="", refined=True
    )
