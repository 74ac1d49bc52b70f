"""The cells of a sweep from its options, and the names of its cases. Pure; imports neither MPI nor numpy."""

from typing import Any

from mpibench.protocols import Cell
from mpibench.units import format_bytes

ITEM_NBYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8}


def make_cells(config: Any, steps: dict[str, int], standard: int) -> tuple[Cell, ...]:
    """The cells of the sweep: every size under every compute.

    Args:
        config: options with the fields of overlap.Config.
        steps: calibrated steps by compute label; 0 where not yet known.
        standard: major version of the MPI standard; below 4 counts are 32 bits wide.
    """
    item = ITEM_NBYTES[config.dtype]
    made: list[Cell] = []
    for compute in config.compute:
        for asked in config.sizes:
            count = -(-asked // item)
            fits = standard >= 4 or count < 1 << 31
            skip = "" if fits else f"MPI {standard} counts to 2147483647; {count} elements would wrap around"
            made.append(
                Cell(
                    len(made), config.collective, asked, count * item, count, config.dtype, config.in_place,
                    config.kernel, compute.label, steps.get(compute.label, 0), skip,
                )
            )  # fmt: skip
    return tuple(made)


def case_name(cell: Cell, progress: str) -> str:
    """The name of a case, such as 64K-1ms-poll."""
    return f"{format_bytes(cell.asked_nbytes)}-{cell.compute}-{progress}"


def case_names(config: Any) -> list[str]:
    """The names of the cases that are asked for; refinement may add others."""
    return [case_name(cell, strategy) for cell in make_cells(config, {}, 4) for strategy in config.progress]
