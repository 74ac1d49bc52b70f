"""launch/repeat with a stand-in for the benchmark that writes down how it was called; once with the real one."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.launch import ROOT, Finished, Job, is_open_mpi, mpirun_path, python, shell
from tests.cli.runs import read

REPEAT = (sys.executable, str(ROOT / "launch" / "repeat"))
LIMIT_S = 120.0

STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path
argv = sys.argv[2:]  # after the benchmark's name
flags = dict(zip(argv[::2], argv[1::2]))
place = Path(flags["--output"])
if place.name == flags.get("--break"):
    print("the network is down", flush=True)
    sys.exit(6)
place.mkdir()
side = os.environ.get("SIDE", "")
facts = {"ranks": 2, "thread_level": side or "funneled", "async_progress": side and "SIDE=" + side}
run = {"argv": argv, "side": side, "began": time.monotonic(), "settings": {"steps_from": ""}, "facts": facts}
(place / "run.json").write_text(json.dumps(run))
if place.name == flags.get("--hang"):
    signal.signal(signal.SIGINT, lambda number, frame: sys.exit(print("told", flush=True)))
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    (place / "hangs").touch()
    time.sleep(600)
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> list[str]:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    return [sys.executable, "stand_in.py", "mpibench.stand_in"]


def repeat(place: Path, *words: str) -> Finished:
    with Job([*REPEAT, *words], place) as job:
        return job.wait(LIMIT_S)


def left(place: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((place / name / "run.json").read_text()))


def test_every_launch_has_a_directory_and_the_first_ones_work(tmp_path: Path, stand_in: list[str]) -> None:
    finished = repeat(tmp_path, "3", "--output", "out", "--", *stand_in, "--size", "8")
    assert finished.status == 0, finished
    first = ["--steps-from", "out/run-1"]
    assert left(tmp_path / "out", "run-1")["argv"] == ["--size", "8", "--output", "out/run-1"]
    assert left(tmp_path / "out", "run-2")["argv"] == ["--size", "8", *first, "--output", "out/run-2"]
    assert left(tmp_path / "out", "run-3")["argv"] == ["--size", "8", *first, "--output", "out/run-3"]
    assert "python -m mpibench.compare out/run-* --to OTHER/run-*" in finished.out


def test_two_configurations_alternate_so_that_drift_hits_both(tmp_path: Path, stand_in: list[str]) -> None:
    finished = repeat(
        tmp_path, "3", "--against", "SIDE=multiple", "OTHER_VARIABLE=x=y", "--output", "out", "--", *stand_in
    )
    assert finished.status == 0, finished
    names = [f"{side}-{number}" for side in ("base", "new") for number in (1, 2, 3)]
    order = sorted(names, key=lambda name: left(tmp_path / "out", name)["began"])
    assert order == ["base-1", "new-1", "new-2", "base-2", "base-3", "new-3"]
    assert {name: left(tmp_path / "out", name)["side"] for name in names} == {
        name: "multiple" if name.startswith("new") else "" for name in names
    }
    assert "--steps-from" in left(tmp_path / "out", "new-1")["argv"], "both sides do the same work"
    # What the variable brought with it is allowed in the command to run next, and said.
    assert "thread_level funneled / multiple" in finished.out
    assert finished.out.splitlines()[-1].strip() == (
        "python -m mpibench.compare out/base-* --to out/new-* --allow thread_level"
    )


def test_steps_that_the_user_names_are_left_alone(tmp_path: Path, stand_in: list[str]) -> None:
    repeat(tmp_path, "2", "--output", "out", "--", *stand_in, "--steps-from", "elsewhere")
    assert left(tmp_path / "out", "run-2")["argv"] == ["--steps-from", "elsewhere", "--output", "out/run-2"]


def test_a_launch_that_fails_stops_all_and_what_is_there_is_kept(tmp_path: Path, stand_in: list[str]) -> None:
    finished = repeat(tmp_path, "4", "--output", "out", "--", *stand_in, "--break", "run-3")
    assert finished.status == 6, finished
    assert (
        "repeat: run-3 ended with status 6; 2 whole launches kept in out; out/logs/run-3.log ends with:" in finished.err
    )
    assert "the network is down" in finished.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["logs", "run-1", "run-2"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_launch_and_lets_none_follow(
    tmp_path: Path, stand_in: list[str], number: signal.Signals
) -> None:
    with Job([*REPEAT, "4", "--output", "out", "--", *stand_in, "--hang", "run-2"], tmp_path) as job:
        job.until((tmp_path / "out" / "run-2" / "hangs").exists, "the second launch")
        job.signal(number)
        finished = job.wait(LIMIT_S)
    assert finished.status == 128 + number, finished
    assert f"repeat: ended by {number.name} during run-2; 1 whole launch kept in out" in finished.err
    assert (tmp_path / "out" / "logs" / "run-2.log").read_text() == "told\n", "it could end in order"
    assert not (tmp_path / "out" / "run-3").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the following arguments are required: N"),
        (("x", "--", "true"), "N 'x': it is a whole number of launches"),
        (("0", "--", "true"), "N '0': it is a whole number of launches"),
        (("2",), "no command: it stands after --"),
        (("2", "--"), "no command: it stands after --"),
        (("2", "--against", "FAST", "--", "true"), "--against 'FAST': it is ENV=VALUE"),
        (("2", "--against", "SET=1", "--", "true"), "--against SET=1: it is set so already"),
        (("2", "--output", "full", "--", "true"), "--output full: there is something in it already"),
        (("2", "--output", "full/file", "--", "true"), "--output full/file: File exists"),
        (("2", "--compare", "--", "true"), "--compare: there is nothing to compare with"),
        (("2", "--bogus", "--", "true"), "unrecognized arguments: --bogus"),
        (("2", "--", "mpirun", "mpibench.overlap", "--output=x"), "--output=x in the command"),
        (("2", "--", "mpirun", "mpibench.overlap", "--resume", "x"), "--resume in the command"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with Job([*REPEAT, *words], tmp_path, {"SET": "1"}) as job:
        refused = job.wait(LIMIT_S)
    (line,) = refused.err.splitlines()
    assert (refused.status, refused.out, line.startswith(f"repeat: {said}")) == (2, "", True), refused
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [("true", "left no run in out/run-1"), ("no-such-program", "no-such-program: cannot be started")],
)
def test_a_command_that_is_no_benchmark_is_told(tmp_path: Path, command: str, said: str) -> None:
    refused = repeat(tmp_path, "2", "--output", "out", "--", command)
    assert (refused.status, said in refused.err) == (2, True), refused


def test_the_real_thing_and_the_command_that_it_prints(tmp_path: Path) -> None:
    """Two launches a side of a calibrated kernel: all do the same steps, and the printed line compares them."""
    overlap = (
        "-m",
        "mpibench.overlap",
        "--kernel",
        "gemm",
        "--sizes",
        "64K",
        "--compute",
        "200us",
        "--progress",
        "none",
    )
    short = ("--iterations", "20", "--budget", "20s")
    finished = repeat(
        tmp_path, "2", "--against", "MPIBENCH_NOTHING=1", "--output", "out",
        "--", mpirun_path(), "-n", "2", sys.executable, *overlap, *short,
    )  # fmt: skip
    assert finished.status == 0, finished
    steps = {
        read(tmp_path / "out" / name, "overlap.csv")["compute_steps"][0]
        for name in ("base-1", "base-2", "new-1", "new-2")
    }
    assert len(steps) == 1
    line = finished.out.splitlines()[-1].strip().replace("python", shlex.quote(sys.executable), 1)
    compared = shell(line, tmp_path)
    assert compared.status in (0, 1, 4), compared
    assert "BASE: 2 launches; NEW: 2 launches" in compared.out
    assert {line.split()[1] for line in compared.out.splitlines() if line.startswith("64K")} == {"B", "N", "C", "T"}


def test_the_librarys_own_progress_thread_side_by_side(tmp_path: Path) -> None:
    overlap = ("-m", "mpibench.overlap", "--kernel", "delay", "--sizes", "16K", "--compute", "200us")
    command = [str(ROOT / "launch" / "async-progress"), "2", "--output", "out", "--", mpirun_path(), "-n", "2"]
    flags = ("--progress", "none", "--iterations", "6", "--budget", "15s")
    with Job([*command, sys.executable, *overlap, *flags], tmp_path) as job:
        finished = job.wait(LIMIT_S)
    if is_open_mpi():
        assert (finished.status, finished.out) == (3, ""), finished
        assert "Open MPI has no progress thread" in finished.err
        return
    assert finished.status in (0, 1, 4), finished
    assert "BASE: 2 launches; NEW: 2 launches" in finished.out
    assert "MPICH_ASYNC_PROGRESS: unset / 1" in finished.out
    settings = [left(tmp_path / "out", side)["facts"]["async_progress"] for side in ("base-1", "new-1")]
    assert settings == ["", "MPICH_ASYNC_PROGRESS=1"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("mpirun",), 2, "no command: it stands after --"),
        (("3", "--"), 2, "no command: it stands after --"),
        (("--", "no-such-mpirun", "-n", "2"), 3, "no-such-mpirun: no such program"),
        (("--", "true"), 2, "true: does not tell whose it is"),
    ],
)
def test_async_progress_refuses_in_one_line(tmp_path: Path, words: tuple[str, ...], status: int, said: str) -> None:
    with Job([str(ROOT / "launch" / "async-progress"), *words], tmp_path) as job:
        refused = job.wait(LIMIT_S)
    assert (refused.status, refused.out) == (status, ""), refused
    assert refused.err.startswith(f"async-progress: {said}")
    assert len(refused.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--kernel", "triad"), "calibrated with --kernel gemm, this run has triad"),
        (("--kernel-dtype", "float64"), "calibrated with --kernel-dtype float32, this run has float64"),
        (("--compute", "2ms,3ms"), "it has no compute 3ms; use its --compute 2ms"),
    ],
)
def test_steps_of_other_work_are_refused(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    call = (
        "import sys, json; from pathlib import Path; from mpibench.overlap import Config; "
        "from mpibench.options import build_parser, read_command, resolve; "
        "from mpibench.engine.setup import steps_from; "
        "c = resolve(Config, read_command(build_parser(Config, 'x', ''), Config, sys.argv[2:])); "
        "print(json.dumps({k: v.steps for k, v in steps_from(Path(sys.argv[1]), c).items()}))"
    )
    calibration = {"2ms": {"steps": 123, "step_s": 1e-5, "measured_s": 1.23e-3}}
    run = {"schema": 1, "settings": {"kernel": "gemm", "kernel_dtype": "float32"}, "calibration": calibration}
    (tmp_path / "run.json").write_text(json.dumps(run))
    taken = python("-c", call, ".", "--compute", "2ms", cwd=tmp_path)
    assert json.loads(taken.out) == {"2ms": 123}, taken
    refused = python("-c", call, ".", *flags, cwd=tmp_path)
    assert refused.status, refused
    assert refused.err.splitlines()[-1].endswith(
        f"--steps-from .: {said}" + ("" if "compute" in said else "; use the same")
    )


def test_it_is_executable_and_shows_its_help() -> None:
    assert os.access(REPEAT[1], os.X_OK)
    shown = python(REPEAT[1], "--help", cwd=ROOT)
    assert (shown.status, "launch/repeat N [--against ENV=VALUE...]" in shown.out) == (0, True)
