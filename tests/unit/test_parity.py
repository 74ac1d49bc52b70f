"""Parity: blocks to rows, limits, the file, and what is refused. No MPI."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mpibench.analysis.statistics import Interval
from mpibench.errors import (
    ENVIRONMENT,
    FAULT,
    FINDING,
    STUCK,
    USAGE,
    EnvironmentRefused,
    MpibenchError,
    Stuck,
    UsageError,
)
from mpibench.selftest import __main__ as command
from mpibench.selftest import job, parity

MICRO = 1e-6


def row(nbytes: int, operation: str, difference_s: float, ratio: float) -> parity.Row:
    spread = (0.9, 1.1)
    return parity.Row(
        nbytes,
        operation,
        10 * MICRO,
        10 * MICRO + difference_s,
        Interval(difference_s, *(factor * difference_s for factor in spread)),
        Interval(ratio, *(factor * ratio for factor in spread)),
    )


def test_medians_are_of_pairs_not_of_sides() -> None:
    # The machine slows down by 10 half-way: every pair knows that the difference is 2 or 3 and the ratio 1.5 or 1.2.
    c_s = [4.0, 4.0, 4.0, 40.0, 40.0, 40.0, 40.0]
    own = [6.0, 6.0, 6.0, 48.0, 48.0, 48.0, 48.0]
    combined = parity.combine(1024, "persistent", c_s, own)
    assert (combined.nbytes, combined.operation) == (1024, "persistent")
    assert combined.c_s == 40.0
    assert combined.mpibench_s == 48.0
    assert combined.difference == Interval(8.0, 2.0, 8.0)
    assert combined.ratio == pytest.approx(Interval(1.2, 1.2, 1.5))


def test_interval_has_the_exact_binomial_ranks() -> None:
    ratios = [1 + i / 100 for i in range(10)]  # n = 10: ranks 2 and 9
    combined = parity.combine(8, "allreduce", [1.0] * 10, ratios[::-1])
    assert combined.ratio == pytest.approx(Interval(1.045, ratios[1], ratios[8]))


def test_one_wild_block_moves_nothing() -> None:
    c_s, own = [1.0] * 21, [1.5] * 21
    own[3], c_s[7] = 1e6, 1e6
    combined = parity.combine(8, "allreduce", c_s, own)
    assert combined.ratio == Interval(1.5, 1.5, 1.5)
    assert (combined.c_s, combined.mpibench_s) == (1.0, 1.5)


def test_sides_of_unequal_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        parity.combine(8, "allreduce", [1.0] * 6, [1.0] * 7)


@pytest.mark.parametrize(
    ("nbytes", "operation", "difference_s", "ratio", "word"),
    [
        (8, "allreduce", 1.4 * MICRO, 3.0, "within"),
        (8, "allreduce", 1.6 * MICRO, 1.01, "beyond"),
        (8, "nonblocking", 2.4 * MICRO, 3.0, "within"),
        (8, "nonblocking", 2.6 * MICRO, 1.01, "beyond"),
        (8, "persistent", 0.4 * MICRO, 3.0, "within"),
        (8, "persistent", 0.6 * MICRO, 1.01, "beyond"),
        (8, "persistent", -0.6 * MICRO, 0.9, "within"),
        (1024, "allreduce", 100 * MICRO, 3.0, "no limit"),
        (1 << 16, "allreduce", 2.4 * MICRO, 1.2, "within"),
        (1 << 16, "nonblocking", 2.6 * MICRO, 1.06, "beyond"),
        (4 << 20, "persistent", 300 * MICRO, 1.04, "within"),
        (4 << 20, "persistent", 300 * MICRO, 1.06, "beyond"),
    ],
)
def test_limits(nbytes: int, operation: str, difference_s: float, ratio: float, word: str) -> None:
    assert parity.judge(row(nbytes, operation, difference_s, ratio)).startswith(word)


def test_table_says_what_was_run_and_keeps_interval_and_aim_on_the_row() -> None:
    result = {
        "library": "MPICH Version:      5.0.2",
        "thread_level": "funneled",
        "ranks": 2,
        "pairs": 40,
        "left_out": "",
    }
    lines = parity.table(result, [row(8, "allreduce", 1 * MICRO, 1.5), row(4 << 20, "persistent", MICRO, 1.0)]).split(
        "\n"
    )
    assert "MPICH Version: 5.0.2, thread level funneled" in lines[1]
    assert "2 ranks" in lines[0]
    assert "8 B" in lines[-2]
    assert "1.00 us [900 ns, 1.10 us]" in lines[-2]
    assert "1.500 [1.350, 1.650]" in lines[-2]
    assert lines[-2].endswith("within <= 1.50 us")
    assert "4MB" in lines[-1]


def test_table_says_which_rows_are_left_out() -> None:
    result = {
        "library": "Open MPI v5.0.11, package: x",
        "thread_level": "funneled",
        "ranks": 2,
        "pairs": 6,
        "left_out": "no init",
    }
    assert parity.table(result, []).endswith("no persistent rows: no init")


def test_csv_has_exactly_the_columns_and_reads_back(tmp_path: Path) -> None:
    parity.write_csv(tmp_path, [row(8, "allreduce", 1 * MICRO, 1.5)])
    text = (tmp_path / "parity.csv").read_text()
    assert text.startswith(
        "nbytes,operation,c_s,mpibench_s,difference_s,ratio,ratio_lo,ratio_hi\n8,allreduce,1e-05,1.1e-05,"
    )
    (read,) = csv.DictReader(text.splitlines())
    assert [float(read[name]) for name in ("ratio", "ratio_lo", "ratio_hi")] == [1.5, 1.35, 1.65]
    assert float(read["difference_s"]) == 1 * MICRO


def test_csv_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "parity.csv").write_text("mine")
    with pytest.raises(MpibenchError) as caught:
        parity.write_csv(tmp_path, [])
    assert caught.value.status == FAULT
    assert (tmp_path / "parity.csv").read_text() == "mine"


def test_existing_file_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "parity.csv").write_text("mine")
    monkeypatch.setattr(parity, "compile_library", lambda name, target: None)
    monkeypatch.setattr(parity, "run_ranks", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(sys, "argv", ["selftest", "--parity", "--output", str(tmp_path), "--launcher", sys.executable])
    assert command.main() == USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"mpibench: --output {tmp_path}: it holds a parity.csv already; name another directory\n"


def test_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--output"):
        job.prepare_output(str(tmp_path / "file"), ("parity.csv",))


def test_missing_compiler_is_one_line_and_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "bin" / "python"
    output = tmp_path / "output"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(python.parent))
    monkeypatch.setattr(sys, "argv", ["selftest", "--parity", "--output", str(output), "--launcher", str(python)])
    assert command.main() == ENVIRONMENT
    said = capsys.readouterr()
    assert said.err.startswith("mpibench: no mpicc beside ")
    assert said.err.count("\n") == 1
    assert not output.exists()


def test_programs_beside_python_come_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("own", "other"):
        (tmp_path / folder).mkdir()
        program = tmp_path / folder / "mpicc"
        program.write_text("")
        program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert job.find_program("mpicc", "") == str(tmp_path / "own" / "mpicc")
    (tmp_path / "own" / "mpicc").unlink()
    assert job.find_program("mpicc", "") == str(tmp_path / "other" / "mpicc")


def test_compiler_that_fails_is_refused_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpicc = tmp_path / "mpicc"
    mpicc.write_text("#!/bin/sh\necho In file included from x >&2\necho fatal error: mpi.h >&2\nexit 1\n")
    mpicc.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EnvironmentRefused, match=r"reference\.c \(status 1\): fatal error: mpi\.h"):
        job.compile_library("reference.c", tmp_path / "out.so")


@pytest.mark.parametrize("launcher", ["'", " "])
def test_launcher_that_is_no_command(launcher: str) -> None:
    with pytest.raises(UsageError, match="--launcher"):
        job.launch_command(launcher)


def test_launcher_is_split_as_a_shell_does() -> None:
    assert job.launch_command("sh -c 'a b' -n 2")[1:] == ["-c", "a b", "-n", "2"]
    with pytest.raises(EnvironmentRefused, match="no-such-launcher"):
        job.launch_command("no-such-launcher -n 2")


@pytest.mark.parametrize(
    ("content", "status", "expected"),
    [
        ({"refused": "alone"}, 0, ENVIRONMENT),
        ({"wrong": "wrong data"}, 0, FINDING),
        ({"cells": []}, 1, FAULT),
        (None, FAULT, FAULT),
        (None, STUCK, STUCK),
        (None, 1, ENVIRONMENT),
        (None, 0, ENVIRONMENT),
    ],
)
def test_no_figures_end_with_their_status(
    tmp_path: Path, content: dict[str, object] | None, status: int, expected: int
) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(json.dumps(content))
    with pytest.raises(MpibenchError) as caught:
        parity.read_result(path, status, ["mpirun", "-n", "2"])
    assert caught.value.status == expected


def test_ranks_that_do_not_end_are_stuck() -> None:
    with pytest.raises(Stuck, match=r"sleep 600 \.\.\. did not end within 0\.1 s"):
        job.run_ranks(["sleep", "600"], 0.1)


def test_ending_ends_the_whole_group_even_if_it_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_GRACE_S", 0.1)
    script = "trap '' TERM; echo ready; sleep 600 & sleep 600"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        job.end_group(process)
        assert process.returncode == -signal.SIGKILL
        assert process.stdout.read() == b""  # at its end: nobody holds it any more


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--parit"], "mpibench: --parit: unknown flag, did you mean --parity?"),
        (["--parity", "junk"], "mpibench: junk: not a flag"),
        (["--parity", "--output"], "mpibench: --output: "),
        (["--parity", "--pairs", "5"], "mpibench: --pairs: '5': "),
        (["--parity", "--pairs", "many"], "mpibench: --pairs: 'many': "),
    ],
)
def test_junk_is_one_line(
    argv: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["selftest", *argv])
    assert command.main() == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(said)
    assert captured.err.count("\n") == 1


def test_help_imports_neither_numpy_nor_mpi4py() -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['selftest', '--help']\n"
        "try: runpy.run_module('mpibench.selftest', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'numpy', 'mpi4py'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--parity" in done.stdout
