"""What one launch left: run.json and the rows of overlap.csv. Nothing is computed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpibench.errors import UsageError

STEPS = "compute_steps"
IDENTITY = (
    "collective", "nbytes", "dtype", "in_place", "ranks", "nodes", "thread_level", "oversubscribed", "blas_threads",
    "device", "buffers", "kernel", STEPS, "poll_interval_s",
)  # fmt: skip
"""Columns of overlap.csv that say what was measured."""
TIMES = {"B": "allreduce_s", "N": "nonblocking_s", "C": "compute_s", "T": "overlapped_s"}
"""Columns of the launch's medians that are compared, by the symbol of docs/overlap.md."""
DERIVED = ("overlap", "exposed_s", "speedup")
"""Columns of what follows from them, shown beside them."""
_NEEDED = ("case", "progress", *IDENTITY, *TIMES.values(), *DERIVED, "cpu_wait_s", "refined", "verdict", "note")


@dataclass(frozen=True)
class LaunchRecord:
    """What one launch left."""

    path: Path  # its run directory
    run: Mapping[str, Any]  # run.json
    rows: Mapping[str, Mapping[str, str]]  # of overlap.csv, by case

    @property
    def table(self) -> Path:
        """Where its rows are from."""
        return self.path / "overlap.csv"

    def number(self, case: str, column: str) -> float | None:
        """A value of a row; None where the row is not there or the value is empty.

        Raises:
            UsageError: if it is no number.
        """
        text = self.rows.get(case, {}).get(column, "")
        try:
            return float(text) if text else None
        except ValueError:
            raise UsageError(f"{self.table}: {column} {text!r} in case {case}: it is a number, or empty") from None


def read_launch(path: Path, named: str = "") -> LaunchRecord:
    """A launch of the overlap benchmark from its run directory; `named` stands before the path in messages.

    Refined rows are left out: every launch refines at sizes of its own.

    Raises:
        UsageError: if it is none, or a case is there twice.
    """
    from mpibench.records import read_run, read_table  # late: they import numpy

    run = read_run(path, ("benchmark", "settings", "launches"), named)
    if run["benchmark"] != "overlap":
        raise UsageError(f"{named}{path}: a run of {run['benchmark']}; name runs of mpibench.overlap")
    rows: dict[str, Mapping[str, str]] = {}
    for row in read_table(path / "overlap.csv", _NEEDED):
        if row["refined"] == "true":
            continue
        if row["case"] in rows:
            raise UsageError(f"{path / 'overlap.csv'}: case {row['case']} is there twice; a case is one row")
        rows[row["case"]] = row
    return LaunchRecord(path, run, rows)


def refuse_repetition(launches: Sequence[LaunchRecord]) -> None:
    """One launch does not count as two.

    Raises:
        UsageError: if a directory is named twice, or is a copy of another.
    """
    paths: dict[Path, LaunchRecord] = {}
    origins: dict[tuple[str, str], LaunchRecord] = {}
    for launch in launches:
        first = launch.run["launches"][0] if launch.run["launches"] else {}
        origin = (str(first.get("start")), str(first.get("hosts")))
        resolved = launch.path.resolve()
        if resolved in paths:
            raise UsageError(f"{launch.path}: named twice; name each launch once")
        if first.get("hosts") and origin in origins:
            raise UsageError(f"{launch.path}: the same launch as {origins[origin].path}; name each launch once")
        paths[resolved] = origins[origin] = launch


def doubts(launches: Iterable[LaunchRecord]) -> Iterator[str]:
    """What the reader must know of single launches."""
    for launch in launches:
        parts = launch.run["launches"]
        if len(parts) > 1:
            yield f"{launch.path} was resumed: measured in {len(parts)} launches, it counts as one"
        ended = parts[-1].get("ended") if parts else ""
        if ended != "finished":
            yield f"{launch.path}: {ended or 'running still, or killed'}; what it has measured counts"
