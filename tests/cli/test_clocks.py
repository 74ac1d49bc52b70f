"""Whole runs whose ranks read different clocks: in time namespaces, which the kernel sets apart exactly."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.launch import OVERLAP, Finished, Job, environment, mpirun, mpirun_path
from tests.cli.runs import check_valid, median_interval, read, read_run
from tests.unit.trace_format import check_trace

AHEAD_S = 1000  # rank 1's clock
UNSHARE = ("unshare", "-T", "--monotonic", str(AHEAD_S), "--fork", "--kill-child=KILL")
FLAGS = ("--sizes", "64,1M", "--compute", "500us", "--kernel", "delay", "--progress", "poll", "--samples", "all")
KEYS = ["cell", "visit", "iteration", "phase", "progress"]


@cache
def refusal() -> str:
    """Why no process can have a clock of its own here; empty if one can."""
    try:
        tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, timeout=30)
    except OSError as error:
        return f"unshare: {error}"
    return tried.stderr.strip() if tried.returncode else ""


def apart(cwd: Path, *args: str) -> Finished:
    """`mpirun -n 2 python ARGS`, rank 1 with a clock of its own."""
    script = cwd / "apart"
    script.write_text(
        "#!/bin/sh\n"
        f'[ "${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}" = 1 ] && exec {" ".join(UNSHARE)} "$@"\n'
        'exec "$@"\n'
    )  # fmt: skip
    script.chmod(0o755)
    with Job([mpirun_path(), "-n", "2", str(script), sys.executable, *args], cwd) as job:
        return job.wait()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The directory of a run on two clocks, once interrupted and gone on with."""
    if refusal():
        pytest.skip(f"no time namespace here: {refusal()}")
    cwd = tmp_path_factory.mktemp("apart")
    first = apart(cwd, *OVERLAP, *FLAGS, "--iterations", "12", "--budget", "40s", "--trace", "--output", "run")
    assert first.status == 0, first
    again = apart(cwd, *OVERLAP, "--resume", "run", "--iterations", "30", "--budget", "40s")
    assert again.status == 0, again
    return cwd / "run"


def test_what_the_kernel_set_the_clocks_apart_is_found(run):
    launches = read_run(run)["launches"]
    assert len(launches) == 2
    for launch in launches:
        (clock,) = launch["clocks"]
        assert (clock["rank"], clock["against_rank"]) == (1, 0)
        points = clock["synchronisations"]
        assert len(points) >= 3, "before, after, and at the end"
        for point in points:
            assert abs(point["offset_ns"] - AHEAD_S * 10**9) <= point["uncertainty_ns"] + 1
            assert point["round_trips"] >= 100
            assert point["early"] == 0
        times = [point["at_ns"] for point in points]
        assert times == sorted(times)
    assert read_run(run)["early"] == {}
    assert not read_run(run)["facts"]["common_clock"]


def test_spans_are_those_of_stamps_on_one_clock(run):
    check_valid(run)
    samples, local, ranks = (read(run, name).fillna({"progress": ""}) for name in
                             ("samples.csv", "local_samples.csv", "rank_samples.csv"))  # fmt: skip
    assert set(map(tuple, local[KEYS].to_numpy())) == set(map(tuple, samples[KEYS].to_numpy()))
    by_phase = ranks.groupby(KEYS)
    first, last, end = (by_phase[name].agg(how) for name, how in
                        (("begin_ns", "min"), ("begin_ns", "max"), ("end_ns", "max")))  # fmt: skip
    spans, lasting = samples.set_index(KEYS), local.set_index(KEYS)["span_ns"]
    told = spans["skew_ns"].notna()
    at = spans.index[told]
    assert (spans["span_ns"][told] == (end - last).loc[at]).all()
    assert (spans["skew_ns"][told] == (last - first).loc[at]).all()
    assert ((last - first) < 60e9).all(), "not the 1000 s that the clocks are apart"
    assert (spans["span_ns"][~told] == lasting.loc[spans.index[~told]]).all()
    # Between the last start and the last end no rank can have taken longer than the slowest took.
    assert (spans["span_ns"][told] <= lasting.loc[at] + 1000).all()
    assert (lasting.loc[at] <= spans["span_ns"][told] + spans["skew_ns"][told] + 1000).all()


def test_each_row_is_of_one_definition_and_says_which(run):
    samples, local = (read(run, name).fillna({"progress": ""}) for name in ("samples.csv", "local_samples.csv"))
    for row in read(run, "overlap.csv").itertuples():
        timed = samples[(samples["cell"] == row.cell) & ~samples["phase"].str.endswith("-hot")]
        fell_back = timed["skew_ns"].isna().any()
        assert ("slowest local durations" in row.note) == fell_back
        used = local if fell_back else samples
        for name in ("allreduce", "nonblocking", "compute", "sequential", "overlapped"):
            spans = used[(used["cell"] == row.cell) & (used["phase"] == name)]["span_ns"] * 1e-9
            assert getattr(row, f"{name}_s") == pytest.approx(np.median(spans), rel=1e-6)
            assert row.iterations == len(spans)
        assert np.isnan(row.skew_s) == fell_back


def test_the_trace_is_on_one_clock(run):
    slices = check_trace(json.loads((run / "trace.json").read_text()))
    assert sorted(tid for _, tid in slices) == [0, 1]
    bound_us = 60e6  # not the 1000 s that the clocks are apart
    starts = [[event["ts"] for event in own if event["cat"] == "case"] for own in slices.values()]
    assert len(starts[0]) == 2
    assert all(abs(one - other) < bound_us for one, other in zip(*starts, strict=True))
    for own in slices.values():
        assert all(event["args"]["clock_uncertainty_us"] > 0 for event in own if event["cat"] == "case")


def test_clocks_that_are_apart_read_as_one_does(run, tmp_path):
    """The emulated compute lasts as long whatever clock it is timed by; the rest is the machine's mood."""
    alone = mpirun(2, *OVERLAP, *FLAGS, "--iterations", "30", "--budget", "40s", "--output", "run", cwd=tmp_path)
    assert alone.status == 0, alone
    assert not (tmp_path / "run" / "local_samples.csv").exists()
    assert "clocks" not in read_run(tmp_path / "run")["launches"][0]
    computes: list[pd.Series] = []
    for directory in (run, tmp_path / "run"):
        samples = read(directory, "samples.csv")
        computes.append(
            samples[(samples["phase"] == "compute") & (samples["cell"] == 1)]["span_ns"].reset_index(drop=True)
        )
    (_, low, high), (_, other_low, other_high) = (median_interval(series.to_numpy()) for series in computes)
    bound = 2 * max(point["uncertainty_ns"] for launch in read_run(run)["launches"] for clock in launch["clocks"]
                    for point in clock["synchronisations"])  # fmt: skip
    slack = bound + 0.1 * other_high  # two launches differ
    assert low - slack <= other_high
    assert other_low - slack <= high


def test_unshared_clocks_are_really_apart():
    """What the tests above rest on."""
    if refusal():
        pytest.skip(f"no time namespace here: {refusal()}")
    line = "import time; print(time.perf_counter_ns())"
    here, there, after = (
        int(
            subprocess.run(
                [*prefix, sys.executable, "-c", line], capture_output=True, env=environment(), check=True
            ).stdout
        )
        for prefix in ((), UNSHARE, ())
    )
    assert here < there - AHEAD_S * 10**9 < after
