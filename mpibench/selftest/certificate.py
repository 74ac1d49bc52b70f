"""The certificate: every check is run, judged, printed, and written as CSV and JSON.

Starts mpibench.overlap under the interposer, one launch a check, and reads its files back. Never imports MPI.
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import mpibench
from mpibench.errors import DONE, ENVIRONMENT, FINDING, DiskFault, EnvironmentRefused, MpibenchError, Stuck, UsageError
from mpibench.registry import near_match
from mpibench.selftest import parity
from mpibench.selftest.checks import CHECKS, Check
from mpibench.selftest.job import compile_library, launch_command, run_ranks
from mpibench.selftest.lines import FAILED, SKIPPED, TOLD, Line, as_csv, as_json, failed, fold, judge, table
from mpibench.selftest.noise import measure_noise
from mpibench.selftest.readings import Outcome, wire_in_effect
from mpibench.selftest.thorough import THOROUGH
from mpibench.units import format_bytes, parse_computes

FILES = ("certificate.csv", "certificate.json")
OVERHEAD, MACHINE = "overhead", "machine"  # what is measured beside the checks
ABOUT = {
    **{check.name: check.about for check in CHECKS},
    **{check.name: check.about for check in THOROUGH},
    OVERHEAD: "what a call takes longer in mpibench's hot loop than the same call in a loop in C",
    MACHINE: "the clock, and what takes the core away",
}  # in the order in which they are run
_PAIRS = 10  # of blocks, for the overhead
_BUSY = "import os, time\nwhile os.getppid() == {} and time.monotonic() < {}: pass"


@contextlib.contextmanager
def one_core_busy(most_s: float) -> Iterator[None]:
    """Another process computes meanwhile; it ends with this one, and after `most_s` at the latest."""
    code = _BUSY.format(os.getpid(), time.monotonic() + most_s)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def run_check(check: Check, launcher: Sequence[str], library: Path, folder: Path) -> Outcome:
    """Run mpibench.overlap on the check's network; its files are below `folder`.

    Raises:
        Stuck: if it does not end.
        EnvironmentRefused: if it cannot run at all, or the launcher did not load the interposer.
    """
    directory, log = folder / check.name, folder / f"{check.name}.log"
    preload = ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
    command = [
        *launcher, "env", f"LD_PRELOAD={preload}", *check.wire.environment(), sys.executable, "-m", "mpibench.overlap",
        *check.flags, "--output", str(directory),
    ]  # fmt: skip
    with log.open("wb") as file, one_core_busy(2 * check.timeout_s) if check.busy else contextlib.nullcontext():
        status = run_ranks(command, check.timeout_s, file.fileno())
    computes = parse_computes(check.flags[check.flags.index("--compute") + 1])
    said = log.read_text(encoding="utf-8", errors="replace")
    outcome = Outcome(status, directory, said, check.wire, tuple(c.seconds or nan for c in computes))
    if status == ENVIRONMENT:
        raise EnvironmentRefused(f"{launcher[0]}: {_last_line(said)}")
    if status in (DONE, FINDING) and not wire_in_effect(outcome):
        raise EnvironmentRefused(
            f"the ranks ran without the interposer: {launcher[0]} did not pass LD_PRELOAD={library} on, or a host "
            "cannot read it (TMPDIR must be shared)"
        )
    return outcome


def _last_line(text: str) -> str:
    """The last line of ours, else the last of all."""
    lines = [line for line in text.splitlines() if line.strip()] or ["no message"]
    return next((line for line in reversed(lines) if line.startswith("mpibench: ")), lines[-1]).strip()


def perform(check: Check, launch: Callable[[Check], Outcome]) -> list[Line]:
    """The lines of a check."""
    try:
        outcome = launch(check)
    except Stuck as stuck:
        return [Line(check.name, aim.name, aim=aim.text, result=FAILED, note=str(stuck)) for _, aim in check.aims]
    if outcome.status != check.status:
        note = f"exit status {outcome.status}, not {check.status}: {_last_line(outcome.log)}"
        return [Line(check.name, aim.name, aim=aim.text, result=FAILED, note=note) for _, aim in check.aims]
    return [judge(check.name, aim, figure(outcome)) for figure, aim in check.aims]


def overhead(launcher: str) -> list[Line]:
    """What mpibench's hot loop takes over the C loop, one line per message size and operation."""
    try:
        _, rows = parity.measure(_PAIRS, launcher)
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


def _now() -> str:
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


def write(files: Sequence[tuple[str, Path]], texts: Mapping[str, str]) -> None:
    """Write the files that were asked for, each a kind and its path; `texts` by kind.

    Raises:
        DiskFault: if one cannot be written.
    """
    for kind, path in files:
        try:
            path.write_text(texts[kind], encoding="utf-8")
        except OSError as error:
            raise DiskFault(f"{path}: {error.strerror}") from error


def repeat(task: Callable[[Path], list[Line]], folder: Path, runs: int) -> list[Line]:
    """A task's lines, folded over so many runs, each with a folder of its own; what is only told is told once."""
    every = []
    for number in range(1, runs + 1):
        own = folder / f"run-{number}" if runs > 1 else folder
        own.mkdir(exist_ok=True)
        every.append(task(own))
        if all(line.result == TOLD for line in every[0]):
            return every[0]
    return [fold(lines) for lines in zip(*every, strict=True)] if runs > 1 else every[0]


def _mpi(folder: Path) -> str:
    """The MPI library, as the first run told it; empty without one."""
    for path in sorted(folder.rglob("run.json")):
        return str(json.loads(path.read_text(encoding="utf-8"))["versions"]["mpi"])
    return ""


def run(
    names: Sequence[str], launcher: str, files: Sequence[tuple[str, Path]], kept: Path | None, runs: int = 1
) -> tuple[str, bool]:
    """Run the checks; the certificate as text, and whether one failed.

    Args:
        names: of the checks; empty for all.
        launcher: command that starts the ranks; empty for mpirun -n 2.
        files: to write, each its kind, csv or json, and its path.
        kept: folder where the runs stay; None for nowhere.
        runs: of every check.

    Raises:
        MpibenchError: with the exit status that it ends the program with.
    """
    chosen, command, began = choose(names), launch_command(launcher), _now()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="mpibench-selftest-") as temporary:
        library = Path(temporary) / "interposer.so"
        compile_library("interposer.c", library)
        folder = kept or Path(temporary)

        def launch(check: Check, folder: Path) -> Outcome:
            return run_check(check, command, library, folder)

        tasks: dict[str, Callable[[Path], list[Line]]] = {
            OVERHEAD: lambda _: overhead(launcher),
            MACHINE: lambda _: machine(),
        }
        for check in CHECKS:
            tasks[check.name] = lambda own, check=check: perform(check, partial(launch, folder=own))  # type: ignore[misc]
        for long in THOROUGH:
            tasks[long.name] = lambda own, long=long: long.perform(partial(launch, folder=own))  # type: ignore[misc]
        for number, name in enumerate(chosen, 1):
            start = time.monotonic()
            done = repeat(tasks[name], folder, runs)
            lines += done
            results = ", ".join(dict.fromkeys(line.result for line in done))
            sys.stderr.write(f"{number}/{len(chosen)} {name}: {results}, {time.monotonic() - start:.1f} s\n")
        told: dict[str, Any] = {
            "mpibench": mpibench.__version__, "python": platform.python_version(), "host": platform.node(),
            "mpi": _mpi(folder), "launcher": command, "begin": began, "end": _now(),
        }  # fmt: skip
    write(files, {"csv": as_csv(lines), "json": as_json(lines, told)})
    return table(lines, ABOUT), failed(lines)
