"""Rows of two sets of launches matched by case: one for each figure.

B, N and C do not depend on the progress strategy: they are one row for all strategies of a cell.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from mpibench.analysis.comparison import Answer, Difference, difference, judge
from mpibench.analysis.verdict import CORE_SHARE, WRONG_DATA
from mpibench.launches.record import DERIVED, STEPS, TIMES, LaunchRecord

Sides = tuple[Sequence[LaunchRecord], Sequence[LaunchRecord]]
_RESOLUTION_S = 1e-9  # of a median: samples are whole nanoseconds


@dataclass(frozen=True)
class Row:
    """One figure of one case (B, N, C: of all its strategies), compared; or the reason why not."""

    case: str  # such as 64K-1ms-poll; without the strategy for B, N and C
    figure: str  # B, N, C or T
    per_step: bool = False  # the time of one step of the kernel: the steps differ
    difference: Difference | None = None  # None: not compared
    answer: Answer | None = None  # None: not compared
    derived: Mapping[str, tuple[float, float]] | None = None  # of a T: column to medians over BASE's and NEW's launches
    note: str = ""  # why it is not compared, or what could mislead
    wrong: bool = False  # NEW had wrong data there


def compare(
    base: Sequence[LaunchRecord], new: Sequence[LaunchRecord], tolerance: float, launch_sd: float | None
) -> list[Row]:
    """All rows of the cases that both sides have, in BASE's order; a cell's T after its B, N and C.

    Args:
        base: launches that may be compared.
        new: the same.
        tolerance: a share: a ratio within 1 +- tolerance is the same.
        launch_sd: spread between launches to assume for a side of one, as a share; None if not known.
    """
    strategies = _strategies((base, new))
    rows: list[Row] = []
    answers: dict[str, list[Answer]] = {}
    for figure in TIMES:
        mine = list(_figure_rows(figure, (base, new), strategies, launch_sd))
        answers[figure] = judge([row.difference for row in mine if row.difference], tolerance)
        remaining = iter(answers[figure])
        rows += [_replaced(row, next(remaining)) if row.difference else row for row in mine]
    order = [name for cell, cases in strategies.items() for name in (cell, *cases)]
    return sorted(rows, key=lambda row: order.index(row.case))  # stable: B, N, C as they came


def unmatched(base: Sequence[LaunchRecord], new: Sequence[LaunchRecord]) -> tuple[list[str], list[str]]:
    """The cases that only BASE has, and those that only NEW has."""
    cases = [list(dict.fromkeys(case for launch in side for case in launch.rows)) for side in (base, new)]
    return [c for c in cases[0] if c not in cases[1]], [c for c in cases[1] if c not in cases[0]]


def _strategies(sides: Sides) -> dict[str, list[str]]:
    """The cells that both sides have: a cell's name to its cases."""
    theirs = {case for launch in sides[1] for case in launch.rows}
    cells: dict[str, list[str]] = {}
    for launch in sides[0]:
        for case, row in launch.rows.items():
            cases = cells.setdefault(case.removesuffix(f"-{row['progress']}"), [])
            if case in theirs and case not in cases:
                cases.append(case)
    return {cell: cases for cell, cases in cells.items() if cases}


def _figure_rows(
    figure: str, sides: Sides, strategies: Mapping[str, Sequence[str]], launch_sd: float | None
) -> Iterator[Row]:
    """The rows of one figure, not yet judged."""
    for cell, cases in strategies.items():
        for name, mine in [(case, [case]) for case in cases] if figure == "T" else [(cell, cases)]:
            steps = {
                launch.rows[case][STEPS] for side in sides for launch in side for case in mine if case in launch.rows
            }
            if figure == "T" and len(steps) > 1:
                yield Row(
                    name, figure, note=f"{STEPS} differ: T is of other work in every launch", wrong=_wrong(sides, mine)
                )
            else:
                yield _row(name, figure, sides, mine, len(steps) > 1 and figure == "C", launch_sd)


def _row(name: str, figure: str, sides: Sides, cases: Sequence[str], per_step: bool, launch_sd: float | None) -> Row:
    times = [[time for launch in side if (time := _time(launch, cases, figure, per_step))] for side in sides]
    wrong = _wrong(sides, cases)
    if not times[0] or not times[1]:
        return Row(name, figure, per_step, note=_absence(sides, cases, times), wrong=wrong)
    notes = [_missing(sides, times)]
    derived = None
    if figure == "T":
        notes.append(_waiting(sides, name))
        derived = {column: (_middle(sides[0], name, column), _middle(sides[1], name, column)) for column in DERIVED}
    found = difference(times[0], times[1], launch_sd, _RESOLUTION_S)
    return Row(name, figure, per_step, found, None, derived, "; ".join(filter(None, notes)), wrong)


def _replaced(row: Row, answer: Answer) -> Row:
    return Row(row.case, row.figure, row.per_step, row.difference, answer, row.derived, row.note, row.wrong)


def _time(launch: LaunchRecord, cases: Sequence[str], figure: str, per_step: bool) -> float | None:
    """A launch's median; of one step if `per_step`. None if it has none."""
    for case in cases:
        value = launch.number(case, TIMES[figure])
        if value is not None and value > 0:
            return value / (launch.number(case, STEPS) or math.nan) if per_step else value
    return None


def _wrong(sides: Sides, cases: Sequence[str]) -> bool:
    """Whether a launch of NEW had wrong data."""
    return any(launch.rows.get(case, {}).get("verdict") == WRONG_DATA for launch in sides[1] for case in cases)


def _absence(sides: Sides, cases: Sequence[str], times: Sequence[Sequence[float]]) -> str:
    """Why a row is not compared: what the first launch without a time says."""
    side = 0 if not times[0] else 1
    row = next(launch.rows[case] for launch in sides[side] for case in cases if case in launch.rows)
    return f"not measured in {('BASE', 'NEW')[side]}: {row['verdict'] or 'no time'}" + (
        f" ({row['note']})" if row["note"] else ""
    )


def _missing(sides: Sides, times: Sequence[Sequence[float]]) -> str:
    short = [
        f"{len(times[index])} of {len(sides[index])} launches of {name}"
        for index, name in enumerate(("BASE", "NEW")) if len(times[index]) < len(sides[index])
    ]  # fmt: skip
    return f"measured in {' and '.join(short)} only" if short else ""


def _waiting(sides: Sides, case: str) -> str:
    """In how many launches a rank waited for a core: there the times are those of time slices."""
    told = []
    for name, side in zip(("BASE", "NEW"), sides, strict=True):
        waits = [(launch.number(case, "cpu_wait_s"), launch.number(case, TIMES["T"])) for launch in side]
        late = sum(wait is not None and time is not None and wait > CORE_SHARE * time for wait, time in waits)
        told += [f"{late} of {len(side)} launches of {name}"] if late else []
    return f"waited for a core in {' and '.join(told)}" if told else ""


def _middle(side: Sequence[LaunchRecord], case: str, column: str) -> float:
    """The median over the launches that have the value; NaN without any."""
    values = [value for launch in side if (value := launch.number(case, column)) is not None]
    return median(values) if values else math.nan
