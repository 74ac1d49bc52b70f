"""The course of a run on stderr: a plain line per pass, and warnings."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpibench.engine.calibrate import Calibration
from mpibench.engine.plan import Plan
from mpibench.engine.results import Facts
from mpibench.protocols import Caution
from mpibench.units import format_duration


class ProgressLines:
    """A line per pass; nothing if quiet. Plain, for a launcher's terminal may be a file and the reverse.

    Args:
        quiet: warnings only.
        choices: what was chosen before MPI started, and why; said when the run begins.
    """

    def __init__(self, quiet: bool, choices: str) -> None:
        self._quiet, self._choices = quiet, choices

    def pass_done(self, number: int, cells: int, finished: int, elapsed_s: float, budget_s: float) -> None:
        """A pass is over: how many cells need no more, and where the time stands."""
        budget = "no budget" if budget_s == float("inf") else f"of {format_duration(budget_s)}"
        self.say(f"pass {number}: {finished} of {cells} cells finished, {format_duration(elapsed_s)} {budget}")

    def warn(self, text: str) -> None:
        """A warning, even if quiet: it could mislead."""
        print(f"mpibench: warning: {text}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """One line, unless quiet."""
        if not self._quiet:
            print(f"mpibench: {text}", file=sys.stderr, flush=True)

    def begin(
        self, plan: Plan, facts: Facts, calibrations: Mapping[str, Calibration], path: Path, cautions: Sequence[Caution]
    ) -> None:
        """What is going to be measured; the warnings even if quiet, for they could mislead."""
        cells = len(plan.cells)
        self.say(self._choices)
        self.say(
            f"{facts.ranks} ranks on {facts.nodes} host(s), thread level {facts.thread_level}, {facts.blas_threads} "
            f"BLAS thread(s) a rank; {cells} cells of {len(plan.names)} phases; files in {path}"
        )
        for label, calibration in calibrations.items():
            self.say(
                f"compute {label}: {calibration.steps} steps of {format_duration(calibration.step_s)}, together "
                f"{format_duration(calibration.measured_s)}"
            )
        for caution in cautions:
            self.warn(caution.text)
