"""On stdout: the curve of T over the poll interval that `--poll-interval tune` measured."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpibench.engine.tuning import Point, Tuning
from mpibench.units import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.console import Console

_BAR = 30  # characters of the longest T


def print_tuning(console: "Console", tuning: Tuning) -> None:
    """Print a row per candidate, the longest interval first, and what was taken."""
    from rich.table import Table
    from rich.text import Text

    where = f"{format_bytes(tuning.nbytes)} under {tuning.compute}, where N = {tuning.ratio:.2f} C"
    console.print(Text(f"\npoll interval, tuned at {where}", style="bold"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("interval", "tests", "T [95 %]"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    most = max(point.overlapped_s for point in tuning.points)
    for point in tuning.points:
        bar = "█" * round(_BAR * point.overlapped_s / most)
        table.add_row(
            format_duration(point.interval_s), f"{point.tests:.0f}",
            f"{format_duration(point.overlapped_s)} [{format_duration(point.lo_s)}, {format_duration(point.hi_s)}]",
            f"{bar} {_mark(point, tuning)}".rstrip(),
        )  # fmt: skip
    console.print(table)


def _mark(point: Point, tuning: Tuning) -> str:
    if point.interval_s == tuning.interval_s:
        return "least: taken"
    return "as good" if point.as_good else ""


def tuned(tuning: Tuning) -> Iterator[str]:
    """What was taken in a sentence, and what else would do."""
    others = [point.interval_s for point in tuning.points if point.as_good and point.interval_s != tuning.interval_s]
    if not tuning.told:
        yield (
            f"poll interval {format_duration(tuning.interval_s)}: of the {len(tuning.points)} tried none can be told "
            "from the best; it hardly matters here, or a larger --budget tells."
        )
        return
    end = ", and the shortest" if tuning.interval_s == tuning.points[-1].interval_s else ""
    told = f"; {', '.join(map(format_duration, others))} cannot be told from it" if others else ""
    yield f"poll interval {format_duration(tuning.interval_s)}: the least T of {len(tuning.points)} tried{end}{told}."
