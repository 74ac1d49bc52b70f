"""The certificate run for real, at small scale: the same checks, the same code, on whatever machine this is.

Bounds are wider than the certificate's, and rows in which a rank waited for a core count as what mpibench calls them:
all must hold while another process keeps a core busy.
"""

import csv
import json
import os
import shutil
import sys
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest

from mpibench.errors import FINDING
from mpibench.selftest import certificate
from mpibench.selftest.checks import CHECKS, Check
from mpibench.selftest.job import compile_library
from mpibench.selftest.readings import (
    Outcome,
    cover_error,
    efficiency_error,
    joint_overlap,
    overlap,
    overlap_and_start,
    share_of_verdicts,
    share_safe,
)
from mpibench.selftest.thorough import comparison
from mpibench.selftest.wire import Wire
from tests.cli.launch import ROOT, Finished, Job, environment, mpirun_path, python

SEARCHED = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
CALLS = Path(__file__).with_name("wire_calls.py")
KNOWN = {check.name: check for check in CHECKS}
K64 = 64 << 10

pytestmark = [
    pytest.mark.skipif(not shutil.which("mpicc", path=SEARCHED), reason="no mpicc beside Python or on PATH"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the interposer's ranks need two cores"),
]


@pytest.fixture(scope="module")
def interposer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wire") / "interposer.so"
    compile_library("interposer.c", target)
    return target


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of the certificate inherit this process's environment: without traces of a launcher, as root."""
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


def launch(check: Check, interposer: Path, folder: Path) -> Outcome:
    return certificate.run_check(check, [mpirun_path(), "-n", "2"], interposer, folder)


def calls(interposer: Path, cwd: Path, *args: str, ranks: int = 2, **wire: str) -> Finished:
    settings = {"LATENCY_S": "0.02", "BANDWIDTH_BPS": "1e12", **wire}
    told = [f"MPIBENCH_WIRE_{name}={value}" for name, value in settings.items()]
    command = [mpirun_path(), "-n", str(ranks), "env", f"LD_PRELOAD={interposer}", *told, sys.executable, str(CALLS)]
    with Job([*command, *args], cwd) as job:
        return job.wait()


@pytest.mark.parametrize(("ranks", "progress", "moves"), [(2, "1", "1"), (3, "1", "1"), (2, "0.5", "1"), (2, "1", "0")])
def test_every_way_to_complete_a_transfer(
    interposer: Path, tmp_path: Path, ranks: int, progress: str, moves: str
) -> None:
    done = calls(
        interposer, tmp_path, *(["nothing"] if moves == "0" else []), ranks=ranks, PROGRESS=progress, MOVES=moves
    )
    assert (done.status, done.out.strip()) == (0, "OK"), done


def test_an_unknown_way_is_refused_loudly(interposer: Path, tmp_path: Path) -> None:
    done = calls(interposer, tmp_path, "refuse")
    assert done.status != 0
    assert "interposer.c: MPI_Request_get_status of a transfer on the wire: not known here" in done.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROGRESS", "2"),
        ("PROGRESS", "Start"),
        ("LATENCY_S", "50us"),
        ("BANDWIDTH_BPS", ""),
        ("MOVES", "0.5"),
        ("FAULTY", "2"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_loudly(
    interposer: Path, tmp_path: Path, name: str, value: str
) -> None:
    done = calls(interposer, tmp_path, **{name: value})
    assert done.status != 0
    assert f"interposer.c: MPIBENCH_WIRE_{name}={value}: it is a " in done.err


@pytest.mark.parametrize("busy", [False, True])
def test_a_card_that_moves_on_alone(interposer: Path, tmp_path: Path, busy: bool) -> None:
    check = replace(KNOWN["ideal-nic"], busy=busy, options=KNOWN["ideal-nic"].options.replace("25", "12"))
    outcome = launch(check, interposer, tmp_path)
    (safe,) = share_safe(K64, 0.85)(outcome)
    poll = [row for row in outcome.rows if row["progress"] == "poll" and int(row["nbytes"]) >= K64]
    assert all(row["verdict"] == "unresolved" or float(row["overlap"]) >= 0.85 for row in poll), safe
    for found in cover_error(outcome):
        assert found.value != found.value or abs(found.value) < 0.1


@pytest.mark.parametrize("busy", [False, True])
def test_without_progress_nothing_is_hidden(interposer: Path, tmp_path: Path, busy: bool) -> None:
    check = replace(KNOWN["no-progress"], busy=busy, options=KNOWN["no-progress"].options.replace("40", "12"))
    outcome = launch(check, interposer, tmp_path)
    assert share_of_verdicts(0, "hidden", "partly-hidden", busy=True)(outcome)[0].value == 0
    assert all(reading.lo < 0.15 for reading in overlap(16 << 10)(outcome))


def test_what_starts_after_the_compute_overlaps_nothing(interposer: Path, tmp_path: Path) -> None:
    for reading in joint_overlap(launch(KNOWN["z"], interposer, tmp_path)):
        assert reading.lo < 0.1
        assert reading.hi > -0.1


def test_where_no_data_move_all_is_hidden_but_the_start(interposer: Path, tmp_path: Path) -> None:
    check = replace(KNOWN["no-data"], options=KNOWN["no-data"].options.replace("25", "12"))
    for reading in overlap_and_start(K64)(launch(check, interposer, tmp_path)):
        assert reading.lo < 1.1
        assert reading.hi > 0.85


def test_under_a_kernel_that_keeps_the_host_busy_nothing_is_hidden(interposer: Path, tmp_path: Path) -> None:
    check = replace(KNOWN["no-progress-gemm"], options=KNOWN["no-progress-gemm"].options.replace("60", "24"))
    outcome = launch(check, interposer, tmp_path)
    assert share_of_verdicts(0, "hidden", "partly-hidden", busy=True)(outcome)[0].value == 0
    assert all(reading.lo < 0.15 for reading in overlap(K64)(outcome))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_share_at_which_a_transfer_advances_is_read(interposer: Path, tmp_path: Path, share: float) -> None:
    for reading in efficiency_error("none")(launch(KNOWN[f"share-{share:g}"], interposer, tmp_path)):
        if not isnan(reading.value):  # no interval to fit, where ranks wait for a core
            assert reading.lo < 0.15
            assert reading.hi > -0.15


def test_a_start_that_blocks_is_named(interposer: Path, tmp_path: Path) -> None:
    outcome = launch(KNOWN["blocking-start"], interposer, tmp_path)
    assert {row["verdict"] for row in outcome.rows} <= {"blocking-start", "unresolved"}


@pytest.mark.parametrize("name", ["late-rank", "flipped-bit", "hang"])
def test_faults_are_found(interposer: Path, tmp_path: Path, name: str) -> None:
    for line in certificate.perform(KNOWN[name], lambda check: launch(check, interposer, tmp_path)):
        if name == "late-rank":  # a rank that loses its core may be late as well
            assert line.result == "skipped" or line.value >= 0.5, line
        else:
            assert line.result == "passed", line


def test_a_slower_network_is_never_called_the_same(interposer: Path, tmp_path: Path) -> None:
    """Four times slower: B and N are slower, or on a machine too busy to say so it cannot be told."""
    (slower,), (faster,) = comparison(4.0, "slower", lambda check: launch(check, interposer, tmp_path))
    rows = [row for row in csv.DictReader((tmp_path / "slower.csv").read_text().splitlines()) if row["figure"] in "BN"]
    assert {row["answer"] for row in rows} <= {"slower", "cannot tell"}
    assert len(rows) == 4
    assert slower.value >= sum(row["answer"] == "slower" for row in rows)
    assert faster.value == 0, faster


def test_persistent_all_reduces_go_over_the_wire(interposer: Path, tmp_path: Path) -> None:
    options = "--kernel delay --compute 5ms --sizes 64K --collective persistent --iterations 12 --budget 10s"
    outcome = launch(Check("persistent", "", Wire(progress=0.0), options, ()), interposer, tmp_path)
    if not outcome.rows:
        pytest.skip("this MPI library has no MPI_Allreduce_init")
    assert all(reading.lo < 0.15 for reading in overlap(0)(outcome))


def test_the_command_writes_its_files(tmp_path: Path) -> None:
    csv_file, json_file, output = tmp_path / "c.csv", tmp_path / "c.json", tmp_path / "made"
    files = ("--csv", str(csv_file), "--json", str(json_file), "--output", str(output))
    done = python("-m", "mpibench.selftest", "--checks", "flipped-bit,machine", *files, cwd=ROOT)
    assert done.status == 0, done
    rows = list(csv.DictReader(csv_file.read_text().splitlines()))
    assert [(row["check"], row["result"]) for row in rows] == [("flipped-bit", "passed")] + [("machine", "told")] * 3
    told = json.loads(json_file.read_text())
    assert told["passed"] is True
    assert told["lines"][0]["value"] == 1
    assert (output / "certificate.csv").read_text() == csv_file.read_text()
    assert (output / "runs" / "flipped-bit" / "samples.csv").exists()
    assert "flipped-bit" in done.out
    again = python("-m", "mpibench.selftest", "--output", str(output), cwd=ROOT)
    assert (again.status, len(again.said)) == (2, 1), again


def launcher(tmp_path: Path, edit: str) -> str:
    """A launcher that edits the words `env NAME=VALUE... python ...` before it starts two ranks of it."""
    script = tmp_path / "launcher.py"
    script.write_text(f"import os, sys\nwords = [{edit} for w in sys.argv[1:]]\n"
                      f"os.execv({mpirun_path()!r}, ['mpirun', '-n', '2', *words])\n")  # fmt: skip
    return f"{sys.executable} {script}"


def test_a_check_that_fails_is_a_finding(tmp_path: Path) -> None:
    honest = launcher(tmp_path, "w.replace('FLIP_EVERY=20', 'FLIP_EVERY=0')")
    done = python("-m", "mpibench.selftest", "--checks", "flipped-bit", "--launcher", honest, cwd=ROOT)
    assert done.status == FINDING, done
    assert "failed (exit status 0, not 1" in done.out


def test_a_launcher_that_drops_the_interposer_is_refused(tmp_path: Path) -> None:
    forgetful = launcher(tmp_path, "w.replace('LD_PRELOAD', 'NOT_LOADED')")
    done = python("-m", "mpibench.selftest", "--checks", "ideal-nic", "--launcher", forgetful, cwd=ROOT)
    assert done.status == 3, done
    assert "the ranks ran without the interposer" in done.err


def test_one_rank_is_refused(tmp_path: Path) -> None:
    done = python("-m", "mpibench.selftest", "--checks", "hang", "--launcher", f"{mpirun_path()} -n 1", cwd=ROOT)
    assert done.status == 3, done
    assert "one rank has nobody to communicate with" in done.err
