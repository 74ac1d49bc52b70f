"""The certificate: every check is run, judged, printed, and written as CSV and JSON.

Starts mpibench.overlap under the interposer, one launch a check, and reads its files back. Never imports MPI.
"""

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mpibench
from mpibench.errors import DONE, FINDING, INCONCLUSIVE, EnvironmentRefused, MpibenchError, Stuck, UsageError
from mpibench.registry import near_match
from mpibench.selftest import parity
from mpibench.selftest.checks import CHECKS, Check
from mpibench.selftest.execution import Unexpected, run_check
from mpibench.selftest.job import launch_command
from mpibench.selftest.lines import FAILED, SKIPPED, Line, as_csv, as_json, failed, fold, judge, table, unread
from mpibench.selftest.noise import measure_noise
from mpibench.selftest.readings import Outcome
from mpibench.selftest.thorough import THOROUGH, Thorough
from mpibench.units import format_bytes

FILES = ("certificate.csv", "certificate.json")
OVERHEAD, MACHINE = "overhead", "machine"  # what is measured beside the checks


class Place(NamedTuple):
    """Where a certificate is made."""

    library: Path  # the interposer
    runs: Path  # folder of the runs


ABOUT = {
    **{check.name: check.about for check in CHECKS},
    **{check.name: check.about for check in THOROUGH},
    OVERHEAD: "what a call takes longer in mpibench's hot loop than the same call in a loop in C",
    MACHINE: "the clock, and what takes the core away",
}  # in the order in which they are run
_OVERHEAD_PAIRS = 10  # of blocks
_TRIES = 3  # of a check that could not be read: a busy moment passes


def perform(check: Check, launch: Callable[[Check], Outcome]) -> list[Line]:
    """The lines of a check."""
    try:
        outcome = launch(check)
    except (Stuck, Unexpected) as reason:
        return [Line(check.name, aim.name, aim=aim.text, result=FAILED, note=str(reason)) for _, aim in check.aims]
    return [judge(check.name, aim, figure(outcome)) for figure, aim in check.aims]


def overhead(launcher: str) -> list[Line]:
    """What mpibench's hot loop takes over the C loop, one line per message size and operation."""
    try:
        _, rows = parity.measure(_OVERHEAD_PAIRS, launcher)
    except EnvironmentRefused as reason:
        return [Line(OVERHEAD, "mpibench - C, s", result=SKIPPED, note=str(reason))]
    except MpibenchError as reason:
        return [Line(OVERHEAD, "mpibench - C, s", result=FAILED, note=str(reason))]
    return [
        Line(OVERHEAD, "mpibench - C, s", f"{format_bytes(row.nbytes)} {row.operation}", *row.difference,
             note=f"{row.ratio.median:.3f} times C")
        for row in rows
    ]  # fmt: skip


def machine() -> list[Line]:
    """The clock, and what interrupts a core."""
    noise = measure_noise()
    return [
        Line(MACHINE, "clock resolution, s", value=noise.resolution_s, note=f"a read takes {noise.read_s:.2g} s"),
        Line(MACHINE, "share of a core lost to interruptions", value=noise.lost_share),
        Line(MACHINE, "longest interruption, s", value=noise.longest_s),
    ]


def now() -> str:
    """This moment, UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def choose(names: Sequence[str]) -> list[str]:
    """The names of what is run: without `names` all but the thorough ones.

    Raises:
        UsageError: for an unknown one.
    """
    for name in names:
        if name not in ABOUT:
            raise UsageError(f"--checks {name}: unknown check: {near_match(name, list(ABOUT))}")
    long = {check.name for check in THOROUGH}
    return [name for name in ABOUT if name in names or not (names or name in long)]


def insist(task: Callable[[Path], list[Line]], folder: Path) -> list[Line]:
    """A task's lines; tried again, in a folder of its own, while a figure with an aim could not be read."""
    lines: list[Line] = []
    for attempt in range(1, _TRIES + 1):
        own = folder / f"try-{attempt}" if attempt > 1 else folder
        own.mkdir(parents=True, exist_ok=True)
        lines = task(own)
        if not any(line.result == SKIPPED and line.aim for line in lines):
            break
    return lines


def repeat(task: Callable[[Path], list[Line]], folder: Path, runs: int) -> list[Line]:
    """A task's lines, folded over so many runs, each with a folder of its own; what is only told is told once."""
    if runs == 1:
        return insist(task, folder)
    every = []
    for number in range(1, runs + 1):
        every.append(insist(task, folder / f"run-{number}"))
        if not any(line.aim for line in every[0]):
            return every[0]
        _say(f"run {number} of {runs}: {_results(every[-1])}")
    return [fold(lines) for lines in zip(*every, strict=True)]


def _mpi(folder: Path) -> str:
    """The MPI library, as the first run told it; empty without one."""
    for path in sorted(folder.rglob("run.json")):
        return str(json.loads(path.read_text(encoding="utf-8"))["versions"]["mpi"])
    return ""


def tasks(launcher: str, library: Path) -> dict[str, Callable[[Path], list[Line]]]:
    """What makes the lines of each check, by name, given a folder for its runs."""
    command = launch_command(launcher)

    def launch(folder: Path) -> Callable[[Check], Outcome]:
        return partial(run_check, launcher=command, library=library, folder=folder)

    def plain(check: Check) -> Callable[[Path], list[Line]]:
        return lambda folder: perform(check, launch(folder))

    def thorough(check: Thorough) -> Callable[[Path], list[Line]]:
        return lambda folder: check.perform(launch(folder))

    return {
        **{check.name: plain(check) for check in CHECKS},
        **{check.name: thorough(check) for check in THOROUGH},
        OVERHEAD: lambda _: overhead(launcher),
        MACHINE: lambda _: machine(),
    }


def measure(chosen: Sequence[str], launcher: str, place: Place, runs: int, lines: list[Line]) -> None:
    """Run the checks of these names and add their lines to `lines`, one check after the other.

    Raises:
        MpibenchError: with the exit status that it ends the program with.
    """
    known = tasks(launcher, place.library)
    for number, name in enumerate(chosen, 1):
        start = time.monotonic()
        done = repeat(known[name], place.runs, runs)
        lines += done
        _say(f"{number}/{len(chosen)} {name}: {_results(done)}, {time.monotonic() - start:.1f} s")


def documents(lines: Sequence[Line], launcher: str, began: str, place: Place) -> dict[str, str]:
    """The certificate as text, csv and json."""
    told: dict[str, Any] = {
        "mpibench": mpibench.__version__, "python": platform.python_version(), "host": platform.node(),
        "mpi": _mpi(place.runs), "launcher": launcher or "mpirun -n 2", "begin": began, "end": now(),
    }  # fmt: skip
    return {"text": table(lines, ABOUT), "csv": as_csv(lines), "json": as_json(lines, told)}


def status(lines: Sequence[Line]) -> int:
    """A finding if a figure failed, inconclusive if one could not be read."""
    return FINDING if failed(lines) else INCONCLUSIVE if unread(lines) else DONE


def _results(lines: Sequence[Line]) -> str:
    return ", ".join(dict.fromkeys(line.result for line in lines))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
