"""Whole runs: what is on the screen and in the files, and that the figures follow from the samples."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.launch import CORES, OVERLAP, Finished, mpirun, python, shell
from tests.cli.runs import check_figures, check_valid, columns, read, read_run, visits

ITEM_NBYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8}
ODD_SIZES = (0, 1, 3, 1024, 100000)
COMMON = ("--iterations", "12", "--budget", "40s")


@dataclass(frozen=True)
class Variant:
    """A small complete run."""

    ranks: int
    flags: str  # besides COMMON and --output
    sizes: tuple[int, ...] = ODD_SIZES
    computes: tuple[str, ...] = ("200us", "400us")
    progress: tuple[str, ...] = ("none", "poll")
    dtype: str = "float32"
    kernel: str = "gemm"
    collective: str = "iallreduce"
    in_place: bool = False

    def command(self) -> list[str]:
        words = [*OVERLAP, "--sizes", ",".join(map(str, self.sizes)), "--compute", ",".join(self.computes)]
        words += ["--progress", ",".join(self.progress), "--dtype", self.dtype, "--kernel", self.kernel]
        words += ["--collective", self.collective, *(["--in-place"] if self.in_place else []), *COMMON]
        return [*words, *shlex.split(self.flags)]


VARIANTS = {
    "plain": Variant(2, ""),
    "delay": Variant(3, "--seed 5", progress=("none", "poll", "thread"), kernel="delay", dtype="float64",
                     computes=("300us",), in_place=True),
    "triad": Variant(5, "--samples all", (0, 3, 1024), ("200us",), kernel="triad", dtype="int32",
                     collective="persistent"),
    "unchecked": Variant(7, "--no-check --quiet", (1, 4096), ("200us",), ("poll",), kernel="delay", dtype="int64"),
    "eight": Variant(8, "--explain 1K-200us-poll", (3, 1024), ("200us",), in_place=True, collective="persistent"),
}  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """A variant, and what it left."""

    variant: Variant
    finished: Finished
    cwd: Path

    @property
    def directory(self) -> Path:
        return self.cwd / "run"

    @property
    def cases(self) -> list[str]:
        names = {size: {1024: "1K", 4096: "4K"}.get(size, str(size)) for size in self.variant.sizes}
        return [
            f"{names[size]}-{compute}-{progress}"
            for compute in self.variant.computes
            for size in self.variant.sizes
            for progress in self.variant.progress
        ]


@pytest.fixture(scope="module", params=list(VARIANTS))
def ran(request, tmp_path_factory) -> Ran:
    cwd = tmp_path_factory.mktemp(request.param)
    variant = VARIANTS[request.param]
    finished = mpirun(variant.ranks, *variant.command(), "--output", "run", cwd=cwd)
    assert finished.status == 0, finished
    return Ran(variant, finished, cwd)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Ran:
    """A short run with the default output directory, in a place whose name a shell would split."""
    cwd = tmp_path_factory.mktemp("it's a place")
    variant = Variant(2, "--thread-level multiple", (4, 1024), ("200us",), kernel="delay")
    finished = mpirun(2, *variant.command(), cwd=cwd)
    assert finished.status == 0, finished
    return Ran(variant, finished, cwd)


def test_files_are_whole_and_nothing_else_is_there(ran):
    check_valid(ran.directory)
    expected = {"samples.csv", "ranks.csv", "overlap.csv", "crossover.csv", "exposure.csv", "run.json"}
    expected |= {"rank_samples.csv"} if "--samples all" in ran.variant.flags else set()
    assert {path.name for path in ran.directory.iterdir()} == expected
    assert [path.name for path in ran.cwd.iterdir()] == ["run"]


def test_a_row_for_every_case(ran):
    table = read(ran.directory, "overlap.csv")
    variant = ran.variant
    assert list(table["case"]) == ran.cases
    assert set(table["status"]) <= {"converged", "not-converged", "unstable", "unresolved"}, table[["case", "note"]]
    item = ITEM_NBYTES[variant.dtype]
    for row, case in zip(table.itertuples(), ran.cases, strict=True):
        asked = {"1K": 1024, "4K": 4096}.get(case.split("-")[0]) or int(case.split("-")[0])
        assert row.count == -(-asked // item)
        assert row.nbytes == row.count * item
        rounded = asked % item != 0
        assert (f"{asked} B asked, {row.nbytes} B sent" in row.note) == rounded
        assert row.progress == case.split("-")[-1]
        assert row.iterations == 12
    assert set(table["kernel"]) == {variant.kernel}
    assert set(table["collective"]) == {variant.collective}
    assert set(table["dtype"]) == {variant.dtype}
    assert set(table["in_place"]) == {variant.in_place}
    assert set(table["ranks"]) == {variant.ranks}
    assert set(table["oversubscribed"]) == {variant.ranks > CORES}
    if "--no-check" in variant.flags:
        assert table["wrong"].isna().all(), "nothing was compared"
        assert table["note"].str.contains("results not checked").all()
    else:
        assert set(table["wrong"]) == {0}
    assert (table["compute_steps"] > 0).all()
    for name in ("allreduce_hot_s", "nonblocking_hot_s", "allreduce_s", "overlapped_s", "busbw_Bps"):
        assert table[name].notna().all(), name
    for note in table["note"]:
        assert ("emulated" in note) == (variant.kernel == "delay")
        assert ("more ranks than cores" in note) == (variant.ranks > CORES)


def test_figures_follow_from_the_samples(ran):
    check_figures(ran.directory, device_driven=ran.variant.kernel == "delay")


def test_hot_loops_are_measured_once_for_each_size(ran):
    samples = read(ran.directory, "samples.csv")
    hot = samples[samples["phase"].str.endswith("-hot")]
    counts = {-(-size // ITEM_NBYTES[ran.variant.dtype]) for size in ran.variant.sizes}
    assert hot["cell"].nunique() == len(counts)
    assert hot.groupby("cell")["phase"].nunique().eq(2).all()
    assert hot["position"].isna().all()
    table = read(ran.directory, "overlap.csv")
    medians = hot.groupby(["cell", "phase"])["span_ns"].median() * 1e-9
    for row in table.itertuples():
        cell = next(other.cell for other in table.itertuples() if other.count == row.count)  # the first of this size
        assert row.allreduce_hot_s == pytest.approx(medians[cell, "allreduce-hot"], rel=1e-6)
        assert row.nonblocking_hot_s == pytest.approx(medians[cell, "nonblocking-hot"], rel=1e-6)


def test_every_iteration_runs_every_phase_in_its_own_place(ran):
    samples = read(ran.directory, "samples.csv").fillna({"progress": ""})
    timed = samples[~samples["phase"].str.endswith("-hot")]
    phases = 4 + len(ran.variant.progress)
    for _, iteration in timed.groupby(["cell", "visit", "iteration"]):
        assert list(iteration["position"]) == list(range(phases))
        assert not iteration.duplicated(["phase", "progress"]).any()
    assert (samples["span_ns"] >= 0).all()
    assert (samples["skew_ns"] >= 0).all()
    assert samples["slowest_rank"].between(0, ran.variant.ranks - 1).all()


def test_ranks_have_a_row_each(ran):
    ranks = read(ran.directory, "ranks.csv")
    assert set(ranks["rank"]) == set(range(ran.variant.ranks))
    assert ranks.groupby(["cell", "visit", "phase", ranks["progress"].fillna("")]).size().eq(ran.variant.ranks).all()
    assert (ranks["median_ns"] >= 0).all()


def test_samples_of_every_rank_where_asked_for(ran):
    if "--samples all" not in ran.variant.flags:
        assert not (ran.directory / "rank_samples.csv").exists()
        return
    every = read(ran.directory, "rank_samples.csv").fillna({"progress": ""})
    keys = ["cell", "visit", "iteration", "phase", "progress"]
    samples = read(ran.directory, "samples.csv").fillna({"progress": ""}).set_index(keys)["span_ns"]
    groups = every.groupby(keys)
    assert groups.size().eq(ran.variant.ranks).all()
    spans = groups["end_ns"].max() - groups["begin_ns"].max()
    assert (spans.sort_index() == samples.sort_index()).all()


def test_run_json_says_how_it_was(ran):
    run = read_run(ran.directory)
    assert run["benchmark"] == "overlap"
    for package in ("mpibench", "python", "mpi", "mpi4py", "numpy"):
        assert run["versions"][package]
    assert len(run["launches"]) == 1
    launch = run["launches"][0]
    assert launch["ended"] == "finished"
    assert "mpibench.overlap" in launch["command"]
    assert launch["start"] <= launch["end"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", launch["end"])
    assert run["settings"]["dtype"] == ran.variant.dtype
    assert run["settings"]["iterations"] == "12"
    assert set(run["calibration"]) == set(ran.variant.computes)
    assert [host["rank"] for host in run["hosts"]] == list(range(ran.variant.ranks))
    codes = {warning["code"] for warning in run["warnings"]}
    assert ("oversubscribed" in codes) == (ran.variant.ranks > CORES)
    assert ("emulated" in codes) == (ran.variant.kernel == "delay")
    assert run["facts"]["thread_level"] in ("single", "funneled", "serialized", "multiple")
    assert run["clock"]["common"] is True


def test_progress_on_stderr_and_results_on_stdout(ran):
    said = ran.finished.said
    assert all(line.startswith("mpibench: ") for line in said), ran.finished
    assert len(set(said)) == len(said), "a line was told twice"
    warnings = [line for line in said if line.startswith("mpibench: warning: ")]
    assert bool(warnings) >= (ran.variant.ranks > CORES)
    if "--quiet" in ran.variant.flags:
        assert said == warnings
    else:
        assert any(line.startswith("mpibench: pass 1: ") for line in said)
    assert "mpibench: pass" not in ran.finished.out


def test_the_table_names_every_case_in_full(ran):
    check_screen(ran.finished, ran.directory)


def check_screen(finished: Finished, directory: Path) -> None:
    """Each case's row has its size at the beginning, its strategy, and its verdict at the end, nothing cut off."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", finished.out).splitlines()
    for row in read(directory, "overlap.csv").itertuples():
        size, _, progress = row.case.split("-")
        doubt = r" \(unstable\)" if row.status == "unstable" else ""
        pattern = re.compile(rf" *{size} +{progress} .* {row.verdict}{doubt} *")
        assert any(pattern.fullmatch(line) for line in lines), f"{row.case} {row.verdict}\n{finished.out}"


def test_a_narrow_terminal_shows_what_matters(tmp_path):
    words = ("--sizes", "3,100000", "--compute", "200us", "--kernel", "delay", "--iterations", "6")
    finished = mpirun(
        2, *OVERLAP, *words, "--thread-level", "multiple", "--output", "run", cwd=tmp_path, env={"COLUMNS": "80"}
    )
    assert finished.status == 0, finished
    check_screen(finished, tmp_path / "run")


def test_the_same_picture_after_the_run_and_from_its_samples(ran):
    if "--explain" not in ran.variant.flags:
        assert "T: s start" not in ran.finished.out
        return
    case = ran.variant.flags.split()[-1]
    before = (ran.directory / "run.json").read_bytes()
    alone = python(*OVERLAP, "--resume", "run", "--explain", case, cwd=ran.cwd)
    assert alone.status == 0, alone
    assert alone.err == ""
    assert alone.out.startswith(f"{case}: persistent of 1.00 KiB on 8 ranks")
    for symbol in "CNST":
        assert re.search(rf"^  {symbol} .*\|.*\| ", alone.out, re.MULTILINE)
    assert alone.out in ran.finished.out
    assert (ran.directory / "run.json").read_bytes() == before


def test_output_goes_below_results_by_default(plain):
    assert [path.name for path in plain.cwd.iterdir()] == ["results"]
    (directory,) = (plain.cwd / "results").iterdir()
    assert re.fullmatch(r"overlap-\d{8}T\d{6}Z-.+-n2", directory.name)
    check_valid(directory)


def closing(finished: Finished, start: str) -> str:
    """The last line of stdout that begins so."""
    return [line.strip() for line in finished.out.splitlines() if line.strip().startswith(start)][-1]


def test_the_closing_lines_name_files_that_exist(plain):
    words = closing(plain.finished, "files: ").removeprefix("files: ").split(", ")
    directory = (plain.cwd / words[0]).parent
    assert {(plain.cwd / words[0]).name, *words[1:]} == {path.name for path in directory.iterdir()}


def test_the_line_to_explain_a_case_works_as_printed(plain):
    line = closing(plain.finished, "python -m mpibench.overlap --resume")
    finished = shell(line, plain.cwd)
    assert finished.status == 0, finished
    assert finished.err == ""
    assert finished.out.startswith(line.split()[-1])


def test_a_line_to_go_on_does_go_on(plain):
    """Twelve iterations were asked for and are done: there is nothing to go on with, or the line says how."""
    if "--resume" not in "".join(line for line in plain.finished.out.splitlines() if "mpirun" in line):
        return
    (directory,) = (plain.cwd / "results").iterdir()
    before = visits(directory)
    finished = shell(closing(plain.finished, "mpirun"), plain.cwd)
    assert finished.status == 0, finished
    assert visits(directory) > before, "the line that was printed to go on measures nothing"


def test_the_line_to_go_on_works_as_printed(tmp_path):
    """A run whose budget was spent; more of it, and nothing of it lost."""
    words = ("--sizes", "4,1K", "--compute", "300us", "--kernel", "delay", "--thread-level", "multiple")
    first = mpirun(
        2, *OVERLAP, *words, "--budget", "6s", "--iterations", "100000", "--output", "it's here", cwd=tmp_path
    )
    assert first.status == 0, first
    directory = tmp_path / "it's here"
    before, done = (directory / "samples.csv").read_bytes(), visits(directory)
    assert set(read(directory, "overlap.csv")["status"]) <= {"not-converged", "unstable"}
    line = closing(first, "mpirun -n 2 python -m mpibench.overlap --resume")
    again = shell(line, tmp_path)
    assert again.status == 0, again
    assert (directory / "samples.csv").read_bytes().startswith(before)
    assert visits(directory) > done
    run = check_valid(directory)
    assert [launch["ended"] for launch in run["launches"]] == ["finished", "finished"]


def test_the_poll_interval_is_tuned_shown_used_and_kept(tmp_path):
    words = ("--sizes", "4K,64K", "--compute", "200us,500us", "--kernel", "delay", "--thread-level", "multiple")
    words += ("--poll-interval", "tune", "--iterations", "12", "--output", "run")
    first = mpirun(2, *OVERLAP, *words, cwd=tmp_path)
    assert first.status == 0, first
    directory = tmp_path / "run"
    tuning = check_valid(directory)["tuning"]
    intervals = [point["interval_s"] for point in tuning["points"]]
    assert intervals == pytest.approx([500e-6, 250e-6, 125e-6, 62e-6, 31e-6, 16e-6, 8e-6])
    best = min(tuning["points"], key=lambda point: point["overlapped_s"])
    assert (tuning["compute"], tuning["interval_s"]) == ("500us", best["interval_s"])
    assert tuning["nbytes"] in (4 << 10, 64 << 10)
    tests = [point["tests"] for point in tuning["points"]]
    assert tests[0] <= 1, "the whole compute at once leaves no place for tests"
    assert max(tests) > 1
    assert set(read(directory, "overlap.csv")["poll_interval_s"]) == {tuning["interval_s"]}
    assert "poll interval, tuned at" in first.out
    assert sum("█" in line for line in first.out.splitlines()) == len(intervals)
    assert "least: taken" in first.out
    again = mpirun(2, *OVERLAP, "--resume", "run", "--iterations", "24", cwd=tmp_path)
    assert again.status == 0, again
    assert check_valid(directory)["tuning"] == tuning


def test_where_a_library_lacks_a_collective_the_row_says_so(tmp_path):
    """Persistent all-reduces are MPI-4: rows with figures, or rows with the reason."""
    finished = mpirun(
        2, *OVERLAP, "--sizes", "8", "--compute", "100us", "--collective", "persistent", "--kernel", "delay",
        "--iterations", "6", "--thread-level", "multiple", "--output", "run", cwd=tmp_path,
    )  # fmt: skip
    assert finished.status == 0, finished
    for row in read(tmp_path / "run", "overlap.csv").itertuples():
        assert (row.status == "skipped") == (row.verdict == "skipped") == ("MPI-4" in row.note)


def test_wrong_results_are_a_finding(tmp_path):
    finished = mpirun(
        2, *OVERLAP, "--sizes", "4,1K", "--compute", "200us", "--kernel", "tests.cli.faults:Miscomputes",
        "--iterations", "12", "--thread-level", "multiple", "--output", "run", cwd=tmp_path,
    )  # fmt: skip
    assert finished.status == 1, finished
    table = read(tmp_path / "run", "overlap.csv")
    assert set(table["verdict"]) == {"wrong-data"}
    assert set(table["status"]) == {"failed"}
    assert (table["wrong"] > 0).all()
    times = [name for name in columns("overlap.csv") if name.endswith("_s") and name != "poll_interval_s"]
    assert table[times].isna().all(axis=None)
    assert "wrong-data" in finished.out
    explained = python(*OVERLAP, "--resume", "run", "--explain", "1K-200us-none", cwd=tmp_path)
    assert explained.status == 0, explained
    assert "wrong-data" in explained.out


def test_dry_run_says_what_it_would_take_and_does_nothing(tmp_path):
    finished = mpirun(
        3, *OVERLAP, "--sizes", "1K:16K", "--compute", "1ms,2ms", "--dry-run", "--output", "run", cwd=tmp_path
    )
    assert finished.status == 0, finished
    assert finished.said == []
    assert "10 cells of 6 phases" in finished.out
    assert "memory: at most" in finished.out
    assert "3 rank(s) on this host" in finished.out
    assert list(tmp_path.iterdir()) == []


def test_options_from_a_file_and_flags_that_win(tmp_path):
    (tmp_path / "options.toml").write_text('sizes = "4,8"\ncompute = ["1ms", "2ms"]\niterations = 7\nin-place = true\n')
    finished = python(*OVERLAP, "--config", "options.toml", "--sizes", "16", "--dry-run", cwd=tmp_path)
    assert finished.status == 0, finished
    assert "2 cells of 6 phases" in finished.out
    assert ": 16\n" in finished.out


def test_times_do_not_follow_the_locale(tmp_path):
    finished = mpirun(
        2, *OVERLAP, "--sizes", "4", "--compute", "100us", "--kernel", "delay", "--iterations", "6",
        "--thread-level", "multiple", "--output", "run", cwd=tmp_path, env={"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE"},
    )  # fmt: skip
    assert finished.status == 0, finished
    check_figures(tmp_path / "run", device_driven=True)


def test_a_users_thread_counts_are_kept(tmp_path):
    finished = mpirun(
        2, *OVERLAP, "--sizes", "4", "--compute", "100us", "--iterations", "6", "--thread-level", "multiple",
        "--output", "run", cwd=tmp_path, env={"OMP_NUM_THREADS": "3"},
    )  # fmt: skip
    assert finished.status == 0, finished
    assert any("OMP_NUM_THREADS=3" in line for line in finished.said)
    assert set(read(tmp_path / "run", "overlap.csv")["blas_threads"]) == {3}
    assert read_run(tmp_path / "run")["environment"]["OMP_NUM_THREADS"] == "3"
