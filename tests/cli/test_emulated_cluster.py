"""launch/emulated-cluster: the hosts are several, the wire has its rate, nothing is left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.launch import CORES, ROOT, Finished, Job, environment, is_open_mpi

CLUSTER = str(ROOT / "launch" / "emulated-cluster")
TOOLS = ("ip", "tc", "unshare", "nsenter", "taskset", "mount", "hostname")
SBIN = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
# Of a full Ethernet frame with its preamble and gap, what TCP (with time stamps) carries for the program.
PAYLOAD = 1448 / 1538
ONE_WAY = """
import sys
import numpy as np
from time import perf_counter
from mpi4py import MPI

world = MPI.COMM_WORLD
rates = []
for sender in (0, 1):
    sizes, medians = [1 << 18, 1 << 19, 1 << 20], []
    for nbytes in sizes:
        block, answer, times = np.zeros(nbytes, np.int8), np.zeros(1, np.int8), []
        for _ in range(9):
            world.Barrier()
            begin = perf_counter()
            if world.rank == sender:
                world.Send(block, 1 - sender)
                world.Recv(answer, 1 - sender)
            else:
                world.Recv(block, sender)
                world.Send(answer, sender)
            times.append(perf_counter() - begin)
        medians.append(np.median(times))
    rates.append(8 / np.polyfit(sizes, medians, 1)[0])
if world.rank == 0:
    print(*rates)
"""


@cache
def missing() -> str:
    """Why the cluster cannot run here, found out without it; empty if it can."""
    for tool in TOOLS:
        if not shutil.which(tool, path=SBIN):
            return f"no {tool} here"
    if is_open_mpi():
        return "only MPICH's mpirun starts ranks through an agent"
    line = "mount -t sysfs sysfs /sys && tc qdisc add dev lo root tbf rate 1mbit burst 10kb latency 50ms"
    for options in ([], ["-Ur"]):
        tried = subprocess.run(
            ["unshare", *options, "-nmpfu", "--mount-proc", "sh", "-c", line], env={**os.environ, "PATH": SBIN},
            capture_output=True, text=True,
        )  # fmt: skip
        if tried.returncode == 0:
            return ""
    return f"no namespaces with tbf here: {tried.stderr.strip()}"


@pytest.fixture
def possible() -> None:
    if missing():
        pytest.skip(missing())


def emulated(cwd: Path, *args: str, env: dict[str, str] | None = None) -> Finished:
    """`launch/emulated-cluster ARGS` to its end."""
    with Job([sys.executable, CLUSTER, *args], cwd, env) as job:
        return job.wait()


OVERLAP = ("--", sys.executable, "-m", "mpibench.overlap", "--kernel", "delay", "--progress", "none", "--output", "run")


@pytest.mark.usefixtures("possible")
def test_hosts_are_told_apart(tmp_path: Path) -> None:
    done = emulated(tmp_path, "--hosts", "3", *OVERLAP, "--sizes", "1K", "--iterations", "6")
    assert done.status == 0, done
    ranks = pd.read_csv(tmp_path / "run" / "ranks.csv")
    assert dict(zip(ranks["rank"], ranks["host"], strict=True)) == {0: "h1", 1: "h2", 2: "h3"}
    table = pd.read_csv(tmp_path / "run" / "overlap.csv")
    assert set(table["nodes"]) == {3}
    assert set(table["oversubscribed"]) == {CORES < 3}
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    cores = [core for host in run["hosts"] for core in host["cores"]]
    assert sorted(set(cores)) == sorted(os.sched_getaffinity(0))  # all are dealt out
    assert CORES < 3 or len(cores) == CORES  # and none twice, where there are enough


@pytest.mark.usefixtures("possible")
def test_ranks_of_a_host_are_neighbours(tmp_path: Path) -> None:
    program = "import os, socket; os.write(1, f'{socket.gethostname()} {os.environ[\"MPI_LOCALNRANKS\"]}\\n'.encode())"
    done = emulated(tmp_path, "--ranks-per-host", "2", "--", sys.executable, "-c", program)
    assert sorted(done.out.splitlines()) == ["h1 2", "h1 2", "h2 2", "h2 2"], done


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize(("rate", "mbit", "sizes"), [("200mbit", 200, "128K:1M"), ("1gbit", 1000, "512K:4M")])
def test_bandwidth_is_the_wires(tmp_path: Path, rate: str, mbit: int, sizes: str) -> None:
    """A line through the medians of B: in an all-reduce of two ranks n bytes go each way."""
    done = emulated(tmp_path, "--rate", rate, *OVERLAP, "--sizes", sizes, "--iterations", "20", "--budget", "none")
    assert done.status == 0, done
    table = pd.read_csv(tmp_path / "run" / "overlap.csv")
    measured_mbit = 8e-6 / np.polyfit(table["nbytes"], table["allreduce_s"], 1)[0]
    right = measured_mbit == pytest.approx(mbit * PAYLOAD, rel=0.05)
    samples = pd.read_csv(tmp_path / "run" / "samples.csv")
    blocking = samples[samples["phase"] == "allreduce"]
    waited = (blocking["cpu_wait_ns"] / blocking["span_ns"]).median()
    if not right and mbit == 1000 and waited > 0.02:
        pytest.skip(f"{measured_mbit:.0f} Mbit/s, but a rank waited for a core for {waited:.0%} of the time")
    assert right, f"{measured_mbit:.0f} Mbit/s\n{done}"


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize(("slow", "to_h2", "from_h2"), [("h2:in", 50, 200), ("h2:out", 200, 50), ("h2", 50, 50)])
def test_a_host_is_slow_as_told(tmp_path: Path, slow: str, to_h2: int, from_h2: int) -> None:
    done = emulated(
        tmp_path, "--rate", "200mbit", "--slow", f"{slow}=50mbit", "--", sys.executable, "-m", "mpi4py", "-c", ONE_WAY
    )
    assert done.status == 0, done
    rates = [float(word) / 1e6 for word in done.out.split()]
    assert rates == pytest.approx([to_h2 * PAYLOAD, from_h2 * PAYLOAD], rel=0.1)


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(tmp_path: Path, number: signal.Signals) -> None:
    """No process, no namespace, no temporary file; and mpibench has brought its tables up to date, if it could."""
    scratch, run = tmp_path / "scratch", tmp_path / "run"
    scratch.mkdir()
    command = [sys.executable, CLUSTER, "--hosts", "3", *OVERLAP, "--sizes", "1K:256K"]
    with Job(command, tmp_path, {"TMPDIR": str(scratch)}) as job:
        job.until(lambda: measured(run), "the first visit")
        networks = {network(pid) for pid in job.members()} - {network(os.getpid())}
        assert len(networks) == 4, networks  # three hosts and the switch
        job.signal(number)
        done = job.wait(30)
        assert job.all_gone(), job.members()
    assert done.status == (-number if number == signal.SIGKILL else 128 + number), done
    everyone = {network(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")}
    assert not networks & everyone
    assert list(scratch.iterdir()) == []
    assert number == signal.SIGKILL or (run / "overlap.csv").exists()


def measured(run: Path) -> bool:
    """Whether a visit is on disk."""
    samples = run / "samples.csv"
    return samples.exists() and samples.read_text().count("\n") > 1


def network(pid: int) -> str:
    """The network namespace of a process; the caller's if it has gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return os.readlink("/proc/self/ns/net")


@pytest.mark.usefixtures("possible")
def test_the_commands_exit_status_passes_through(tmp_path: Path) -> None:
    assert emulated(tmp_path, "--", "sh", "-c", "exit 7").status == 7
    refused = emulated(tmp_path, "--", sys.executable, "-m", "mpibench.overlap", "--sizes", "abc")
    assert refused.status == 2, refused
    assert len(refused.said) == 1, refused


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--hosts 1 -- true", ["--hosts", "'1'", "2 to 64"]),
        ("--rate 1gb -- true", ["--rate", "'1gb'", "1gbit"]),
        ("--rate 0gbit -- true", ["--rate", "'0gbit'", "8kbit"]),
        ("--ranks-per-host x -- true", ["--ranks-per-host", "'x'", "1 to 256"]),
        ("--slow h3=1mbit -- true", ["--slow", "h3", "h1 to h2"]),
        ("--slow h2:up=1mbit -- true", ["--slow", "'h2:up=1mbit'", "h2=500mbit"]),
        ("--slow h2=2gbit -- true", ["--slow", "2000000000", "--rate"]),
        ("--host 2 -- true", ["--host", "--help"]),
        ("true", ["--", "emulated-cluster -- true"]),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, args: str, words: list[str]) -> None:
    done = emulated(tmp_path, *args.split())
    assert done.status == 2, done
    (line,) = done.err.splitlines()
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("tool", "body", "words"),
    [
        ("unshare", None, ["no unshare on PATH", "util-linux"]),
        ("mpirun", None, ["no mpirun on PATH", "mpich"]),
        ("mpirun", "echo 'mpirun (Open MPI) 5.0.8'", ["not the mpirun of MPICH", "Open MPI"]),
        ("unshare", "echo unshare: Operation not permitted >&2; exit 1", ["not permitted", "user namespaces"]),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, tool: str, body: str | None, words: list[str]) -> None:
    """With nothing on PATH but stand-ins."""
    for name in (*TOOLS, "mpirun"):
        if content := body if name == tool else "echo HYDRA build details:":
            (tmp_path / name).write_text(f"#!/bin/sh\n{content}\n")
            (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [sys.executable, CLUSTER, "--", "true"], env={**environment(), "PATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3, done
    (line,) = done.stderr.splitlines()
    assert all(word in line for word in words), line


@pytest.mark.usefixtures("possible")
def test_a_kernel_without_token_buckets_is_named(tmp_path: Path) -> None:
    tc = tmp_path / "tc"
    tc.write_text('#!/bin/sh\necho "Error: Specified qdisc kind is unknown." >&2\nexit 2\n')
    tc.chmod(0o755)
    done = emulated(tmp_path, "--", "true", env={"PATH": f"{tmp_path}{os.pathsep}{environment()['PATH']}"})
    assert done.status == 3, done
    (line,) = done.err.splitlines()
    assert "tbf" in line
    assert "Specified qdisc kind is unknown" in line
