"""python -m mpibench.selftest --parity, run for real."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SIZES = [8, 1024, 65536, 1048576, 4194304]
COLUMNS = ["nbytes", "operation", "c_s", "mpibench_s", "difference_s", "ratio", "ratio_lo", "ratio_hi"]
ROOT = Path(__file__).parents[2]
SEARCHED = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"

pytestmark = [
    pytest.mark.skipif(not shutil.which("mpicc", path=SEARCHED), reason="no mpicc beside Python or on PATH"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="parity needs two cores"),
]


def selftest(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mpibench.selftest", "--parity", "--pairs", "6", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


def test_measures_and_writes(tmp_path: Path) -> None:
    output = tmp_path / "made" / "here"
    done = selftest("--output", str(output))
    assert done.returncode == 0, done.stderr
    with (output / "parity.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert reader.fieldnames == COLUMNS
    operations = list(dict.fromkeys(row["operation"] for row in rows))
    if operations == ["allreduce", "nonblocking"]:  # a library without MPI_Allreduce_init
        assert "no persistent rows: " in done.stdout
    else:
        assert operations == ["allreduce", "nonblocking", "persistent"]
    assert [(row["operation"], int(row["nbytes"])) for row in rows] == [(o, n) for o in operations for n in SIZES]
    for row in rows:
        c_s, own_s, _, ratio, low, high = (float(row[name]) for name in COLUMNS[2:])
        assert c_s > 0
        assert own_s > 0
        assert 0 < low <= ratio <= high
    assert "thread level funneled" in done.stdout
    assert "2 ranks" in done.stdout
    intervals = [line for line in done.stdout.split("\n") if line.count("[") == 2]
    assert len(intervals) == 1 + len(rows)  # the head and every row
    assert "leak" not in done.stderr.lower()  # MPICH complains of requests that were not freed
    again = selftest("--output", str(output))
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1


def test_ranks_that_are_alone_are_refused(tmp_path: Path) -> None:
    alone = 'sh -c \'"$@" & "$@"; wait\' sh'  # two processes and no launcher, as srun --mpi=none starts
    done = selftest("--launcher", alone, "--output", str(tmp_path))
    assert done.returncode == 3, done.stderr
    assert "mpibench: the ranks are alone" in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "parity.csv").exists()
