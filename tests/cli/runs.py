"""Run directories read back and judged from outside: nothing of mpibench is used here."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

# As design.md has them, word for word.
SAMPLES = """cell, visit, iteration, position, phase, progress, span_ns, skew_ns, slowest_rank, start_ns, during_ns,
test_ns, tests, wait_ns, cpu_wait_ns, throttled"""
OVERLAP = """case, cell, collective, nbytes, count, dtype, in_place, ranks, nodes, thread_level, oversubscribed,
blas_threads, device, buffers, kernel, compute_steps, progress, poll_interval_s, iterations, effective_iterations,
allreduce_hot_s, nonblocking_hot_s, allreduce_s, allreduce_lo_s, allreduce_hi_s, nonblocking_s, nonblocking_lo_s,
nonblocking_hi_s, compute_s, compute_lo_s, compute_hi_s, sequential_s, sequential_lo_s, sequential_hi_s, overlapped_s,
overlapped_lo_s, overlapped_hi_s, overlapped_mean_s, overlapped_p95_s, start_s, during_s, test_s, tests, wait_s,
overlap, overlap_lo, overlap_hi, exposed_s, exposed_lo_s, exposed_hi_s, gain_s, speedup, speedup_lo, speedup_hi,
bias_s, nonblocking_penalty, compute_slowdown, busbw_Bps, skew_s, cpu_wait_s, outliers, copy_in_s, copy_out_s,
throttled, slowest_rank, wrong, refined, status, verdict, note"""
CROSSOVER = """collective, kernel, compute_s, progress, poll_interval_s, cover_nbytes, cover_lo, cover_hi, cover_status,
hidden_nbytes, hidden_lo, hidden_hi, hidden_from_nbytes, hidden_status, note"""
RANKS = "cell, visit, rank, host, phase, progress, iterations, median_ns, wait_ns"  # see docs/architecture.md
RANK_SAMPLES = """cell, visit, iteration, phase, progress, rank, begin_ns, end_ns, start_ns, during_ns, test_ns, tests,
wait_ns, cpu_wait_ns"""
TABLES = {
    "samples.csv": SAMPLES, "overlap.csv": OVERLAP, "crossover.csv": CROSSOVER, "ranks.csv": RANKS,
    "rank_samples.csv": RANK_SAMPLES, "local_samples.csv": SAMPLES,
}  # fmt: skip
STATUSES = {"converged", "not-converged", "unstable", "unresolved", "failed", "skipped"}
VERDICTS = {
    "skipped", "wrong-data", "unresolved", "no-progress", "blocking-start", "contended", "hidden", "comm-bound",
    "partly-hidden",
}  # fmt: skip
POINTS = {"found", "at-switch", "beyond", "never", "unresolved"}
PHASES = ("allreduce", "nonblocking", "compute", "sequential", "overlapped")


def columns(name: str) -> list[str]:
    return [word.strip() for word in TABLES[name].replace("\n", " ").split(",")]


def read(directory: Path, name: str) -> pd.DataFrame:
    """A table with pandas, after it was read with csv: the right columns, every line whole."""
    raw = (directory / name).read_bytes()
    assert raw.endswith(b"\n"), f"{name} is torn"
    rows = list(csv.reader(raw.decode("utf-8").splitlines(), strict=True))
    assert rows[0] == columns(name)
    assert {len(row) for row in rows} == {len(rows[0])}, f"{name} has a torn line"
    table = pd.read_csv(directory / name)
    assert list(table.columns) == columns(name)
    assert len(table) == len(rows) - 1
    return table


def read_run(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "run.json").read_text(encoding="utf-8"))


def visits(directory: Path) -> set[tuple[int, int]]:
    """The committed visits: each with every phase equally often, as ranks.csv says."""
    samples, ranks = read(directory, "samples.csv"), read(directory, "ranks.csv")
    timed = samples[~samples["phase"].str.endswith("-hot")].fillna({"progress": ""})
    ranks = ranks[~ranks["phase"].str.endswith("-hot")].fillna({"progress": ""})
    keys = ["cell", "visit", "phase", "progress"]
    found = timed.groupby(keys).size()
    wanted = ranks[ranks["rank"] == 0].drop_duplicates(keys, keep="last").set_index(keys)["iterations"]
    assert (found == wanted.loc[found.index]).all(), "a visit is not whole"
    numbers = {(int(cell), int(visit)) for cell, visit in timed[["cell", "visit"]].itertuples(index=False)}
    for cell in {cell for cell, _ in numbers}:
        mine = sorted(visit for other, visit in numbers if other == cell)
        assert mine == list(range(len(mine))), f"visits of cell {cell} are not counted through"
    return numbers


def check_valid(directory: Path) -> dict[str, Any]:
    """Every file of a run is whole and agrees with the samples. Returns run.json."""
    run = read_run(directory)
    assert run["schema"] == 1
    committed = visits(directory)
    table = read(directory, "overlap.csv")
    cells = run["plan"]["cells"]
    assert len(table) == len(cells) * len(run["plan"]["strategies"])
    assert table["case"].is_unique
    assert set(table["status"]) <= STATUSES
    assert set(table["verdict"]) <= VERDICTS
    points = read(directory, "crossover.csv")
    assert len(points) == len({cell["compute"] for cell in cells}) * len(run["plan"]["strategies"])
    assert set(points["cover_status"]) | set(points["hidden_status"]) <= POINTS
    samples = read(directory, "samples.csv")
    iterations = samples[samples["phase"] == "compute"].groupby("cell").size()
    for row in table.itertuples():
        if row.status not in ("skipped", "failed"):
            assert row.iterations == iterations.get(row.cell, 0), row.case
    assert {cell for cell, _ in committed} <= set(range(len(cells)))
    assert not list(directory.glob(".*")), "a draft was left behind"
    return run


def stretch(values: np.ndarray) -> float:
    """By how much dependence widens an interval: the root of tau, one standard error added, summed term by term."""
    n, above = len(values), (values > np.median(values)).astype(float)
    deviation = above - above.mean()
    tau, terms = 1.0, 0
    while terms < n - 1 and deviation.any():
        correlation = (deviation[terms + 1 :] * deviation[: n - terms - 1]).sum() / (deviation**2).sum()
        if correlation < max(0.05, n**-0.5) - 1e-9:
            break
        tau, terms = tau + 2 * correlation, terms + 1
    return float(np.sqrt(tau * (1 + (2 * (2 * terms + 1) / n) ** 0.5) if terms else tau))


def median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """The median and the binomial 95 % interval by scipy, its ranks moved outwards where values are dependent."""
    n, ordered = len(values), np.sort(values)
    k = max((k for k in range(1, n // 2 + 1) if 2 * binom.cdf(k - 1, n, 0.5) <= 0.05), default=0)
    k = int(np.floor((n + 1) / 2 - ((n + 1) / 2 - k) * stretch(values))) if k else 0
    return (float(np.median(values)), *((ordered[k - 1], ordered[n - k]) if k > 0 else (np.nan, np.nan)))


def recompute(samples: pd.DataFrame, cell: int, progress: str, ranks: int, nbytes: int) -> dict[str, float]:
    """The figures of a case from the definitions of design.md, with pandas, from samples.csv alone."""
    mine = samples[samples["cell"] == cell]
    spans, parts = {}, {}
    for name in PHASES:
        rows = mine[(mine["phase"] == name) & (mine["progress"] == (progress if name == "overlapped" else ""))]
        parts[name] = rows.sort_values(["visit", "iteration"]).set_index(["visit", "iteration"])
        spans[name] = parts[name]["span_ns"] * 1e-9
    b, n, c, s, t = (spans[name] for name in PHASES)
    assert all(list(other.index) == list(t.index) for other in (b, n, c, s)), "an iteration lacks a phase"
    part = parts["overlapped"]
    shortest = np.minimum(n, c)
    figures: dict[str, float] = {
        "iterations": len(t),
        "overlapped_mean_s": t.mean(),
        "overlapped_p95_s": t.quantile(0.95),
        "gain_s": (s - t).median(),
        "bias_s": (s - (b + c)).median(),
        "nonblocking_penalty": (n / b).median(),
        "busbw_Bps": 2 * (ranks - 1) / ranks * nbytes / b.median(),
        "compute_slowdown": ((part["during_ns"] - part["test_ns"]) * 1e-9 / c).median(),
        "tests": part["tests"].median(),
        "slowest_rank": part["slowest_rank"].mode().min(),
    }
    for name, unit, values in (
        ("allreduce", "_s", b), ("nonblocking", "_s", n), ("compute", "_s", c), ("sequential", "_s", s),
        ("overlapped", "_s", t), ("exposed", "_s", t - c), ("overlap", "", (n + c - t) / shortest),
        ("speedup", "", s / t),
    ):  # fmt: skip
        middle, low, high = median_interval(values.to_numpy())
        figures |= {f"{name}{unit}": middle, f"{name}_lo{unit}": low, f"{name}_hi{unit}": high}
    for name in ("start", "during", "test", "wait", "skew", "cpu_wait"):
        figures[f"{name}_s"] = part[f"{name}_ns"].median() * 1e-9
    return figures


def check_figures(directory: Path, device_driven: bool) -> None:
    """Every figure of overlap.csv agrees to 6 digits with the one recomputed from samples.csv."""
    samples = read(directory, "samples.csv").fillna({"progress": ""})
    for _, row in read(directory, "overlap.csv").iterrows():
        figures = recompute(samples, row["cell"], row["progress"], row["ranks"], row["nbytes"])
        if device_driven:
            assert np.isnan(row["compute_slowdown"])
            del figures["compute_slowdown"]
        for name, value in figures.items():
            assert row[name] == pytest.approx(value, rel=1e-6, abs=1e-13, nan_ok=True), f"{row['case']}: {name}"
