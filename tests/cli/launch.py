"""Commands as a user types them, under mpirun, with an end: nothing that a test starts outlives it.

A job runs in a session of its own and carries a mark in its environment, by which all of its
processes are found, those too that the launcher put into sessions of their own.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

ROOT = Path(__file__).parents[2]
OVERLAP = ("-m", "mpibench.overlap")
LIMIT_S = 120.0  # of a command that takes seconds, on a machine that is busy with something else
CORES = len(os.sched_getaffinity(0))
_MARK = "MPIBENCH_TEST_JOB"
_OPEN_MPI = {  # as root, and with more ranks than cores
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
_NOT_INHERITED = re.compile(r"PMI|OMPI_|PRTE_|MPI_LOCAL|SLURM_|.*_NUM_THREADS$|COLUMNS$|PYTEST_")
_LAUNCHERS_OWN = re.compile(r"Abort\(\d+\) on node|\[mpiexec@|\[proxy|\[warn\]|=+$|= ")


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    status: int  # its exit status; -n if it died of signal n
    out: str  # all of stdout
    err: str  # all of stderr

    @property
    def said(self) -> list[str]:
        """The lines of stderr that the ranks wrote: not Open MPI's framed messages, nor Hydra's reports."""
        lines, framed = [], False
        for line in self.err.replace("\0", "").splitlines():  # a NUL of Open MPI's, at times
            if re.fullmatch(r"-{60,}", line.strip()):
                framed = not framed
            elif not framed and line.strip() and not _LAUNCHERS_OWN.match(line):
                lines.append(line.strip("\r"))
        return lines

    def __str__(self) -> str:
        return f"status {self.status}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Job:
    """A command that runs. Use as a context manager: what is left of it at the end is killed.

    Args:
        command: program and arguments.
        cwd: where it runs.
        env: beside `environment()`.
    """

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self._mark = uuid.uuid4().hex
        self._out, self._err = os.memfd_create("out"), os.memfd_create("err")
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err, cwd=cwd, start_new_session=True,
            env={**environment(), **(env or {}), _MARK: self._mark},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        os.close(self._out)
        os.close(self._err)

    def wait(self, timeout: float = LIMIT_S) -> Finished:
        """What it left when it ended; fails, showing its output, if it does not end."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._fail(f"did not end within {timeout:.0f} s")
        return self.so_far()

    def so_far(self) -> Finished:
        """What it has left until now."""
        code = self._process.returncode
        return Finished(code if code is not None else 0, _text(self._out), _text(self._err))

    def until(self, condition: Callable[[], bool], what: str, timeout: float = LIMIT_S) -> None:
        """Poll until the condition holds; fails, showing the output, if the job ends or time is up before."""
        deadline = time.monotonic() + timeout
        while not condition():
            if self._process.poll() is not None:
                self._fail(f"ended before {what}")
            if time.monotonic() > deadline:
                self._fail(f"{what}: not within {timeout:.0f} s")
            time.sleep(0.02)

    def _fail(self, reason: str) -> None:
        self.kill()
        pytest.fail(f"{self._process.args}: {reason}\n{self.so_far()}")

    def signal(self, number: int) -> None:
        """Send a signal to the launcher alone."""
        self._process.send_signal(number)

    def members(self) -> list[int]:
        """Processes of this job that are alive, the launcher and its helpers included."""
        marked = f"{_MARK}={self._mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                mine = marked in (folder / "environ").read_bytes().split(b"\0")
                if mine and (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def all_gone(self, timeout: float = 20.0) -> bool:
        """Whether every process of the job ends, soon."""
        deadline = time.monotonic() + timeout
        while self.members():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def kill(self) -> None:
        """End whatever is left, also what a dying launcher was just starting."""
        while left := self.members():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)
        self._process.wait(30)


def _text(file: int) -> str:
    # The job shares the file's offset: it must not be moved.
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace").replace("\r\n", "\n")


def environment() -> dict[str, str]:
    """This process's environment without traces of a launcher, with the checkout and this interpreter found first."""
    kept = {name: value for name, value in os.environ.items() if not _NOT_INHERITED.match(name)}
    first = {"PYTHONPATH": str(ROOT), "PATH": str(Path(sys.executable).parent)}
    paths = {name: os.pathsep.join(filter(None, [path, kept.get(name, "")])) for name, path in first.items()}
    return {**kept, **paths, **_OPEN_MPI, "PYTHONUNBUFFERED": "1"}


@cache
def mpirun_path() -> str:
    """The mpirun of this environment: beside the interpreter, else on PATH."""
    found = shutil.which("mpirun", path=environment()["PATH"])
    if not found:
        pytest.skip('no mpirun beside the interpreter or on PATH: pip install "mpibench[mpich]"')
    return found


@cache
def is_open_mpi() -> bool:
    """Whether that mpirun is Open MPI's; else it is taken for Hydra's."""
    asked = subprocess.run([mpirun_path(), "--version"], capture_output=True, text=True, env=environment())
    return "Open MPI" in asked.stdout


@contextmanager
def started(n: int, *args: str, cwd: Path, env: Mapping[str, str] | None = None) -> Iterator[Job]:
    """`mpirun -n N python ARGS` while it runs."""
    with Job([mpirun_path(), "-n", str(n), sys.executable, *args], cwd, env) as job:
        yield job


def mpirun(n: int, *args: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = LIMIT_S) -> Finished:
    """`mpirun -n N python ARGS` to its end."""
    with started(n, *args, cwd=cwd, env=env) as job:
        return job.wait(timeout)


def python(*args: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = LIMIT_S) -> Finished:
    """`python ARGS` without a launcher, to its end."""
    with Job([sys.executable, *args], cwd, env) as job:
        return job.wait(timeout)


def shell(line: str, cwd: Path, timeout: float = LIMIT_S) -> Finished:
    """A line as it was printed, to its end."""
    with Job(["/bin/sh", "-c", line], cwd) as job:
        return job.wait(timeout)
