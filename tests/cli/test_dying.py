"""However a job ends, it ends: whole, within seconds, with its reason told and what was measured on disk.

A job is begun with more iterations than it can ever do; when it has measured something, a rank is
made to fail. Nothing is waited for by sleeping. The upper limits are those of a busy machine.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.launch import OVERLAP, Finished, Job, is_open_mpi, mpirun, mpirun_path, python, started
from tests.cli.runs import check_valid, read, read_run, visits

ENDLESS = ("--sizes", "4,1K", "--compute", "300us", "--iterations", "1000000", "--budget", "300s")
SECONDS = 60.0  # of a job that has a reason to end; it takes 1 to 15 on an idle machine
FEW = ("--iterations", "30", "--budget", "20s")  # to go on with a run to its end


@dataclass
class Running:
    """A job that measures, and may break on cue."""

    job: Job
    cwd: Path

    @property
    def directory(self) -> Path:
        return self.cwd / "run"

    def pid(self, rank: int) -> int:
        return next(host["pid"] for host in read_run(self.directory)["hosts"] if host["rank"] == rank)

    def committed(self) -> int:
        """Lines on disk of phases of whole iterations."""
        try:
            return (self.directory / "samples.csv").read_bytes().count(b",overlapped,")
        except OSError:
            return 0

    def measure_on(self, lines: int = 60) -> None:
        """Wait for more visits, and for the tables of a pass."""
        wanted = self.committed() + lines
        self.job.until(
            lambda: self.committed() >= wanted and (self.directory / "overlap.csv").exists(), f"{lines} more samples"
        )

    def break_down(self, *ranks: int) -> None:
        """Give the cue, and wait until these ranks have reached their fault."""
        (self.cwd / "cue").touch()
        for rank in ranks:
            self.job.until((self.cwd / f"cue.{rank}").exists, f"the fault on rank {rank}")

    def end(self, timeout: float = SECONDS) -> Finished:
        """The end of the job, and of all its processes."""
        finished = self.job.wait(timeout)
        assert self.job.all_gone(), finished
        return finished


@contextmanager
def running(cwd: Path, kernel: str, *flags: str, ranks: int = 3, faulty: tuple[int, ...] = ()) -> Iterator[Running]:
    """A job that has measured something, under a kernel of tests.cli.faults."""
    env = {"FAULT_RANKS": ",".join(map(str, faulty)), "FAULT_WHEN": str(cwd / "cue")}
    words = (*OVERLAP, *ENDLESS, "--kernel", f"tests.cli.faults:{kernel}", "--thread-level", "multiple")
    with started(ranks, *words, "--output", "run", *flags, cwd=cwd, env=env) as job:
        run = Running(job, cwd)
        run.measure_on()
        yield run


@pytest.fixture(scope="module")
def short_run(tmp_path_factory) -> Path:
    """A finished run of two ranks; to be copied, not changed."""
    cwd = tmp_path_factory.mktemp("short")
    finished = mpirun(
        2, *OVERLAP, "--sizes", "4,1K", "--compute", "200us", "--kernel", "delay", "--iterations", "24",
        "--thread-level", "multiple", "--samples", "all", "--output", "run", cwd=cwd,
    )  # fmt: skip
    assert finished.status == 0, finished
    return cwd / "run"


def check_resumable(cwd: Path, ranks: int = 3) -> None:
    """The run goes on from its whole visits, which stay as they are, and comes to its end."""
    directory = cwd / "run"
    before = (directory / "samples.csv").read_text()
    whole = before[: before.rindex("\n") + 1]
    earlier = [launch["ended"] for launch in read_run(directory)["launches"]]
    finished = mpirun(ranks, *OVERLAP, "--resume", "run", *FEW, cwd=cwd)
    assert finished.status == 0, finished
    if "dropped" not in finished.err:
        assert (directory / "samples.csv").read_text().startswith(whole)
    run = check_valid(directory)
    assert [launch["ended"] for launch in run["launches"]] == [*earlier, "finished"]
    assert read(directory, "overlap.csv")["iterations"].ge(30).all()


def check_status(finished: Finished, status: int) -> None:
    """Hydra hands a status on; Open MPI's mpirun has its own of some of them, but not 0."""
    assert finished.status == status or (is_open_mpi() and finished.status != 0), finished


def check_told(finished: Finished, *patterns: str) -> None:
    """Each of these once on stderr."""
    for pattern in patterns:
        assert len(re.findall(pattern, finished.err)) == 1, f"{pattern}\n{finished}"


def ended(directory: Path) -> str:
    return read_run(directory)["launches"][-1]["ended"]


@pytest.mark.parametrize("faulty", [(0,), (1,), (0, 1, 2)], ids=["rank 0", "rank 1", "all ranks"])
def test_a_rank_that_raises(faulty, tmp_path):
    with running(tmp_path, "Raises", faulty=faulty) as run:
        run.break_down()
        finished = run.end()
    check_status(finished, 6)
    check_told(
        finished, "Traceback", r"RuntimeError: the step broke", r"in break_down\n", r"rank \d: raised RuntimeError"
    )
    teller = re.search(r"rank (\d): raised RuntimeError at cell \d \((4|1K), 300us\)", finished.err)
    assert teller, finished
    assert int(teller[1]) in faulty, finished
    assert re.match(r"raised RuntimeError at cell", ended(run.directory))
    check_valid(run.directory)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_is_killed(rank, tmp_path):
    with running(tmp_path, "Steady") as run:
        os.kill(run.pid(rank), signal.SIGKILL)
        began = time.monotonic()
        finished = run.end()
        assert time.monotonic() - began < 15
    assert finished.status != 0, finished
    check_resumable(tmp_path)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped(rank, tmp_path):
    with running(tmp_path, "Steady", "--watchdog", "3s") as run:
        os.kill(run.pid(rank), signal.SIGSTOP)
        finished = run.end()
    check_stuck(finished)
    assert re.search(rf"^  rank {rank}: no sign of life", finished.err, re.MULTILINE), finished
    assert re.search(r"^  ranks? .*: at cell \d \((4|1K), 300us\), \w+", finished.err, re.MULTILINE), finished
    assert ended(run.directory).startswith("stuck")
    check_valid(run.directory)


@pytest.mark.parametrize(
    ("kernel", "rank", "line"),
    [("HangsInMpi", 1, "MPI.COMM_WORLD.recv"), ("HangsInPython", 0, "time.sleep(1)")],
    ids=["inside MPI", "in Python"],
)
def test_a_rank_that_hangs(kernel, rank, line, tmp_path):
    with running(tmp_path, kernel, "--watchdog", "3s", faulty=(rank,)) as run:
        run.break_down(rank)
        finished = run.end()
    check_stuck(finished)
    assert re.search(rf"^  rank {rank}: at cell \d \((4|1K), 300us\).*faults.py", finished.err, re.MULTILINE), finished
    assert f"stack of rank {rank}, innermost call first" in finished.err, finished
    assert line in finished.err, finished
    assert "break_down" in finished.err, finished
    assert "no sign of life" not in finished.err, finished
    assert ended(run.directory).startswith("stuck")
    check_valid(run.directory)


def check_stuck(finished: Finished) -> None:
    check_status(finished, 5)
    assert "no phase finished for 3 s (--watchdog); cell " in finished.err, finished


def test_a_run_that_is_stuck_again_tells_the_ranks_of_this_time(short_run, tmp_path):
    """What the ranks left when the run was stuck before says nothing of who lives now."""
    (Path(shutil.copytree(short_run, tmp_path / "run")) / "stuck").mkdir()
    for rank in range(2):
        (tmp_path / "run" / "stuck" / f"rank-{rank}.txt").write_text("at rest\n  a stack\n")
    words = ("--resume", "run", "--iterations", "1000000", "--budget", "300s", "--watchdog", "3s")
    with started(2, *OVERLAP, *words, cwd=tmp_path) as job:
        run = Running(job, tmp_path)
        job.until(lambda: len(read_run(run.directory)["launches"]) == 2, "the second launch")
        run.measure_on()
        os.kill(run.pid(1), signal.SIGSTOP)
        finished = run.end()
    assert "rank 1: no sign of life" in finished.err, finished
    assert "at rest" not in finished.err, finished


def test_a_hang_before_the_first_visit(tmp_path):
    """While calibrating there is no cell yet, and no table."""
    (tmp_path / "cue").touch()
    env = {"FAULT_RANKS": "1", "FAULT_WHEN": str(tmp_path / "cue")}
    words = (*OVERLAP, *ENDLESS, "--kernel", "tests.cli.faults:HangsInPython", "--thread-level", "multiple")
    finished = mpirun(3, *words, "--watchdog", "3s", "--output", "run", cwd=tmp_path, env=env, timeout=SECONDS)
    check_status(finished, 5)
    assert "calibrating 300us" in finished.err, finished
    assert re.search(r"^  rank 1: at calibrating 300us.*faults.py", finished.err, re.MULTILINE), finished


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_while_all_are_inside_mpi(number, tmp_path):
    with running(tmp_path, "HangsInMpi", faulty=(1,)) as run:
        run.break_down(1)
        run.job.signal(number)
        finished = run.end()
    check_status(finished, 128 + number)
    # Open MPI hands SIGTERM on for SIGINT too, and often ends before the ranks' last words arrive.
    name = "SIG(TERM|INT)" if is_open_mpi() else number.name
    assert re.fullmatch(f"ended by {name}", ended(run.directory))
    if not is_open_mpi():
        check_told(finished, f"rank 0: ended by {number.name}; what was measured is in run")
    check_valid(run.directory)
    check_resumable(tmp_path)


@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGINT), (2, signal.SIGTERM)])
def test_a_signal_to_one_rank(rank, number, tmp_path):
    with running(tmp_path, "Steady") as run:
        os.kill(run.pid(rank), number)
        finished = run.end()
    check_status(finished, 128 + number)
    assert f"rank {rank}: ended by {number.name}" in finished.err
    assert ended(run.directory) == f"ended by {number.name}"
    check_valid(run.directory)


def test_a_signal_while_starting(tmp_path):
    """Before anything is measured there is nothing to keep, but the job must end all the same."""
    with started(3, *OVERLAP, *ENDLESS, "--output", "run", "--thread-level", "multiple", cwd=tmp_path) as job:
        job.until((tmp_path / "run").exists, "the run's directory")
        job.signal(signal.SIGTERM)
        finished = job.wait(SECONDS)
        assert job.all_gone(), finished
    assert finished.status != 0, finished


def test_a_job_that_was_suspended_goes_on_and_still_listens(tmp_path):
    """As batch systems do it: SIGSTOP to all, later SIGCONT. A signal after that ends the job."""
    with running(tmp_path, "Steady") as run:
        ranks = [run.pid(rank) for rank in range(3)]
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2.5)  # longer than the guard waits at a time
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)
        run.measure_on()
        assert "Traceback" not in run.job.so_far().err, run.job.so_far()
        os.kill(ranks[1], signal.SIGTERM)
        finished = run.end()
    assert finished.status != 0, finished
    assert ended(run.directory) == "ended by SIGTERM"


def test_a_kill_does_not_make_wrong_data_right(tmp_path):
    """A visit with wrong elements is on disk, the pass is not over: the samples look like any others."""
    words = ("--sizes", "4:4K", "--compute", "300us", "--iterations", "1000000", "--budget", "300s")
    words += ("--kernel", "tests.cli.faults:Miscomputes", "--thread-level", "multiple", "--output", "run")
    with started(2, *OVERLAP, *words, cwd=tmp_path) as job:
        run = Running(job, tmp_path)
        job.until(lambda: run.committed() > 0, "the first visit")
        for rank in range(2):
            os.kill(run.pid(rank), signal.SIGKILL)
        run.end()
    explained = python(*OVERLAP, "--resume", "run", "--explain", "4-300us-none", cwd=tmp_path)
    assert explained.status == 0, explained
    assert "wrong-data" in explained.out, explained


@pytest.fixture(scope="module")
def tiny_disk() -> list[str]:
    """A command prefix in which a small file system can be mounted that nobody else sees."""
    if not shutil.which("unshare") or not shutil.which("mount"):
        pytest.skip("no unshare or mount (util-linux)")
    for prefix in (["unshare", "-m"], ["unshare", "-rm"]):
        tried = subprocess.run([*prefix, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
        if tried.returncode == 0:
            return prefix
    pytest.skip(f"no tmpfs can be mounted: {tried.stderr.strip()}")


@pytest.mark.parametrize("size", ["48k", "240k"], ids=["at once", "later"])
def test_a_full_disk(size, tiny_disk, tmp_path):
    """The file system is gone with the job: what it held is copied out first, also when it held no whole run."""
    (tmp_path / "disk").mkdir()
    words = (*OVERLAP, *ENDLESS, "--kernel", "tests.cli.faults:Steady", "--thread-level", "multiple")
    script = f'mount -t tmpfs -o size={size} none disk || exit 99; "$@"; status=$?; cp -a disk/run run; exit $status'
    command = [*tiny_disk, "sh", "-c", script, "sh", mpirun_path(), "-n", "3", sys.executable]
    with Job([*command, *words, "--output", "disk/run"], tmp_path) as job:
        finished = job.wait()
        assert job.all_gone(), finished
    check_status(finished, 6)
    assert finished.status != 99, finished
    blamed = [line for line in finished.said if re.search(r"disk/run/\S+: ", line)]
    assert len(blamed) == 1, finished
    assert re.search(r"No space left on device|the disk is full", blamed[0]), finished
    assert "whole" in blamed[0], finished
    assert "Traceback" not in finished.err, finished
    assert not list((tmp_path / "run").glob(".*")), finished
    if size != "48k":  # which does not even hold the first visit
        assert visits(tmp_path / "run")
    check_resumable(tmp_path)


@pytest.fixture
def copied(short_run, tmp_path) -> Path:
    return Path(shutil.copytree(short_run, tmp_path / "run"))


@pytest.mark.parametrize("line", [-1, -10], ids=["in the last line", "in an earlier line"])
def test_a_torn_end_is_dropped_and_said(copied, line):
    samples = copied / "samples.csv"
    before = visits(copied)
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join(lines[:line]) + lines[line][:9])
    finished = mpirun(2, *OVERLAP, "--resume", "run", "--iterations", "24", cwd=copied.parent)
    assert finished.status == 0, finished
    check_told(finished, r"samples\.csv: dropped 1 torn line\(s\) and 1 incomplete visit\(s\)")
    check_valid(copied)
    assert visits(copied) == before  # the one that was dropped was measured anew
    assert read(copied, "overlap.csv")["iterations"].eq(24).all()
    every = read(copied, "rank_samples.csv")
    assert not every.duplicated(["cell", "visit", "iteration", "phase", "progress", "rank"]).any()


def test_a_visit_cut_at_the_end_of_a_line_is_dropped_and_said(copied):
    samples = copied / "samples.csv"
    before = visits(copied)
    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:-3]))
    finished = mpirun(2, *OVERLAP, "--resume", "run", "--iterations", "24", cwd=copied.parent)
    assert finished.status == 0, finished
    check_told(finished, r"samples\.csv: dropped 0 torn line\(s\) and 1 incomplete visit\(s\)")
    check_valid(copied)
    assert visits(copied) == before


def test_a_torn_end_is_said_even_if_quiet(copied):
    samples = copied / "samples.csv"
    samples.write_bytes(samples.read_bytes()[:-5])
    finished = mpirun(2, *OVERLAP, "--resume", "run", "--iterations", "24", "--quiet", cwd=copied.parent)
    assert finished.status == 0, finished
    check_told(finished, r"samples\.csv: dropped 1 torn line\(s\)")


def test_rows_of_ranks_without_their_samples_are_dropped(copied):
    """ranks.csv is written first: a job that died in between left rows that belong to no visit."""
    ranks = copied / "ranks.csv"
    with ranks.open("a") as file:
        file.write("".join(f"0,2,{rank},here,compute,,12,1000,\n" for rank in (0, 1)))
    finished = mpirun(2, *OVERLAP, "--resume", "run", "--iterations", "36", cwd=copied.parent)
    assert finished.status == 0, finished
    check_valid(copied)
    table = read(copied, "ranks.csv").fillna({"progress": ""})
    assert not table.duplicated(["cell", "visit", "rank", "phase", "progress"]).any()


def test_a_finished_run_resumed_stays_as_it_is(copied):
    before = {name: (copied / name).read_bytes() for name in ("samples.csv", "ranks.csv", "overlap.csv")}
    finished = mpirun(2, *OVERLAP, "--resume", "run", cwd=copied.parent)
    assert finished.status == 0, finished
    for name, content in before.items():
        assert (copied / name).read_bytes() == content, name
    assert [launch["ended"] for launch in read_run(copied)["launches"]] == ["finished", "finished"]


@pytest.mark.parametrize("flag", ["--in-place", "--no-check"])
def test_a_switch_that_differs_is_refused(copied, flag):
    check_not_resumed(copied, 2, flag)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sizes", "4,2K"], ["--sizes 4,2K", "4,1K"]),
        (["--compute", "1ms"], ["--compute 1ms", "200us"]),
        (["--kernel", "gemm"], ["--kernel gemm", "delay"]),
        (["--dtype", "float64"], ["--dtype float64", "float32"]),
        (["--output", "elsewhere"], ["--output"]),
    ],
)
def test_options_that_differ_are_refused(copied, words, told):
    check_not_resumed(copied, 2, *words, told=told)


def test_options_that_mean_the_same_are_not_refused(copied):
    finished = mpirun(
        2, *OVERLAP, "--resume", "run", "--sizes", "1024,4", "--seed", "00", "--color", "never", cwd=copied.parent
    )
    assert finished.status == 0, finished


def test_another_number_of_ranks_is_refused(copied):
    check_not_resumed(copied, 3, told=["2 ranks", "mpirun -n 2"])


def test_a_newer_schema_is_refused(copied):
    run = read_run(copied)
    (copied / "run.json").write_text(json.dumps({**run, "schema": 99}))
    check_not_resumed(copied, 2, told=["schema 99", "update mpibench"])
    explained = python(*OVERLAP, "--resume", "run", "--explain", "4-200us-none", cwd=copied.parent)
    assert explained.status == 2, explained
    assert "schema 99" in explained.err


@pytest.mark.parametrize(
    ("name", "content"),
    [("run.json", "{"), ("run.json", "[]"), ("samples.csv", "a,b\n1,2\n"), ("run.json", None), ("samples.csv", None)],
)
def test_what_is_no_run_is_refused(copied, name, content):
    (copied / name).unlink() if content is None else (copied / name).write_text(content)
    check_not_resumed(copied, 2, told=["run"])


def check_not_resumed(directory: Path, ranks: int, *words: str, told: list[str] | None = None) -> None:
    """Refused in one line, and nothing in the directory is touched."""
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    finished = mpirun(ranks, *OVERLAP, "--resume", directory.name, *words, cwd=directory.parent)
    assert finished.status == 2, finished
    assert len(finished.said) == 1, finished
    for word in told or words:
        assert word in finished.said[0], finished
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert not (directory.parent / "elsewhere").exists()
