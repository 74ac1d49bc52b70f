"""What a run would measure, and what it would take of memory and time. Starts nothing."""

from collections.abc import Iterator, Sequence
from typing import Any

from mpibench.engine.launcher import Launch
from mpibench.engine.memory import available_nbytes, kernel_nbytes, need_per_rank
from mpibench.engine.phases import phase_names
from mpibench.engine.tuning import longest_s
from mpibench.kernels import KERNELS
from mpibench.protocols import Cell
from mpibench.units import approximate_bytes, format_bytes, format_duration


def outlook(config: Any, cells: Sequence[Cell], launch: Launch) -> str:
    """The cells, the memory and the time of a run with these options, as lines of text."""
    return "\n".join(_lines(config, cells, launch))


def _lines(config: Any, cells: Sequence[Cell], launch: Launch) -> Iterator[str]:
    names = phase_names(config.progress)
    yield f"{len(cells)} cells of {len(names)} phases ({', '.join(' '.join(filter(None, name)) for name in names)}):"
    for compute in dict.fromkeys(cell.compute for cell in cells):
        mine = [cell for cell in cells if cell.compute == compute]
        sizes = ", ".join(format_bytes(cell.asked_nbytes) for cell in mine)
        yield f"  {mine[0].collective} under {compute} of {mine[0].kernel}: {sizes}"
    for cell in cells:
        if cell.skip:
            yield f"  skipped: {format_bytes(cell.asked_nbytes)}: {cell.skip}"
    largest = max(cell.nbytes for cell in cells)
    need = need_per_rank(largest, config.in_place, kernel_nbytes(KERNELS.load(config.kernel), config.compute))
    free = available_nbytes()
    fits = "" if free is None or need * launch.local_ranks <= free else ": it does not fit"
    yield (
        f"memory: at most {approximate_bytes(need)} a rank beyond what MPI takes, {launch.local_ranks} rank(s) on this "
        f"host, {approximate_bytes(free) + ' free' if free is not None else 'what is free cannot be told'}{fits}"
    )
    # A preamble before every phase, and compute in C, S and each T; what the collectives add is not known.
    per_iteration = sum(
        len(names) * min(2e-3, compute.seconds or 0.0) + (2 + len(config.progress)) * (compute.seconds or 0.0)
        for compute in config.compute
    ) * len(config.sizes)
    if config.poll_interval is None:
        yield f"time to tune the poll interval: up to {format_duration(longest_s(config.budget))}"
    least = config.iterations.least * per_iteration
    limit = "no budget" if config.budget == float("inf") else f"ended by the budget of {format_duration(config.budget)}"
    for compute in config.compute:
        if compute.order:
            yield f"time of {compute.label}: not known before it is calibrated, and left out below"
    yield f"time: at least {format_duration(least)} of compute for {config.iterations.least} iterations a cell, {limit}"
