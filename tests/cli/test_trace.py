"""--trace on whole runs: the file is a trace, of every case and rank, and agrees with the samples."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.launch import OVERLAP, mpirun
from tests.cli.runs import check_valid, read
from tests.unit.trace_format import check_trace, ns

CASES = ["1K-300us-none", "1K-300us-poll", "256K-300us-none", "256K-300us-poll"]
FLAGS = ("--sizes", "1K,256K", "--compute", "300us", "--kernel", "delay", "--budget", "40s", "--samples", "all")


@pytest.fixture(scope="module")
def cwd(tmp_path_factory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("trace")
    finished = mpirun(3, *OVERLAP, *FLAGS, "--iterations", "12", "--trace", "--output", "run", cwd=made)
    assert finished.status == 0, finished
    assert "trace.json" in finished.out
    return made


def slices(directory: Path) -> dict[tuple[int, int], list[dict[str, Any]]]:
    return check_trace(json.loads((directory / "trace.json").read_text()))


def test_every_case_of_every_rank_is_in_it(cwd):
    check_valid(cwd / "run")
    found = slices(cwd / "run")
    assert sorted(tid for _, tid in found) == [0, 1, 2]
    for own in found.values():
        assert [event["name"] for event in own if event["cat"] == "case"] == CASES


def test_it_is_the_last_visits_iteration_whose_t_is_nearest_its_median_on_one_clock(cwd):
    found = slices(cwd / "run")
    samples, ranks = (read(cwd / "run", name).fillna({"progress": ""}) for name in ("samples.csv", "rank_samples.csv"))
    cells = read(cwd / "run", "overlap.csv").set_index("case")["cell"]
    for case in CASES:
        progress = case.rpartition("-")[2]
        about = next(event["args"] for event in found[0, 0] if event["name"] == case)
        mine = samples[(samples["cell"] == cells[case]) & (samples["progress"] == progress)]
        assert about["visit"] == mine["visit"].max()
        mine = mine[mine["visit"] == about["visit"]].set_index("iteration")["span_ns"]
        distance = np.abs(mine - mine.median())
        assert distance[about["iteration"]] == distance.min()
        at = (ranks["cell"] == cells[case]) & (ranks["visit"] == about["visit"])
        own = ranks[at & (ranks["iteration"] == about["iteration"]) & ~ranks["phase"].str.endswith("-hot")]
        own = own[own["progress"].isin(["", progress])]
        zero = own["begin_ns"].min()
        events = [event for thread in found.values() for event in thread if event["args"]["case"] == case]
        base = min(ns(event["ts"]) for event in events)
        names = {f"{row.phase} {row.progress}".strip() for row in own.itertuples()}
        drawn = {(event["name"], event["tid"], ns(event["ts"]) - base, ns(event["dur"])) for event in events
                 if event["name"] == event["cat"] or event["name"] in names}  # fmt: skip
        for row in own.itertuples():
            name = f"{row.phase} {row.progress}".strip()
            assert (name, row.rank, row.begin_ns - zero, row.end_ns - row.begin_ns) in drawn


def test_a_resumed_run_renews_what_it_measures_again(cwd):
    resumed = mpirun(3, *OVERLAP, "--resume", "run", "--iterations", "24", cwd=cwd)
    assert resumed.status == 0, resumed
    for own in slices(cwd / "run").values():
        cases = {event["name"]: event["args"] for event in own if event["cat"] == "case"}
        assert list(cases) == CASES
        last = read(cwd / "run", "samples.csv").groupby("cell")["visit"].max()
        cells = read(cwd / "run", "overlap.csv").set_index("case")["cell"]
        assert all(cases[case]["visit"] == last[cells[case]] for case in CASES)


def test_a_run_with_nothing_left_to_measure_keeps_the_file(cwd):
    before = (cwd / "run" / "trace.json").read_bytes()
    again = mpirun(3, *OVERLAP, "--resume", "run", cwd=cwd)
    assert again.status == 0, again
    assert (cwd / "run" / "trace.json").read_bytes() == before


def test_without_the_flag_there_is_none(tmp_path):
    finished = mpirun(
        2, *OVERLAP, "--sizes", "4", "--compute", "100us", "--iterations", "4", "--output", "run", cwd=tmp_path
    )
    assert finished.status == 0, finished
    assert not (tmp_path / "run" / "trace.json").exists()
    assert "trace.json" not in finished.out
