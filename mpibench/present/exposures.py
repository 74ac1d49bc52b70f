"""On stdout: the compute that would hide each message, how well progress is made, and the hiding rates."""

from collections.abc import Iterator
from math import isnan
from typing import TYPE_CHECKING

from mpibench.analysis.statistics import Interval
from mpibench.engine.results import Results
from mpibench.protocols import Cell
from mpibench.units import approximate_bytes, format_bytes, format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_TITLE = "compute that would hide it [95 %]"
_ONE_COMPUTE = ", if T - C falls on as it does up to this compute; a list, --compute 500us,1ms,2ms, shows whether"


def print_exposures(console: "Console", results: Results) -> None:
    """Print the table, or that nothing is known that it could hold."""
    from rich.text import Text

    several = len({record.cell.compute for record in results.records}) > 1
    curves = [size.curve for size in results.exposures]
    shown = [curve.hiding_compute for curve in curves] + ([curve.efficiency for curve in curves] if several else [])
    if all(isnan(interval.median) for interval in shown):
        console.print("No compute is known that would hide any of the messages; exposure.csv says why for each.")
        return
    console.print(Text(f"\n{_TITLE}{'' if several else _ONE_COMPUTE}", style="bold"))
    console.print(_table(results, several))


def _table(results: Results, several: bool) -> "Table":
    """A row per message size; per strategy the compute, and with several computes the progress efficiency."""
    from rich.table import Table

    strategies = list(dict.fromkeys(size.progress for size in results.exposures))
    found = {(size.cell.nbytes, size.progress): size.curve for size in results.exposures}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("size", justify="right", no_wrap=True)
    for strategy in strategies:
        table.add_column(strategy, justify="right", no_wrap=True)
        if several:
            table.add_column("efficiency [95 %]", justify="right", no_wrap=True)
    for cell in {size.cell.nbytes: size.cell for size in results.exposures}.values():
        row = [size_text(cell)]
        for strategy in strategies:
            curve = found.get((cell.nbytes, strategy))
            row.append(_duration(curve.hiding_compute) if curve else "-")
            if several:
                row.append(_efficiency(curve.efficiency) if curve else "-")
        table.add_row(*row)
    return table


def rates(results: Results) -> Iterator[str]:
    """The hiding rate and latency of every strategy, where they are known, in sentences."""
    for size in {size.progress: size for size in results.exposures}.values():
        rate, latency = size.rate.rate, size.rate.latency
        if not isnan(rate.median):
            yield (
                f"{size.progress}: hides {approximate_bytes(rate.median)}/s [{approximate_bytes(rate.lo)}, "
                f"{approximate_bytes(rate.hi)}] of compute, after the first {_duration(latency)}."
            )


def size_text(cell: Cell) -> str:
    """A message size as the tables have it; a refined one, which nobody asked for, rounded and marked."""
    return f"{approximate_bytes(cell.nbytes)}*" if cell.refined else format_bytes(cell.asked_nbytes)


def _duration(interval: Interval) -> str:
    if isnan(interval.median):
        return "none known"
    return f"{format_duration(interval.median)} [{format_duration(interval.lo)}, {format_duration(interval.hi)}]"


def _efficiency(interval: Interval) -> str:
    return "-" if isnan(interval.median) else f"{interval.median:.2f} [{interval.lo:.2f}, {interval.hi:.2f}]"
