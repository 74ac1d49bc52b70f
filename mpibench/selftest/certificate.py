"""The certificate: every check is run, judged, printed, and written as CSV and JSON.

Starts mpibench.overlap under the interposer, one launch a check, and reads its files back. Never imports MPI.
"""

import contextlib
import csv
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan, nan
from pathlib import Path

import mpibench
from mpibench.errors import DONE, ENVIRONMENT, FINDING, DiskFault, EnvironmentRefused, MpibenchError, Stuck, UsageError
from mpibench.registry import near_match
from mpibench.selftest import parity
from mpibench.selftest.checks import CHECKS, Aim, Check
from mpibench.selftest.job import compile_library, launch_command, run_ranks
from mpibench.selftest.noise import measure_noise
from mpibench.selftest.readings import Outcome, Reading, wire_in_effect
from mpibench.units import format_bytes, parse_computes

PASSED, FAILED, SKIPPED, TOLD = "passed", "failed", "skipped", "told"
COLUMNS = ("check", "figure", "where", "value", "lo", "hi", "aim", "result", "note")
FILES = ("certificate.csv", "certificate.json")
OVERHEAD, MACHINE = "overhead", "machine"  # what is measured beside the checks
_PAIRS = 10  # of blocks, for the overhead
_NOTHING = "nothing to read: ranks waited for a core, or iterations depend on each other"
_TIMEOUT_S = 90.0  # a check stops by itself long before
_BUSY = "import os, time\nwhile os.getppid() == {} and time.monotonic() < {}: pass"


@dataclass(frozen=True)
class Line:
    """A row of the certificate: a figure of a check, at the place where it is worst."""

    check: str
    figure: str
    where: str = ""  # message and strategy; empty for the whole run
    value: float = nan
    lo: float = nan  # 95 % interval; NaN where there is none
    hi: float = nan
    aim: str = ""  # what the value must be; empty where it is only told
    result: str = TOLD  # passed, failed, skipped or told
    note: str = ""  # why it failed or was skipped


def judge(check: str, aim: Aim, readings: Sequence[Reading]) -> Line:
    """The worst of the readings against what they must be; skipped without any."""
    if not readings:
        return Line(check, aim.name, aim=aim.text, result=SKIPPED, note=_NOTHING)

    def miss(reading: Reading) -> float:
        lo, hi = (reading.lo, reading.hi) if aim.holds else (reading.value, reading.value)
        return float("inf") if isnan(lo) else max(lo - aim.most, aim.least - hi)

    worst = max(readings, key=miss)
    missing = isnan(worst.lo) if aim.holds else isnan(worst.value)
    note = "there is none" if missing else ""
    return Line(check, aim.name, *worst, aim.text, PASSED if miss(worst) <= 0 else FAILED, note)


@contextlib.contextmanager
def one_core_busy() -> Iterator[None]:
    """Another process computes meanwhile; it ends with this one, or soon."""
    code = _BUSY.format(os.getpid(), time.monotonic() + 2 * _TIMEOUT_S)
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
    with log.open("wb") as file, one_core_busy() if check.busy else contextlib.nullcontext():
        status = run_ranks(command, _TIMEOUT_S, file.fileno())
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


def perform(check: Check, launcher: Sequence[str], library: Path, folder: Path) -> list[Line]:
    """The lines of a check."""
    try:
        outcome = run_check(check, launcher, library, folder)
    except Stuck as stuck:
        return [Line(check.name, aim.name, aim=aim.text, result=FAILED, note=str(stuck)) for aim in check.aims]
    if outcome.status != check.status:
        note = f"exit status {outcome.status}, not {check.status}: {_last_line(outcome.log)}"
        return [Line(check.name, aim.name, aim=aim.text, result=FAILED, note=note) for aim in check.aims]
    return [judge(check.name, aim, aim.figure(outcome)) for aim in check.aims]


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


def table(lines: Sequence[Line]) -> str:
    """The certificate for people."""
    head = ("check", "figure", "where", "value [95 %]", "aim", "result")
    body = [
        (line.check, line.figure, line.where, _value(line), line.aim, line.result + f" ({line.note})" * bool(line.note))
        for line in lines
    ]
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head) - 1)]
    shown = ["  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in
             (head, *body)]  # fmt: skip
    return "\n".join(shown)


def _value(line: Line) -> str:
    if isnan(line.value):
        return "-"
    interval = "" if isnan(line.lo) else f" [{line.lo:.3g}, {line.hi:.3g}]"
    return f"{line.value:.3g}{interval}"


def as_csv(lines: Sequence[Line]) -> str:
    """certificate.csv; empty where there is no figure."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in lines:
        writer.writerow("" if value != value else f"{value:.9g}" if isinstance(value, float) else value
                        for value in asdict(line).values())  # fmt: skip
    return text.getvalue()


def as_json(lines: Sequence[Line], began: str, launcher: Sequence[str]) -> str:
    """certificate.json: the lines, and on what they were measured; null where there is no figure."""
    rows = [{name: None if value != value else value for name, value in asdict(line).items()} for line in lines]
    told = {
        "mpibench": mpibench.__version__, "python": platform.python_version(), "host": platform.node(),
        "launcher": list(launcher), "begin": began, "end": _now(),
    }  # fmt: skip
    return json.dumps({**told, "passed": not failed(lines), "lines": rows}, indent=2) + "\n"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def failed(lines: Sequence[Line]) -> bool:
    """Whether any check failed."""
    return any(line.result == FAILED for line in lines)


def choose(names: Sequence[str]) -> list[str]:
    """The names of what is run, all without `names`.

    Raises:
        UsageError: for an unknown one.
    """
    known = [*(check.name for check in CHECKS), OVERHEAD, MACHINE]
    for name in names:
        if name not in known:
            raise UsageError(f"--checks {name}: unknown check: {near_match(name, known)}")
    return [name for name in known if not names or name in names]


def write(paths: Mapping[str, Path], texts: Mapping[str, str]) -> None:
    """Write the files that were asked for; `paths` and `texts` by kind.

    Raises:
        DiskFault: if one cannot be written.
    """
    for kind, path in paths.items():
        try:
            path.write_text(texts[kind], encoding="utf-8")
        except OSError as error:
            raise DiskFault(f"{path}: {error.strerror}") from error


def run(names: Sequence[str], launcher: str, paths: Mapping[str, Path], folder: Path | None) -> tuple[str, bool]:
    """Run the checks; the certificate as text, and whether one failed.

    Args:
        names: of the checks; empty for all.
        launcher: command that starts the ranks; empty for mpirun -n 2.
        paths: files to write, by kind, csv or json.
        folder: where the runs stay; None for nowhere.

    Raises:
        MpibenchError: with the exit status that it ends the program with.
    """
    chosen, command, began = choose(names), launch_command(launcher), _now()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="mpibench-selftest-") as temporary:
        library = Path(temporary) / "interposer.so"
        compile_library("interposer.c", library)
        runs = folder or Path(temporary)
        tasks: dict[str, Callable[[], list[Line]]] = {
            check.name: lambda check=check: perform(check, command, library, runs)  # type: ignore[misc]
            for check in CHECKS
        }
        tasks |= {OVERHEAD: lambda: overhead(launcher), MACHINE: machine}
        for number, name in enumerate(chosen, 1):
            start = time.monotonic()
            done = tasks[name]()
            lines += done
            results = ", ".join(dict.fromkeys(line.result for line in done))
            sys.stderr.write(f"{number}/{len(chosen)} {name}: {results}, {time.monotonic() - start:.1f} s\n")
    write(paths, {"csv": as_csv(lines), "json": as_json(lines, began, command)})
    return table(lines), failed(lines)
