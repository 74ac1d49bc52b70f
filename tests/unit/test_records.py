"""The files of a run: written, read back, torn, and on a disk that takes no more."""

import csv
import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from mpibench.engine.history import History
from mpibench.errors import DiskFault, UsageError
from mpibench.records import SAMPLE_COLUMNS, SAMPLE_DTYPE, RunDirectory, read_run, read_samples

# As design.md has them.
COLUMNS = (
    "cell, visit, iteration, position, phase, progress, span_ns, skew_ns, slowest_rank, start_ns, during_ns, test_ns, "
    "tests, wait_ns, cpu_wait_ns, throttled"
)
NAMES = [("allreduce", ""), ("compute", ""), ("overlapped", "none"), ("overlapped", "poll")]
NAN = float("nan")


def visit(cell: int, number: int, iterations: int = 3, names: Any = NAMES) -> tuple[Any, list[tuple[Any, ...]]]:
    """A visit's samples and its rows of ranks.csv, of two ranks."""
    rows = [
        (cell, number, i, p, phase, progress, 1000 + i, -1, 1, -1 if p == 0 else 5, 6, 7, 8, 9, 0, -1)
        for i in range(iterations)
        for p, (phase, progress) in enumerate(names)
    ]
    ranks = [(cell, number, rank, "host", *name, iterations, 1001, -1) for name in names for rank in (0, 1)]
    return np.array(rows, dtype=SAMPLE_DTYPE), ranks


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run with visits of two cells."""
    made = RunDirectory.create(tmp_path / "deep" / "run")
    made.append_visit(*visit(0, 0))
    made.append_visit(*visit(1, 0, iterations=2))
    return made


def everything(directory: RunDirectory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.path.iterdir()}


def test_samples_come_back_as_they_were(directory: RunDirectory) -> None:
    samples, dropped = read_samples(directory.path)
    assert dropped == ""
    assert samples.tolist() == visit(0, 0)[0].tolist() + visit(1, 0, iterations=2)[0].tolist()
    frame = pandas.read_csv(directory.path / "samples.csv")
    assert ", ".join(SAMPLE_COLUMNS) == ", ".join(frame.columns) == COLUMNS
    assert frame["span_ns"].tolist() == samples["span_ns"].tolist()
    assert frame[["skew_ns", "throttled"]].isna().all(axis=None), "not measured is empty"


def test_a_strategy_of_the_users_own_may_have_a_long_name(directory: RunDirectory) -> None:
    name = "laboratory.experiments.progress.strategies:" + "VeryPatient" * 4
    assert len(name) > 64
    directory.append_visit(*visit(2, 0, names=[("overlapped", name)]))
    samples, dropped = read_samples(directory.path)
    assert dropped == ""
    assert set(samples[samples["cell"] == 2]["progress"]) == {name}


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_torn_last_line_is_dropped_with_its_visit_and_said(directory: RunDirectory, cut: int) -> None:
    path = directory.path / "samples.csv"
    path.write_bytes(path.read_bytes()[:-cut])
    samples, dropped = read_samples(directory.path)
    assert samples.tolist() == visit(0, 0)[0].tolist()
    assert str(path) in dropped
    assert "1 torn line(s) and 1 incomplete visit(s)" in dropped


def test_a_visit_cut_at_the_end_of_a_line_is_dropped_whole(directory: RunDirectory) -> None:
    path = directory.path / "samples.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    samples, dropped = read_samples(directory.path)
    assert samples.tolist() == visit(0, 0)[0].tolist()
    assert "0 torn line(s) and 1 incomplete visit(s)" in dropped


def test_without_ranks_csv_whole_lines_are_kept(directory: RunDirectory) -> None:
    (directory.path / "ranks.csv").unlink()
    assert len(read_samples(directory.path)[0]) == 5 * len(NAMES)
    path = directory.path / "samples.csv"
    path.write_bytes(path.read_bytes()[:-3])
    samples, dropped = read_samples(directory.path)
    assert len(samples) == 5 * len(NAMES) - 1
    assert "1 torn line(s)" in dropped


def test_what_is_dropped_can_be_measured_again(directory: RunDirectory) -> None:
    path = directory.path / "samples.csv"
    path.write_bytes(path.read_bytes()[:-5])
    directory.keep_only(read_samples(directory.path)[0])
    frame = pandas.read_csv(directory.path / "ranks.csv")
    assert set(frame["cell"]) == {0}
    directory.append_visit(*visit(1, 0, iterations=1))
    samples, dropped = read_samples(directory.path)
    assert (dropped, len(samples)) == ("", 4 * len(NAMES))


@pytest.mark.parametrize("cut", [0, 7, 130])
def test_a_run_that_ended_between_ranks_and_samples_can_go_on(directory: RunDirectory, cut: int) -> None:
    """ranks.csv is written first: it may hold a visit, whole or torn, whose samples never came."""
    before = (directory.path / "samples.csv").read_bytes()
    directory.append_visit(*visit(2, 0))
    (directory.path / "samples.csv").write_bytes(before)
    ranks = (directory.path / "ranks.csv").read_bytes()
    (directory.path / "ranks.csv").write_bytes(ranks[: len(ranks) - cut])
    samples, dropped = read_samples(directory.path)
    assert len(samples) == 5 * len(NAMES)
    if dropped:
        directory.keep_only(samples)
    directory.append_visit(*visit(2, 0, iterations=4))
    samples, dropped = read_samples(directory.path)
    assert (dropped, len(samples)) == ("", 9 * len(NAMES))


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
RANK_SAMPLE = (2, 0, 0, "compute", "", 0, 1, 2, 3, 4, 5, 6, 7, 8)


def fill_disk(monkeypatch: pytest.MonkeyPatch, path: Path, short: bool) -> None:
    """From here on nothing, or half of it, is written to `path`."""
    write, inode = os.write, path.stat().st_ino

    def full(descriptor: int, data: bytes) -> int:
        if os.fstat(descriptor).st_ino != inode:
            return write(descriptor, data)
        if not short:
            raise FULL
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full)


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("file", ["samples.csv", "ranks.csv", "rank_samples.csv", "local_samples.csv"])
def test_a_full_disk_leaves_the_file_as_it_was(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, short: bool, file: str
) -> None:
    directory.append_visit(*visit(2, 0), [RANK_SAMPLE], visit(2, 0)[0])
    before = everything(directory)
    fill_disk(monkeypatch, directory.path / file, short)
    with pytest.raises(DiskFault, match=f"{file}: .*(disk is full|No space left).*taken back") as fault:
        directory.append_visit(*visit(3, 0), [RANK_SAMPLE], visit(3, 0)[0])
    assert fault.value.status == 6
    assert everything(directory)[file] == before[file]
    assert read_samples(directory.path)[0].tolist()[-1] == visit(2, 0)[0].tolist()[-1]


def test_a_full_disk_takes_the_visit_back_whole(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.append_visit(*visit(2, 0), [RANK_SAMPLE])
    before = everything(directory)
    fill_disk(monkeypatch, directory.path / "samples.csv", short=True)
    with pytest.raises(DiskFault):
        directory.append_visit(*visit(3, 0), [RANK_SAMPLE])
    assert everything(directory) == before


def test_a_full_disk_leaves_tables_as_they_were(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.write_table("overlap.csv", ["a"], [{"a": 1}])
    before = everything(directory)

    def full(*_: Any, **__: Any) -> int:
        raise FULL

    monkeypatch.setattr(Path, "write_text", full)
    for write in (lambda: directory.write_table("overlap.csv", ["a"], [{"a": 2}]), lambda: directory.write_run({})):
        with pytest.raises(DiskFault, match="No space left on device; what was there before is whole"):
            write()
    assert everything(directory) == before


def test_a_full_disk_is_told_of_a_file_not_yet_begun(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> int:
        raise FULL

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(DiskFault, match="No space left"):
        directory.append_visit(*visit(2, 0), [RANK_SAMPLE])


def test_a_directory_with_something_in_it_is_refused(directory: RunDirectory, tmp_path: Path) -> None:
    before = everything(directory)
    with pytest.raises(UsageError, match=f"--output {directory.path}: there is something in it.*--resume"):
        RunDirectory.create(directory.path)
    assert everything(directory) == before
    (tmp_path / "empty").mkdir()
    RunDirectory.create(tmp_path / "empty")


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/nowhere/run"])
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=f"--output .*{place}: cannot be written: .*; name another place"):
        RunDirectory.create(tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


def test_run_json(directory: RunDirectory) -> None:
    directory.write_run({"settings": {"sizes": "1K"}, "hosts": ["a"]})
    run = read_run(directory.path)
    assert (run["settings"], run["hosts"], run["schema"]) == ({"sizes": "1K"}, ["a"], 1)
    (directory.path / "run.json").write_text(json.dumps({"schema": 0, "old": True}))
    assert read_run(directory.path)["old"], "an older schema is read"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": "new"}', '{"schema": null}', "\udcff"])
def test_a_broken_run_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=f"--resume {tmp_path}: run.json is not a run's record"):
        read_run(tmp_path)


def test_a_newer_schema_and_a_missing_run_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--resume {tmp_path}: no run there .*; name a run's directory"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text('{"schema": 99}')
    with pytest.raises(UsageError, match=r"newer mpibench \(schema 99, this one reads 1\); update mpibench"):
        read_run(tmp_path)


def test_samples_that_are_none_are_refused(tmp_path: Path) -> None:
    for text in ("", "a,b\n1,2\n"):
        (tmp_path / "samples.csv").write_text(text)
        with pytest.raises(UsageError, match="first line is not that of such a file"):
            read_samples(tmp_path)
    with pytest.raises(UsageError, match="No such file"):
        read_samples(tmp_path / "nowhere")


def test_tables_are_read_by_csv_and_pandas(directory: RunDirectory) -> None:
    note = 'a "quoted" word, a comma\nand a line; é'
    rows = [
        {"x": 0.1, "n": 3, "flag": True, "note": note},
        {"x": NAN, "n": None, "flag": False},
        {"x": -1.0, "n": -1, "flag": np.True_, "note": ""},
        {"x": 1.23456789e-12, "n": 10**12, "flag": False, "note": "plain", "unknown": 1},
    ]
    directory.write_table("table.csv", ["x", "n", "flag", "note"], rows)
    with open(directory.path / "table.csv", newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            ["x", "n", "flag", "note"],
            ["0.1", "3", "true", note],
            ["", "", "false", ""],
            ["-1", "", "true", ""],
            ["1.23456789e-12", "1000000000000", "false", "plain"],
        ]
    frame = pandas.read_csv(directory.path / "table.csv")
    assert frame["x"].tolist() == pytest.approx([0.1, NAN, -1.0, 1.23456789e-12], nan_ok=True)
    assert frame["flag"].tolist() == [True, False, True, False]
    assert frame["note"][0] == note
    assert {path.name for path in directory.path.iterdir()} == {"samples.csv", "ranks.csv", "table.csv"}, "no drafts"


def as_local(samples: Any) -> Any:
    """What slowest local durations could have been."""
    local = samples.copy()
    local["span_ns"] += 5
    return local


def test_local_durations_are_kept_and_read_back_beside_the_spans(directory: RunDirectory) -> None:
    samples, ranks = visit(2, 0)
    directory.append_visit(samples, ranks, (), as_local(samples))
    local, _ = read_samples(directory.path, "local_samples.csv")
    assert local.tolist() == as_local(samples).tolist()
    assert read_samples(directory.path)[0].tolist()[-1] == samples.tolist()[-1]


@pytest.mark.parametrize("file", ["samples.csv", "local_samples.csv"])
def test_a_visit_that_lacks_either_is_left_out(tmp_path: Path, file: str) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    for number in range(3):
        samples, ranks = visit(0, number)
        directory.append_visit(samples, ranks, (), as_local(samples))
    path = directory.path / file
    path.write_bytes(path.read_bytes()[:-20])
    assert f"{file}: dropped 1 torn line(s) and 1 incomplete visit(s)" in read_samples(directory.path, file)[1]
    history = History()
    history.add_all(*(read_samples(directory.path, name)[0] for name in ("samples.csv", "local_samples.csv")))
    assert history.visits(0) == 2
    directory.keep_only(history.all_samples())
    for name in ("samples.csv", "local_samples.csv"):
        kept, dropped = read_samples(directory.path, name)
        assert (sorted(set(kept["visit"].tolist())), dropped) == ([0, 1], "")
