"""One check's run: mpibench.overlap as a command, under the interposer, and beside a busy core if that is asked for."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path

from mpibench.errors import ENVIRONMENT, FAULT, EnvironmentRefused, MpibenchError
from mpibench.selftest.checks import Check
from mpibench.selftest.job import run_ranks
from mpibench.selftest.readings import Outcome, wire_in_effect
from mpibench.units import parse_computes

_SPIN = "import os, time\nwhile os.getppid() == {} and time.monotonic() < {}: pass"


class Unexpected(MpibenchError):
    """A run ended otherwise than its check must."""

    status = FAULT


@contextlib.contextmanager
def cores_busy(most_s: float) -> Iterator[None]:
    """Other processes compute on all cores but one, so that two ranks have one and a share of another.

    They end with this one, and after `most_s` at the latest.
    """
    code = _SPIN.format(os.getpid(), time.monotonic() + most_s)
    count = max(1, len(os.sched_getaffinity(0)) - 1)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def run_check(check: Check, launcher: Sequence[str], library: Path, folder: Path) -> Outcome:
    """Run mpibench.overlap on the check's network; its files are below `folder`.

    Raises:
        Stuck: if it does not end.
        Unexpected: if its exit status is not the check's.
        EnvironmentRefused: if it cannot run at all, or the launcher did not load the interposer.
    """
    directory, log = folder / check.name, folder / f"{check.name}.log"
    preload = ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
    command = [
        *launcher, "env", f"LD_PRELOAD={preload}", *check.wire.environment(), sys.executable, "-m", "mpibench.overlap",
        *check.flags, "--output", str(directory),
    ]  # fmt: skip
    with log.open("wb") as file, cores_busy(2 * check.timeout_s) if check.busy else contextlib.nullcontext():
        status = run_ranks(command, check.timeout_s, file.fileno())
    computes = parse_computes(check.flags[check.flags.index("--compute") + 1])
    said = log.read_text(encoding="utf-8", errors="replace")
    outcome = Outcome(directory, said, check.wire, tuple(c.seconds or nan for c in computes))
    if status == ENVIRONMENT or not (directory / "run.json").exists():
        alone = "; is mpicc of the MPI library that mpi4py uses?" if "alone" in said else ""
        raise EnvironmentRefused(f"{' '.join(launcher)}: it ended with {status}: {_last_line(said)}{alone}")
    if status != check.status:
        raise Unexpected(f"exit status {status}, not {check.status}: {_last_line(said)}")
    if not wire_in_effect(outcome):
        raise EnvironmentRefused(
            f"the ranks ran without the interposer: {launcher[0]} did not pass LD_PRELOAD={library} on, or a host "
            "cannot read it (TMPDIR must be shared)"
        )
    return outcome


def _last_line(text: str) -> str:
    """The last line of ours, else the last of all."""
    lines = [line for line in text.splitlines() if line.strip()] or ["no message"]
    ours = next((line for line in reversed(lines) if line.startswith("mpibench: ")), lines[-1])
    return ours.removeprefix("mpibench: ").strip()
