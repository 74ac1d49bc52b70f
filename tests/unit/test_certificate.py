"""The certificate: the wire's own answers, what is read from tables written by hand, judging, files. No MPI."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf, isnan, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpibench.errors import DONE, ENVIRONMENT, FINDING, INCONCLUSIVE, USAGE, DiskFault, EnvironmentRefused, UsageError
from mpibench.records import CROSSOVER_COLUMNS, EXPOSURE_COLUMNS, OVERLAP_COLUMNS, RANK_COLUMNS, SAMPLE_COLUMNS
from mpibench.selftest import __main__ as command
from mpibench.selftest import certificate, execution, job, lines, noise, readings
from mpibench.selftest.checks import CHECKS, Aim, Check
from mpibench.selftest.execution import Unexpected
from mpibench.selftest.lines import Line, fold, judge
from mpibench.selftest.readings import Outcome, Reading
from mpibench.selftest.thorough import THOROUGH
from mpibench.selftest.wire import START, Wire

K = 1 << 10


def write(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(columns), restval="")
        writer.writeheader()
        writer.writerows(rows)


def row(nbytes: int, progress: str, overlap: float, **values: Any) -> dict[str, Any]:
    limits = {"overlap_lo": overlap - 0.01, "overlap_hi": overlap + 0.01}
    return {"nbytes": nbytes, "progress": progress, "overlap": overlap, "allreduce_s": 1.0, **limits, **values}


def outcome(path: Path, *rows: Mapping[str, Any], wire: Wire | None = None, log: str = "") -> Outcome:
    write(path / "overlap.csv", OVERLAP_COLUMNS, rows)
    return Outcome(path, log, wire or Wire(), (5e-3,))


def test_the_true_cover_point_takes_as_long_as_the_compute() -> None:
    wire = Wire(latency_s=50e-6, bandwidth=50e6)
    assert wire.covered_nbytes(5e-3) == pytest.approx(247_500)
    assert wire.duration_s(wire.covered_nbytes(5e-3)) == pytest.approx(5e-3)


def test_the_wire_is_told_as_the_interposer_documents_it() -> None:
    source = Path(certificate.__file__).with_name("interposer.c").read_text()
    told = dict(setting.split("=") for setting in Wire(progress=START, moves=False).environment())
    for name in told:
        assert f"     {name}  " in source
    assert told["MPIBENCH_WIRE_PROGRESS"] == "start"
    assert told["MPIBENCH_WIRE_MOVES"] == "0"


def test_cover_error_is_relative_to_the_true_point(tmp_path: Path) -> None:
    cover = {"cover_nbytes": 247_500 * 1.02, "cover_lo": 247_500, "cover_hi": 247_500 * 1.04}
    write(tmp_path / "crossover.csv", CROSSOVER_COLUMNS, [{"progress": "poll", **cover}, {"progress": "none"}])
    found, missing = readings.cover_error(outcome(tmp_path))
    assert found.where == "poll"
    assert found[1:] == pytest.approx((0.02, 0.0, 0.04))
    assert isnan(missing.value)


def test_rows_that_waited_for_a_core_are_not_read_where_the_instrument_is_meant(tmp_path: Path) -> None:
    waited = {"note": "emulated accelerator; waited for a core", "verdict": "unresolved"}
    run = outcome(
        tmp_path,
        row(16 * K, "poll", 0.3),
        row(64 * K, "poll", 0.97, verdict="hidden"),
        row(64 * K, "none", 0.80, verdict="partly-hidden"),
        row(256 * K, "poll", 0.1, **waited),
    )
    assert readings.overlap(64 * K, "poll")(run) == [pytest.approx(("64K poll", 0.97, 0.96, 0.98))]
    assert [reading.where for reading in readings.overlap(64 * K)(run)] == ["64K poll", "64K none"]
    assert readings.share_of_verdicts(64 * K, "hidden")(run)[0].value == 0.5
    assert readings.share_of_verdicts(64 * K, "hidden", busy=True)(run)[0].value == pytest.approx(1 / 3)
    # unresolved is right where a core is busy; 0.80 is not
    (safe,) = readings.share_safe(64 * K, 0.9)(run)
    assert safe.value == pytest.approx(2 / 3)
    assert safe.where == "not 64K none: partly-hidden"


def test_an_overlap_without_an_interval_is_none(tmp_path: Path) -> None:
    assert readings.overlap(0)(outcome(tmp_path, row(64 * K, "poll", 0.3, overlap_lo="", overlap_hi=""))) == []


def test_efficiency_is_compared_with_the_share(tmp_path: Path) -> None:
    values = {"nbytes": 128 * K, "progress": "none", "efficiency": 0.52, "efficiency_lo": 0.49, "efficiency_hi": 0.55}
    write(tmp_path / "exposure.csv", EXPOSURE_COLUMNS, [values, values | {"progress": "poll"}])
    (reading,) = readings.efficiency_error("none")(outcome(tmp_path, wire=Wire(progress=0.5)))
    assert reading[1:] == pytest.approx((0.02, -0.01, 0.05))


def test_hidden_never_is_a_share_of_the_crossovers_that_lost_no_row(tmp_path: Path) -> None:
    status = {"none": "never", "poll": "found", "thread": "unresolved"}
    write(
        tmp_path / "crossover.csv",
        CROSSOVER_COLUMNS,
        [{"progress": name, "hidden_status": word} for name, word in status.items()],
    )
    rows = [row(4 * K, name, 0.5) for name in status]
    waited = row(8 * K, "thread", 0.5, note="waited for a core")
    assert readings.share_never_hidden(outcome(tmp_path, *rows, waited))[0].value == 0.5
    assert readings.share_never_hidden(outcome(tmp_path, *rows))[0].value == pytest.approx(1 / 3)
    unstable = row(8 * K, "thread", 0.0, status="unstable")
    assert readings.share_never_hidden(outcome(tmp_path, *rows, unstable))[0].value == 0.5
    found = row(8 * K, "poll", 0.0, status="unstable")  # something is hidden there: no excuse
    assert readings.share_never_hidden(outcome(tmp_path, *rows, found))[0].value == pytest.approx(1 / 3)


def test_the_late_rank_is_the_one_that_waits_least(tmp_path: Path) -> None:
    waits = {(0, 0): (400, 100), (0, 1): (400, 90), (1, 0): (90, 100), (1, 1): (300, 10)}
    ranks = [
        {"cell": cell, "visit": visit, "rank": rank, "phase": phase, "wait_ns": wait if phase == "nonblocking" else ""}
        for (cell, visit), pair in waits.items()
        for rank, wait in enumerate(pair)
        for phase in ("nonblocking", "allreduce")
    ]
    write(tmp_path / "ranks.csv", RANK_COLUMNS, ranks)
    told = [row(4 * K, "none", 0.5, cell=cell) for cell in (0, 1)]
    assert readings.share_waiting_least(1)(outcome(tmp_path, *told))[0].value == 0.75
    waited = told[1] | {"note": "waited for a core"}
    assert readings.share_waiting_least(1)(outcome(tmp_path, told[0], waited))[0].value == 1
    assert readings.share_waiting_least(1)(outcome(tmp_path, waited)) == []


def test_joint_intervals_are_wider_than_single_ones_and_from_the_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    samples = []
    for iteration in range(40):
        noise_ns = rng.integers(-500, 500, 3)
        spans = {"nonblocking": 100_000, "compute": 200_000, "overlapped": 300_000}
        for (phase, span), shift in zip(spans.items(), noise_ns, strict=True):
            progress = "none" if phase == "overlapped" else ""
            values = {"cell": 0, "visit": iteration // 10, "iteration": iteration % 10, "phase": phase}
            samples.append({**values, "progress": progress, "span_ns": span + shift})
    write(tmp_path / "samples.csv", SAMPLE_COLUMNS, samples)
    one = row(64 * K, "none", 0.0, cell=0)
    (single,) = readings.joint_overlap(outcome(tmp_path, one))
    several = readings.joint_overlap(outcome(tmp_path, *[one] * 5))
    assert single.lo < 0 < single.hi
    assert abs(single.value) < 0.01
    assert several[0].lo < single.lo < single.hi < several[0].hi


def test_the_worst_reading_decides() -> None:
    aim = Aim("overlap", -0.05, 0.05)
    good, bad = Reading("64K", 0.01, 0.0, 0.02), Reading("16K", -0.07, -0.2, 0.1)
    assert judge("x", aim, [good, bad]) == Line("x", "overlap", "16K", -0.07, -0.2, 0.1, "0 +- 0.05", "failed")
    assert judge("x", aim, [good]).result == "passed"
    assert judge("x", aim, []).result == "skipped"
    assert "waited for a core" in judge("x", aim, []).note
    lost = judge("x", aim, [good, Reading("8K", nan)])
    assert (lost.result, lost.where, lost.note) == ("failed", "8K", "there is none")


def test_an_interval_that_must_hold_0() -> None:
    aim = Aim("overlap", 0, 0, holds=True)
    assert judge("x", aim, [Reading("8", -0.5, -1.2, 0.01)]).result == "passed"
    below = judge("x", aim, [Reading("8", -0.5, -1.2, 0.01), Reading("64", -0.01, -0.02, -0.001)])
    assert (below.result, below.where, below.aim) == ("failed", "64", "interval holds 0")
    assert judge("x", aim, [Reading("8", 0.0)]).result == "failed"


@pytest.mark.parametrize(
    ("least", "most", "text"), [(1, 1, "= 1"), (-0.03, 0.03, "0 +- 0.03"), (0.95, inf, ">= 0.95"), (0.9, 1, "0.9 to 1")]
)
def test_aims_in_words(least: float, most: float, text: str) -> None:
    assert Aim("", least, most).text == text


def test_every_check_has_its_own_name_and_options_that_overlap_reads() -> None:
    from mpibench import overlap
    from mpibench.options import build_parser, read_flags, resolve

    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        resolve(overlap.Config, read_flags(build_parser(overlap.Config, overlap.MODULE, ""), check.flags))


def test_a_run_that_ends_otherwise_fails_all_its_aims() -> None:
    def launch(check: Check) -> Outcome:
        raise Unexpected("exit status 0, not 5: something")

    check = next(check for check in CHECKS if check.name == "ideal-nic")
    found = certificate.perform(check, launch)
    assert [(line.result, line.note) for line in found] == [("failed", "exit status 0, not 5: something")] * 2


def test_the_exit_status_of_a_run_is_judged_and_its_last_words_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = next(check for check in CHECKS if check.name == "flipped-bit")

    def end(status: int, said: str, wrote: bool) -> None:
        def run_ranks(command: list[str], timeout_s: float, output: int) -> int:
            os.write(output, said.encode())
            directory = Path(command[command.index("--output") + 1])
            directory.mkdir(exist_ok=True)
            if wrote:
                (directory / "run.json").write_text("{}")
            write(directory / "overlap.csv", OVERLAP_COLUMNS, [])
            return status

        monkeypatch.setattr(execution, "run_ranks", run_ranks)
        execution.run_check(check, ["mpirun"], tmp_path / "x.so", tmp_path)

    with pytest.raises(EnvironmentRefused, match=r"mpirun: it ended with 1: no slots$"):
        end(1, "no slots\n", wrote=False)
    with pytest.raises(Unexpected, match=r"^exit status 0, not 1: something$"):
        end(0, "mpibench: something\nnoise", wrote=True)
    end(FINDING, "", wrote=True)


def test_files_hold_every_line(tmp_path: Path) -> None:
    made = [
        Line("hang", "overlap", "64K", 0.5, 0.4, 0.6, "0 +- 0.1", "failed", "why"),
        Line("z", "x", result="skipped"),
    ]
    first, second = csv.DictReader(lines.as_csv(made).splitlines())
    assert list(first) == ["check", "figure", "where", "value", "lo", "hi", "aim", "result", "note"]
    assert (first["value"], first["note"], second["value"], second["result"]) == ("0.5", "why", "", "skipped")
    told = json.loads(lines.as_json(made, {"host": "here"}))
    assert (told["passed"], told["host"]) == (False, "here")
    assert told["lines"][0]["hi"] == 0.6
    assert told["lines"][1]["value"] is None
    command._write([("csv", tmp_path / "c.csv"), ("csv", tmp_path / "d.csv")], {"csv": "text", "json": "not asked for"})
    assert [(tmp_path / name).read_text() for name in ("c.csv", "d.csv")] == ["text"] * 2
    with pytest.raises(DiskFault, match="no-folder"):
        command._write([("csv", tmp_path / "no-folder" / "c.csv")], {"csv": "text"})


def test_the_table_says_what_is_known_of_each_check_and_counts() -> None:
    made = [
        Line("hang", "overlap", "64K", 0.5, 0.4, 0.6, "0 +- 0.1", "failed", "why"),
        Line("hang", "other, s", value=2.5e-6),
        Line("z", "x", result="skipped"),
    ]
    shown = lines.table(made, {"hang": "after 60 transfers", "z": "exactly 0"}).split("\n")
    assert shown[1] == "hang: after 60 transfers"
    assert shown[2].split() == ["overlap", "64K", "0.5", "[0.4,", "0.6]", "0", "+-", "0.1", "failed", "(why)"]
    assert shown[3].split() == ["other", "2.50", "us", "told"]
    assert shown[4] == "z: exactly 0"
    assert shown[-2] == "figures: 0 passed, 1 failed, 1 skipped"
    assert shown[-1].startswith("What was skipped is not certified")
    assert lines.table(made[:2], {"hang": ""}).endswith("figures: 0 passed, 1 failed, 0 skipped")


def test_runs_are_folded_into_how_many_passed() -> None:
    def made(value: float, result: str) -> Line:
        return Line("x", "overlap", value=value, lo=0.0, hi=0.0, aim="0 +- 0.1", result=result, note="")

    good, bad, none = made(0.05, "passed"), made(0.3, "failed"), Line("x", "overlap", result="skipped", note="busy")
    found = fold([good] * 19 + [bad])
    assert (found.result, found.value, found.lo, found.hi) == ("passed", 0.05, 0.05, 0.3)
    assert "passed in 19 of 20 runs" in found.note
    assert fold([good] * 18 + [bad] * 2).result == "failed"
    assert fold([good] * 9 + [bad]).result == "failed"
    most = fold([good, good, none])
    assert (most.result, "passed in 2 of 2 runs; " in most.note) == ("passed", True)
    assert "1 more could not be read" in most.note
    assert (fold([good, none, none]).result, fold([good, none, none]).note) == (
        "skipped", "2 of 3 runs could not be read",
    )  # fmt: skip
    lost = fold([good, Line("x", "overlap", aim="0 +- 0.1", result="failed", note="stuck")])
    assert (lost.result, lost.value) == ("failed", 0.05)
    assert fold([none, none]).result == "skipped"


def test_every_run_has_a_folder_and_what_is_only_told_is_told_once(tmp_path: Path) -> None:
    folders = []
    good = Line("x", "overlap", value=0.0, aim="= 0", result="passed")

    def task(folder: Path) -> list[Line]:
        folders.append(folder)
        return [good]

    assert certificate.repeat(task, tmp_path, 1) == [good]
    assert "of 3 runs" in certificate.repeat(task, tmp_path, 3)[0].note
    assert folders == [tmp_path, *(tmp_path / f"run-{n}" for n in (1, 2, 3))]
    told = [Line("machine", "x", value=1.0)]
    assert certificate.repeat(lambda folder: told, tmp_path, 3) == told


def test_what_cannot_be_read_is_tried_again_and_then_is_inconclusive(tmp_path: Path) -> None:
    good = Line("x", "overlap", value=0.0, aim="= 0", result="passed")
    none, folders = Line("x", "overlap", aim="= 0", result="skipped"), []
    found = iter([none, good])

    def task(folder: Path) -> list[Line]:
        folders.append(folder)
        return [next(found, none)]

    assert certificate.insist(task, tmp_path) == [good]
    assert folders == [tmp_path, tmp_path / "try-2"]
    assert certificate.insist(task, tmp_path / "other") == [none]
    assert folders[2:] == [tmp_path / "other", *(tmp_path / "other" / f"try-{n}" for n in (2, 3))]
    bad = replace(good, result="failed")
    assert [certificate.status(made) for made in ([good], [good, none], [bad, none])] == [DONE, INCONCLUSIVE, FINDING]
    passed = [json.loads(lines.as_json(made, {}))["passed"] for made in ([good], [good, none], [bad, none])]
    assert passed == [True, None, False]


def test_a_comparison_counts_the_rows_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = next(check for check in THOROUGH if check.name == "comparison-slower")
    launched, answers = [], {"B": "slower", "C": "same"}

    def launch(check: Check) -> Outcome:
        launched.append((check.name, check.wire.bandwidth))
        return Outcome(tmp_path / check.name, "", check.wire, ())

    def compare(command: list[str], **_: Any) -> Any:
        table = Path(command[command.index("--csv") + 1])
        rows = [{"case": "64K", "figure": name, "answer": answer} for name, answer in answers.items()]
        write(table, ("case", "figure", "answer"), rows)
        return SimpleNamespace(returncode=1, stderr="")

    monkeypatch.setattr(subprocess, "run", compare)
    slower, faster = check.perform(launch)
    assert (slower.value, slower.where, slower.result) == (1, "64K B", "passed")
    assert (faster.value, faster.result) == (0, "passed")
    sides = [name.removeprefix("comparison-slower-").split("-")[0] for name, _ in launched]
    assert sides == ["base", "new", "new", "base", "base", "new", "new", "base", "base", "new"]
    assert {round(bandwidth / 1e6, 1) for _, bandwidth in launched} == {50.0, 45.5}
    answers["B"] = "faster"
    assert [line.result for line in check.perform(launch)] == ["failed", "failed"]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stderr="mpibench: why\n"))
    (tmp_path / "comparison-slower.csv").unlink()
    assert [(line.result, line.where) for line in check.perform(launch)] == [("failed", "mpibench: why")] * 2


def test_a_thorough_check_whose_run_ends_otherwise_fails(tmp_path: Path) -> None:
    def launch(check: Check) -> Outcome:
        raise Unexpected("exit status 6, not 0: the disk is full")

    for check in THOROUGH:
        found = check.perform(launch)
        assert {(line.result, line.note) for line in found} == {("failed", "exit status 6, not 0: the disk is full")}


def test_a_refined_point_that_is_narrow_and_wrong_fails(tmp_path: Path) -> None:
    check = next(check for check in THOROUGH if check.name == "refinement")

    def launch(check: Check) -> Outcome:
        made = tmp_path / check.name
        made.mkdir()
        cover = {"progress": "poll", "cover_nbytes": 150_000, "cover_lo": 149_000, "cover_hi": 151_000}
        write(made / "crossover.csv", CROSSOVER_COLUMNS, [cover])
        return outcome(made)

    error, width, _ = check.perform(launch)
    assert (error.result, width.result) == ("failed", "passed")
    assert error.value == pytest.approx(150_000 / 247_500 - 1)


def test_interruptions_are_gaps_far_above_the_usual() -> None:
    gaps = np.array([100] * 990 + [0] * 5 + [90] + [10_100] * 4)
    found = noise.evaluate(gaps)
    assert found.resolution_s == pytest.approx(90e-9)
    assert found.read_s == pytest.approx(100e-9)
    assert found.longest_s == pytest.approx(10_100e-9)
    assert found.lost_share == pytest.approx(4 * 10_000 / gaps.sum())


def test_unknown_check_names_the_near_one() -> None:
    with pytest.raises(UsageError, match="--checks ideal: unknown check: did you mean ideal-nic"):
        certificate.choose(["ideal"])
    assert certificate.choose(["machine", "hang"]) == ["hang", "machine"]
    assert "refinement" not in certificate.choose([])
    assert certificate.choose(["refinement"]) == ["refinement"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--parity", "--csv", "x.csv"], "mpibench: --csv: of the certificate"),
        (["--checks", "nonsense"], "mpibench: --checks nonsense: unknown check"),
        (["--checks", "hang,,z"], "mpibench: --checks: "),
        (["--checks", ""], "mpibench: --checks: '': "),
        (["--runs", "0"], "mpibench: --runs: '0': a whole number of at least 1"),
        (["--runs", "3", "--parity"], "mpibench: --runs: of the certificate"),
        (["--csv", "x.csv", "--json", "x.csv"], "mpibench: --csv x.csv: named twice"),
        (["--csv", "/nowhere/x.csv"], "mpibench: --csv /nowhere/x.csv: there is no /nowhere"),
        (["--json", "/"], "mpibench: --json /: is a directory"),
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


def test_without_a_compiler_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(python.parent))
    monkeypatch.setattr(sys, "argv", ["selftest", "--launcher", str(python)])
    monkeypatch.setattr(execution, "run_ranks", lambda *_: pytest.fail("run"))
    assert command.main() == ENVIRONMENT
    said = capsys.readouterr()
    assert said.err.startswith("mpibench: no mpicc beside ")
    assert said.err.count("\n") == 1


def test_what_was_judged_is_shown_and_written_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.csv"
    monkeypatch.setattr(sys, "argv", ["selftest", "--csv", str(file), "--launcher", sys.executable])
    monkeypatch.setattr(job, "compile_library", lambda name, target: None)
    good = Line("z", "overlap", value=0.0, aim="= 0", result="passed")

    def measure(*args: Any, lines: list[Line], end: BaseException | None) -> None:
        lines.append(good)
        if end:
            raise end

    ends = {None: DONE, KeyboardInterrupt(): 130, EnvironmentRefused("gone"): ENVIRONMENT}
    for end, status in ends.items():
        monkeypatch.setattr(certificate, "measure", lambda *args, end=end: measure(lines=args[-1], end=end))
        assert command.main() == status
        assert "figures: 1 passed, 0 failed, 0 skipped" in capsys.readouterr().out
        assert file.read_text() == lines.as_csv([good])


def test_the_start_is_added_as_a_share_of_the_shorter(tmp_path: Path) -> None:
    times = {"start_s": 20e-6, "nonblocking_s": 1e-3, "compute_s": 5e-3}
    (reading,) = readings.overlap_and_start(0)(outcome(tmp_path, row(64 * K, "none", 0.98, **times)))
    assert reading[1:] == pytest.approx((1.0, 0.99, 1.01))
