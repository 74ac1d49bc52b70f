"""Run directories written by hand: what one launch of mpibench.overlap would leave, with times that are known."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLUMNS = """case, cell, collective, nbytes, count, dtype, in_place, ranks, nodes, thread_level, oversubscribed,
blas_threads, device, buffers, kernel, compute_steps, progress, poll_interval_s, iterations, allreduce_s, nonblocking_s,
compute_s, sequential_s, overlapped_s, overlap, exposed_s, speedup, cpu_wait_s, refined, status, verdict, note"""
NAMES = [word.strip() for word in COLUMNS.replace("\n", " ").split(",")]
FIXED: dict[str, Any] = {
    "collective": "iallreduce", "dtype": "float32", "in_place": "false", "ranks": 2, "nodes": 1,
    "thread_level": "funneled", "oversubscribed": "false", "blas_threads": 1, "device": "cpu", "buffers": "host",
    "kernel": "delay",
    "compute_steps": 100, "poll_interval_s": 5e-05, "iterations": 50, "allreduce_s": 1e-4, "nonblocking_s": 1.2e-4,
    "compute_s": 1e-3, "sequential_s": 1.1e-3, "overlapped_s": 1.05e-3, "overlap": 0.5, "exposed_s": 5e-5,
    "speedup": 1.05, "cpu_wait_s": 0, "refined": "false", "status": "converged", "verdict": "partly-hidden", "note": "",
}  # fmt: skip


def case(size: str = "64K", progress: str = "none", factor: float = 1.0, **values: Any) -> dict[str, Any]:
    """A row: B, N and T `factor` times what is fixed, unless they are given."""
    nbytes = int(size.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}[size[-1]]
    times = {
        name: FIXED[name] * factor
        for name in FIXED
        if name.endswith("ed_s") or name in ("allreduce_s", "nonblocking_s")
    }
    times["compute_s"] = FIXED["compute_s"]
    return {
        **FIXED, **times, "case": f"{size}-1ms-{progress}", "cell": 0, "nbytes": nbytes, "count": nbytes // 4,
        "progress": progress, **values,
    }  # fmt: skip


def write_run(path: Path, *rows: Mapping[str, Any], launches: int = 1, ended: str = "finished", **run: Any) -> Path:
    """A run directory with these rows; `run` goes into run.json."""
    path.mkdir(parents=True)
    with (path / "overlap.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, NAMES, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    # Two directories are the same launch if their ranks began at the same time with the same process numbers.
    hosts = [{"rank": 0, "host": "n1", "cores": [0, 1], "pid": abs(hash(path)) % 100000}]
    launch = {"start": "2026-01-01T00:00:00Z", "ended": ended, "hosts": hosts}
    content: dict[str, Any] = {
        "schema": 1, "benchmark": "overlap", "settings": {"kernel_dtype": "float32", "output": str(path)},
        "launches": [launch] * launches, "versions": {"mpi": "MPICH 5"}, "environment": {}, "hosts": hosts, **run,
    }  # fmt: skip
    (path / "run.json").write_text(json.dumps(content))
    return path
