"""Jobs that the self-test starts by itself: programs found, C compiled, ranks launched and ended."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mpibench.errors import EnvironmentRefused, Stuck, UsageError

_COMPILER_S = 120  # it may take so long
_GRACE_S = 5  # mpirun may take so long to end its ranks


def find_program(name: str, advice: str) -> str:
    """A program of the environment that this Python runs in, else one on PATH.

    Raises:
        EnvironmentRefused: if there is none.
    """
    own = Path(sys.executable).parent  # not resolved: in a venv the link's own folder counts
    found = shutil.which(name, path=f"{own}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise EnvironmentRefused(f"no {name} beside {sys.executable} or on PATH: {advice}")
    return found


def compile_library(name: str, target: Path) -> None:
    """Compile a C file of this folder as a shared library.

    Raises:
        EnvironmentRefused: without mpicc, or if it fails.
    """
    mpicc = find_program("mpicc", "install an MPI with its compiler wrapper, such as pip install mpich")
    source = Path(__file__).with_name(name)
    command = [mpicc, "-O2", "-shared", "-fPIC", "-o", str(target), str(source), "-lm", "-lpthread"]
    if set(str(target)) & set(" :"):
        raise EnvironmentRefused(f"TMPDIR {target.parent}: LD_PRELOAD carries no blank and no colon; set another")
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, errors="replace", timeout=_COMPILER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentRefused(f"{mpicc} cannot compile {name}: {error}") from None
    if done.returncode or not target.exists():
        said = done.stderr.splitlines() or ["no message"]
        reason = next((line for line in said if "error" in line), said[0])
        raise EnvironmentRefused(f"{mpicc} cannot compile {name} (status {done.returncode}): {reason}")


def launch_command(launcher: str) -> list[str]:
    """What starts the ranks: the user's launcher, or mpirun -n 2.

    Raises:
        UsageError: if the launcher is not a command.
        EnvironmentRefused: if there is no such program.
    """
    if not launcher:
        return [find_program("mpirun", 'install an MPI, or say what starts ranks: --launcher "srun -n 2"'), "-n", "2"]
    try:
        program, *rest = shlex.split(launcher)
    except ValueError:  # quotes that do not match, or nothing
        raise UsageError(f'--launcher {launcher!r}: not a command, such as "srun --mpi=pmi2 -n 2"') from None
    return [find_program(program, "it is what --launcher names"), *rest]


def prepare_output(output: str, files: Sequence[str]) -> Path:
    """Make the directory of these files, before anything is measured.

    Raises:
        UsageError: if it holds one of them already, or cannot be made and written.
    """
    directory = Path(output)
    for name in files:
        if os.path.lexists(directory / name):
            raise UsageError(f"--output {output}: it holds a {name} already; name another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}; name a directory that can be written") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"--output {output}: not writable; name a directory that can be written")
    return directory


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its ranks; then whatever is left of its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)


def run_ranks(command: Sequence[str], timeout_s: float, output: int = 2) -> int:
    """Run the launcher in a process group of its own; its exit status.

    Args:
        command: the launcher and what it starts.
        timeout_s: it may take so long.
        output: file descriptor for all its messages; ours go to stderr. Any other takes its stderr as well.

    Raises:
        Stuck: if it runs longer than `timeout_s`.
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    except OSError as error:
        raise EnvironmentRefused(f"{command[0]}: cannot be started: {error.strerror}") from None
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise Stuck(f"stuck: {' '.join(command[:3])} ... did not end within {timeout_s:g} s and was ended") from None
    finally:
        if process.poll() is None:
            end_group(process)
