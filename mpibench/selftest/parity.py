"""Parity: what mpibench's hot loops cost above the same MPI calls from C, in one process.

This side compiles the reference loops, starts the ranks under a timeout, and turns their blocks
into rows, a table and parity.csv. It never imports MPI; `parity_worker` is what the ranks run.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpibench.analysis.statistics import Interval, median_interval
from mpibench.errors import FAULT, STUCK, DiskFault, EnvironmentRefused, MpibenchError, Stuck, WrongData
from mpibench.selftest.job import compile_library, launch_command, prepare_output, run_ranks
from mpibench.units import format_bytes, format_duration

COLUMNS = ("nbytes", "operation", "c_s", "mpibench_s", "difference_s", "ratio", "ratio_lo", "ratio_hi")
FILE = "parity.csv"
SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 4 << 20)  # bytes
LEAST_PAIRS = 6  # fewer have no interval
_TIMEOUT_S = 300  # the ranks stop by themselves long before
_LARGE_NBYTES = 1 << 16
_LARGE_RATIO, _LARGE_DIFFERENCE_S = 1.05, 2.5e-6  # from 64 KiB on; either will do
_SMALL_NBYTES = 8
_SMALL_DIFFERENCE_S = {"allreduce": 1.5e-6, "nonblocking": 2.5e-6, "persistent": 0.5e-6}


@dataclass(frozen=True)
class Row:
    """One message size and operation. The ratio and the difference are medians over pairs of blocks."""

    nbytes: int  # message size
    operation: str  # allreduce, nonblocking or persistent
    c_s: float  # the C loop: median over its blocks
    mpibench_s: float  # mpibench's loop: median over its blocks
    difference: Interval  # mpibench - C, seconds
    ratio: Interval  # mpibench / C


def combine(nbytes: int, operation: str, c_s: Sequence[float], mpibench_s: Sequence[float]) -> Row:
    """A row from the times of the blocks, seconds, pair by pair."""
    pairs = list(zip(c_s, mpibench_s, strict=True))
    return Row(
        nbytes,
        operation,
        median_interval(c_s).median,
        median_interval(mpibench_s).median,
        median_interval([own - reference for reference, own in pairs]),
        median_interval([own / reference for reference, own in pairs]),
    )


def judge(row: Row) -> str:
    """Whether the row is within what parity aims at, with the aim."""
    if row.nbytes >= _LARGE_NBYTES:
        aim = f"ratio <= {_LARGE_RATIO} or {format_duration(_LARGE_DIFFERENCE_S)}"
        within = row.ratio.median <= _LARGE_RATIO or row.difference.median <= _LARGE_DIFFERENCE_S
    elif row.nbytes == _SMALL_NBYTES:
        aim = f"<= {format_duration(_SMALL_DIFFERENCE_S[row.operation])}"
        within = row.difference.median <= _SMALL_DIFFERENCE_S[row.operation]
    else:
        return "no limit"
    return f"{'within' if within else 'beyond'} {aim}"


def table(result: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """What was run and a line per row, for people."""
    library = " ".join(result["library"].split(",")[0].split())
    line = "{:>7}  {:<11}  {:>8}  {:>8}  {:>30}  {:>20}  {}"
    lines = [
        f"Parity: mpibench's hot loop against the same MPI calls from C, {result['ranks']} ranks, float32, sum",
        f"{library}, thread level {result['thread_level']}, {result['pairs']} pairs of blocks in one process",
        "",
        line.format("message", "operation", "C", "mpibench", "difference [95 %]", "ratio [95 %]", "aim"),
    ]
    for row in rows:
        difference = [format_duration(value) for value in row.difference]
        lines.append(
            line.format(
                f"{format_bytes(row.nbytes)}{'' if row.nbytes >= 1024 else ' '}B",
                row.operation,
                format_duration(row.c_s),
                format_duration(row.mpibench_s),
                "{} [{}, {}]".format(*difference),
                "{:.3f} [{:.3f}, {:.3f}]".format(*row.ratio),
                judge(row),
            )
        )
    return "\n".join(lines + [f"no persistent rows: {result['left_out']}"] * bool(result["left_out"]))


def write_csv(directory: Path, rows: Sequence[Row]) -> None:
    """Write parity.csv, which must not exist yet.

    Raises:
        DiskFault: if it cannot be written.
    """
    path = directory / FILE
    try:
        with path.open("x", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for row in rows:
                times = (row.c_s, row.mpibench_s, row.difference.median)
                figures = [f"{value:.6g}" for value in (*times, *row.ratio)]
                writer.writerow([row.nbytes, row.operation, *figures])
    except OSError as error:
        raise DiskFault(f"{path}: {error.strerror}") from error


def read_result(path: Path, status: int, command: Sequence[str]) -> dict[str, Any]:
    """What the ranks measured.

    Raises:
        EnvironmentRefused: if they could not start, or refused.
        WrongData: if a result was wrong.
        MpibenchError: if a rank failed.
    """
    started = " ".join(command)
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if status == STUCK:
            raise Stuck("the ranks were stuck; what they were doing is above") from None
        if status == FAULT:
            raise MpibenchError("a rank failed; its traceback is above") from None
        raise EnvironmentRefused(f"{started} left no result (status {status}); its own message is above") from None
    if "refused" in result:
        raise EnvironmentRefused(result["refused"])
    if "wrong" in result:
        raise WrongData(result["wrong"])
    if status:
        raise MpibenchError(f"{started} ended with status {status} after measuring")
    return result


def measure(pairs: int, launcher: str, output: str = "") -> tuple[dict[str, Any], list[Row]]:
    """Measure; what the ranks told, and the rows.

    Args:
        pairs: pairs of blocks, at least 6.
        launcher: command that starts the ranks; empty for mpirun -n 2.
        output: directory to make before anything is measured; empty for none.

    Raises:
        MpibenchError: with the exit status that it ends the program with.
    """
    command = launch_command(launcher)
    with tempfile.TemporaryDirectory(prefix="mpibench-parity-") as folder:
        library, raw = Path(folder) / "reference.so", Path(folder) / "result.json"
        compile_library("reference.c", library)
        if output:
            prepare_output(output, (FILE,))
        worker = [sys.executable, "-m", "mpibench.selftest.parity_worker", str(library), str(raw), str(pairs)]
        result = read_result(raw, run_ranks([*command, *worker], _TIMEOUT_S), command)
    return result, [combine(**cell) for cell in result["cells"]]


def run(pairs: int, output: str, launcher: str) -> str:
    """Measure, write parity.csv below `output` if it is not empty, and return the table. Arguments as `measure`.

    Raises:
        MpibenchError: with the exit status that it ends the program with.
    """
    result, rows = measure(pairs, launcher, output)
    if output:
        write_csv(Path(output), rows)
    return table(result, rows)
