"""Checks of many runs each: of comparisons, and of what refining a crossover saves. Run only where they are named.

On the interposer's network, too: it is equal, or slower by a tenth, by construction.
"""

import csv
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from pathlib import Path

from mpibench.errors import Stuck
from mpibench.selftest.checks import Aim, Check
from mpibench.selftest.execution import Unexpected
from mpibench.selftest.lines import FAILED, Line, judge
from mpibench.selftest.readings import Outcome, Reading, cover_error
from mpibench.selftest.wire import Wire

Launch = Callable[[Check], Outcome]
"""Runs a check; raises Stuck if it does not end."""


@dataclass(frozen=True)
class Thorough:
    """A check of many runs."""

    name: str
    about: str  # what is known
    aims: tuple[Aim, ...]
    measure: Callable[[str, Launch], list[list[Reading]]]  # from the name and a launch to the readings of every aim

    def perform(self, launch: Launch) -> list[Line]:
        """The lines of the check."""
        try:
            found = self.measure(self.name, launch)
        except (Stuck, Unexpected) as reason:
            return [Line(self.name, aim.name, aim=aim.text, result=FAILED, note=str(reason)) for aim in self.aims]
        return [judge(self.name, aim, readings) for aim, readings in zip(self.aims, found, strict=True)]


_LAUNCHES = 5  # a side
_ANSWERS = ("slower", "faster")
_LAUNCH = "--kernel delay --compute 2ms --sizes 32K,64K --progress poll --iterations 12 --budget 10s"
_BUDGET_S = 300
_SWEEP = f"--kernel delay --compute 5ms --progress poll --budget {_BUDGET_S}s --sizes "
_SMALLEST, _LARGEST, _SIZES = 4 << 10, 1 << 20, 64


def comparison(slower: float, name: str, launch: Launch) -> list[list[Reading]]:
    """How many rows of a comparison are called slower, and how many faster; the sides are launched in turn: ABBA."""
    sides = {"base": Wire(), "new": Wire(latency_s=Wire().latency_s * slower, bandwidth=Wire().bandwidth / slower)}
    paths: dict[str, list[str]] = {side: [] for side in sides}
    for number in range(1, _LAUNCHES + 1):
        for side in sorted(sides, reverse=number % 2 == 0):
            outcome = launch(Check(f"{name}-{side}-{number}", "", sides[side], _LAUNCH, ()))
            paths[side].append(str(outcome.directory))
    table = Path(paths["base"][0]).with_name(f"{name}.csv")
    command = [sys.executable, "-m", "mpibench.compare", *paths["base"], "--to", *paths["new"], "--csv", str(table)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if not table.exists():
        return [[Reading(done.stderr.strip(), nan)]] * 2
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    called = [[f"{row['case']} {row['figure']}" for row in rows if row["answer"] == word] for word in _ANSWERS]
    return [[Reading(", ".join(names), len(names))] for names in called]


def _refinement(name: str, launch: Launch) -> list[list[Reading]]:
    """The half-width of the cover point of a sweep that refines it, and its time over that of one of 64 sizes.

    The dense sweep's own point lies between sizes that are 9 % apart, whatever its interval is.
    """
    factor = (_LARGEST / _SMALLEST) ** (1 / (_SIZES - 1))
    dense = ",".join(str(round(_SMALLEST * factor**i / 4) * 4) for i in range(_SIZES))
    seconds, halves, errors = [], [], []
    for word, sizes in (("refined", f"{_SMALLEST}:{_LARGEST}"), ("dense", dense)):
        began = time.monotonic()
        outcome = launch(Check(f"{name}-{word}", "", Wire(), _SWEEP + sizes, (), timeout_s=2 * _BUDGET_S))
        seconds.append(time.monotonic() - began)
        errors += [cover._replace(where=word) for cover in cover_error(outcome)]
        halves.append([Reading(cover.where, (cover.hi - cover.lo) / 2) for cover in cover_error(outcome)])
    return [errors, halves[0], [Reading("", seconds[0] / seconds[1])]]


THOROUGH = (
    Thorough(
        "comparison-equal",
        "five launches against five of the same network",
        (Aim("rows called slower", 0, 0), Aim("rows called faster", 0, 0)),
        partial(comparison, 1.0),
    ),
    Thorough(
        "comparison-slower",
        "five launches against five on a network that is 10 % slower",
        (Aim("rows called slower", 1, inf), Aim("rows called faster", 0, 0)),
        partial(comparison, 1.1),
    ),
    Thorough(
        "refinement",
        f"a doubling sweep that refines its crossover, and a sweep of {_SIZES} sizes over the same range",
        (
            Aim("cover point / true - 1, of both", -0.03, 0.03),
            Aim("half-width of the refined cover point / true", 0, 0.05),
            Aim("time / the dense sweep's", 0, 1 / 3),
        ),
        _refinement,
    ),
)
