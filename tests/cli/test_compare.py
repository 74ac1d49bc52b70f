"""python -m mpibench.compare on run directories written by hand, with times whose comparison is known."""

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.cli.launch import Finished, mpirun, python
from tests.unit.handwritten import case, write_run

COMPARE = ("-m", "mpibench.compare")
SPREAD = (0.99, 0.995, 1.0, 1.005, 1.01)  # of five launches: a standard deviation of 0.8 %


def side(place: Path, name: str, factor: float = 1.0, count: int = 5, **values: Any) -> list[Path]:
    """Launches of one configuration, `factor` times slower than what is fixed, save C."""
    return [
        write_run(
            place / f"{name}-{number}",
            *(
                case(size, progress, factor * SPREAD[number], **{"compute_s": 1e-3 * SPREAD[-1 - number], **values})
                for size in ("64K", "1M") for progress in ("none", "poll")
            ),
        )
        for number in range(count)
    ]  # fmt: skip


def compare(place: Path, base: list[Path], new: list[Path], *flags: str) -> Finished:
    return python(*COMPARE, *map(str, base), "--to", *map(str, new), *flags, cwd=place)


def rows(file: Path) -> dict[tuple[str, str], dict[str, str]]:
    """The rows of the CSV file by case and figure."""
    with file.open(newline="") as stream:
        return {(row["case"], row["figure"]): row for row in csv.DictReader(stream)}


def answers(file: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for (_, figure), row in rows(file).items():
        found.setdefault(figure, set()).add(row["answer"])
    return found


# The answers and the exit status


@pytest.mark.parametrize(
    ("factor", "word", "status"), [(1.1, "slower", 1), (1 / 1.1, "faster", 0), (1.001, "same", 0)]
)  # fmt: skip
def test_slower_faster_and_the_same(tmp_path: Path, factor: float, word: str, status: int) -> None:
    base, new = side(tmp_path, "base"), side(tmp_path, "new", factor)
    finished = compare(tmp_path, base, new, "--csv", "out.csv")
    assert finished.status == status, finished
    assert answers(tmp_path / "out.csv") == {"B": {word}, "N": {word}, "C": {"same"}, "T": {word}}
    assert len(rows(tmp_path / "out.csv")) == 2 * 3 + 4, "B, N and C once for both strategies"
    assert "5 launches; NEW: 5 launches" in finished.out
    assert f"10 rows compared, tolerance 0.03: {'2 same' if word != 'same' else '10 same'}" in finished.out.replace(
        f"8 {word}, ", ""
    )


def test_a_row_has_the_figures_of_welchs_test(tmp_path: Path) -> None:
    base, new = side(tmp_path, "base"), side(tmp_path, "new", 1.1)
    compare(tmp_path, base, new, "--csv", "out.csv")
    row = rows(tmp_path / "out.csv")["64K-1ms-poll", "T"]
    logs = np.log(SPREAD), np.log(SPREAD) + np.log(1.1)
    test = stats.ttest_ind(logs[1], logs[0], equal_var=False)
    assert float(row["p"]) == pytest.approx(test.pvalue, rel=1e-6)
    assert float(row["ratio"]) == pytest.approx(1.1)
    ends = np.exp(test.confidence_interval(0.95))
    assert (float(row["ratio_lo"]), float(row["ratio_hi"])) == pytest.approx(tuple(ends))
    assert float(row["base_s"]) == pytest.approx(1.05e-3 * stats.gmean(SPREAD))
    assert (row["base_launches"], row["base_overlap"], row["new_speedup"]) == ("5", "0.5", "1.05")


def test_one_launch_a_side_cannot_tell_unless_the_spread_is_known(tmp_path: Path) -> None:
    base, new = side(tmp_path, "base", count=1), side(tmp_path, "new", 1.2, count=1)
    alone = compare(tmp_path, base, new)
    assert alone.status == 4, alone
    assert "spread not known" in alone.out
    assert "measure 5 a side (launch/repeat 5), or give --launch-sd" in " ".join(alone.out.split())
    assert compare(tmp_path, base, new, "--launch-sd", "1%").status == 1
    assert compare(tmp_path, [*base, *side(tmp_path, "more")], new).status == 1


def test_cannot_tell_says_how_many_launches_it_would_take(tmp_path: Path) -> None:
    base, new = side(tmp_path, "base", count=2), side(tmp_path, "new", 1.028, count=2, compute_s=1.028e-3)
    finished = compare(tmp_path, base, new, "--csv", "out.csv")
    assert finished.status == 4, finished
    told = rows(tmp_path / "out.csv")
    assert {row["answer"] for row in told.values()} == {"cannot tell"}
    most = max(int(row["launches_needed"]) for row in told.values())
    assert f"{most} launches a side would tell all 10 rows" in " ".join(finished.out.split())


# What is not compared


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"ranks": 4}, "ranks is 4 in case 64K-1ms-none, 2 in"),
        ({"thread_level": "multiple"}, "thread_level is multiple"),
        ({"dtype": "float64"}, "dtype is float64"),
        ({"kernel": "gemm"}, "kernel is gemm"),
        ({"collective": "persistent"}, "collective is persistent"),
        ({"in_place": "true"}, "in_place is true"),
        ({"device": "cuda"}, "device is cuda"),
        ({"buffers": "staged"}, "buffers is staged"),
        ({"poll_interval_s": 2e-5}, "poll_interval_s is 2e-05"),
    ],
)
def test_what_is_not_comparable_is_refused_in_one_line_unless_allowed(
    tmp_path: Path, values: dict[str, Any], word: str
) -> None:
    base, new = side(tmp_path, "base", count=2), side(tmp_path, "new", count=2, **values)
    refused = compare(tmp_path, base, new)
    (line,) = refused.err.splitlines()
    assert (refused.status, refused.out) == (2, "")
    assert line.startswith(f"mpibench: {new[0] / 'overlap.csv'}: {word}")
    assert str(base[0] / "overlap.csv") in line
    column = word.split()[0]
    allowed = compare(tmp_path, base, new, "--allow", column)
    assert allowed.status != 2, allowed
    assert f"compared although it differs: {column} " in allowed.out


def test_a_setting_that_is_no_column_counts_too(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", case())
    new = write_run(tmp_path / "new", case(), settings={"kernel_dtype": "float64"})
    refused = compare(tmp_path, [base], [new])
    assert refused.status == 2
    assert "run.json: kernel_dtype is float64, float32 in" in refused.err


def test_other_steps_are_other_work(tmp_path: Path) -> None:
    base, new = side(tmp_path, "base"), side(tmp_path, "new", compute_steps=200)
    refused = compare(tmp_path, base, new)
    assert refused.status == 2
    assert f"--steps-from {base[0]}" in refused.err
    finished = compare(tmp_path, base, new, "--allow", "compute_steps", "--csv", "out.csv")
    told = rows(tmp_path / "out.csv")
    assert finished.status == 0, finished  # a step takes half the time
    assert told["64K-1ms", "C"]["per_step"] == "true"
    assert float(told["64K-1ms", "C"]["ratio"]) == pytest.approx(0.5)
    assert told["64K-1ms", "C"]["answer"] == "faster"
    assert (told["64K-1ms", "B"]["answer"], told["64K-1ms-none", "T"]["answer"]) == ("same", "")
    assert "T is of other work" in told["64K-1ms-none", "T"]["note"]


def test_wrong_data_is_a_finding_and_a_skipped_row_is_told(tmp_path: Path) -> None:
    blank: dict[str, Any] = dict.fromkeys(("allreduce_s", "nonblocking_s", "compute_s", "overlapped_s"), "")
    base = write_run(tmp_path / "base", case(), case("1M"))
    wrong = write_run(tmp_path / "wrong", case(**blank, verdict="wrong-data", note="3 wrong elements"), case("1M"))
    skipped = write_run(tmp_path / "skipped", case(**blank, verdict="skipped", note="no memory"), case("1M"))
    found = compare(tmp_path, [base], [wrong], "--launch-sd", "1%")
    assert found.status == 1, found
    assert "NEW has wrong data" in found.out
    passed = compare(tmp_path, [base], [skipped], "--launch-sd", "1%")
    assert passed.status == 0, passed
    assert "not measured in NEW: skipped (no memory)" in passed.out


def test_cases_of_one_side_are_named_and_none_in_common_is_refused(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", case("64K"), case("1M"))
    new = write_run(tmp_path / "new", case("1M"), case("2M"))
    finished = compare(tmp_path, [base], [new])
    assert "only in BASE, not compared: 64K-1ms-none" in finished.out
    assert "only in NEW, not compared: 2M-1ms-none" in finished.out
    refined = case("1M", progress="poll", refined="true")
    left_out = compare(tmp_path, [write_run(tmp_path / "a", case("1M"), refined)],
                       [write_run(tmp_path / "b", case("1M"), refined)])  # fmt: skip
    assert "poll" not in left_out.out, "a refined row is no case that was asked for"
    refused = compare(tmp_path, [base], [write_run(tmp_path / "other", case("4K"))])
    assert (refused.status, "no case in common" in refused.err) == (2, True), refused


# The launches


def test_a_launch_counts_once(tmp_path: Path) -> None:
    base, new = write_run(tmp_path / "base", case()), write_run(tmp_path / "new", case())
    twice = compare(tmp_path, [base, base / ".." / "base"], [new])
    assert (twice.status, "named twice" in twice.err) == (2, True), twice
    shutil.copytree(base, tmp_path / "copy")
    copied = compare(tmp_path, [base], [tmp_path / "copy"])
    assert (copied.status, f"the same launch as {base}" in copied.err) == (2, True), copied


def test_a_resumed_run_counts_as_one_launch_and_one_that_was_ended_is_told(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", case(), launches=3)
    new = write_run(tmp_path / "new", case(), ended="SIGTERM")
    finished = compare(tmp_path, [base], [new], "--launch-sd", "1%")
    assert finished.status == 0, finished
    assert f"{base} was resumed: measured in 3 launches, it counts as one" in finished.err
    assert f"{new}: SIGTERM; what it has measured counts" in finished.err
    assert "BASE: 1 launch;" in finished.out


def test_what_differs_around_is_told(tmp_path: Path) -> None:
    base = [write_run(tmp_path / f"base{n}", case(), environment={"SLURM_JOB_ID": str(n)}) for n in (0, 1)]
    set_ = {"MPICH_ASYNC_PROGRESS": "1"}
    new = [write_run(tmp_path / f"new{n}", case(), environment=set_, versions={"mpi": f"MPICH {n}"}) for n in (4, 5)]
    finished = compare(tmp_path, base, new)
    assert "they differ in MPICH_ASYNC_PROGRESS: unset / 1 (BASE / NEW)" in finished.out
    assert "launches of one side differ in version of mpi: MPICH 5 / MPICH 4 | MPICH 5" in finished.err
    assert "SLURM" not in finished.out + finished.err


def test_a_rank_that_waited_for_a_core_is_told(tmp_path: Path) -> None:
    base, new = side(tmp_path, "base", count=2), side(tmp_path, "new", count=2, cpu_wait_s=1e-4)
    assert "waited for a core in 2 of 2 launches of NEW" in " ".join(compare(tmp_path, base, new).out.split())


# The command line


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("a", "b"), "NEW: no run directory is named"),
        (("--to", "b"), "BASE: no run directory is named"),
        (("a", "--to", "b", "--to", "c"), "--to: it is there twice"),
        (("a", "--too", "b"), "--too: unknown flag, did you mean --to?"),
        (("a", "--to", "b", "--tolerance", "3"), "--tolerance '3': it lies between 0 % and 100 %"),
        (("a", "--to", "b", "--launch-sd", "0"), "--launch-sd '0': it lies between"),
        (("a", "--to", "b", "--allow", "rank"), "--allow 'rank': rank: did you mean ranks?"),
        (("a", "--to", "b", "--csv", "nowhere/x.csv"), "--csv nowhere/x.csv: nowhere is no directory"),
        (("a", "--to", "b"), "a: no run there (run.json: No such file or directory)"),
        (("good", "--to=b"), "--to b: no run there"),
        (("good", "--to", "twice"), "twice/overlap.csv: case 64K-1ms-none is there twice"),
        (("good", "--to", "text"), "text/overlap.csv: overlapped_s 'fast' in case 64K-1ms-none: it is a number"),
        (("good", "--to", "links"), "--to links: a run of links; name runs of mpibench.overlap"),
        (("good", "--to", "newer"), "--to newer: written by a newer mpibench (schema 99"),
        (("good", "--to", "empty"), "empty/overlap.csv: it has no column case"),
        (("good", "--to", "table"), "table/overlap.csv: No such file or directory"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(tmp_path: Path, argv: tuple[str, ...], said: str) -> None:
    write_run(tmp_path / "good", case())
    write_run(tmp_path / "twice", case(), case())
    write_run(tmp_path / "text", case(overlapped_s="fast"))
    write_run(tmp_path / "links", case(), benchmark="links")
    write_run(tmp_path / "newer", case(), schema=99)
    (write_run(tmp_path / "empty") / "overlap.csv").write_text("")
    (write_run(tmp_path / "table") / "overlap.csv").unlink()
    refused = python(*COMPARE, *argv, cwd=tmp_path)
    assert (refused.status, refused.out) == (2, ""), refused
    (line,) = refused.err.splitlines()
    assert line.startswith(f"mpibench: {said}"), line


def test_flags_may_stand_anywhere(tmp_path: Path) -> None:
    for name in ("base", "new", "new2"):
        write_run(tmp_path / name, case())
    finished = python(*COMPARE, "--tolerance", "5%", "base", "--to", "new", "--launch-sd", "1%", "new2", cwd=tmp_path)
    assert finished.status == 0, finished
    assert "BASE: 1 launch; NEW: 2 launches" in finished.out
    assert "tolerance 0.05" in finished.out


def test_it_needs_neither_mpi_nor_rich_and_its_help_not_even_numpy(tmp_path: Path) -> None:
    write_run(tmp_path / "base", case())
    write_run(tmp_path / "new", case())
    without = "import sys; sys.modules.update(dict.fromkeys(('mpi4py', 'rich', 'scipy', {more}))); "
    call = "from mpibench.compare import main; sys.exit(main({argv}))"
    argv = ["base", "--to", "new", "--launch-sd", "1%"]
    compared = python("-c", without.format(more="") + call.format(argv=argv), cwd=tmp_path)
    assert compared.status == 0, compared
    shown = python("-c", without.format(more="'numpy'") + call.format(argv=["--help"]), cwd=tmp_path)
    assert shown.status == 0, shown
    assert "--tolerance SHARE" in shown.out


def test_it_is_listed() -> None:
    assert "compare    Is NEW slower than BASE?" in python("-m", "mpibench", cwd=Path()).out


def test_under_a_launcher_it_speaks_once(tmp_path: Path) -> None:
    write_run(tmp_path / "base", case())
    refused = mpirun(2, *COMPARE, "base", "--to", "nowhere", cwd=tmp_path)
    assert [line for line in refused.said if line.startswith("mpibench")] == [
        "mpibench: --to nowhere: no run there (run.json: No such file or directory); name a run's directory"
    ]
