"""The files of a run: written so that a killed run leaves them valid, and read back.

samples.csv is the record: a visit is appended with one write, and taken back whole if the disk
is full. ranks.csv gets its rows first and says how many iterations the visit has, so that a visit
that did not arrive whole is known when reading. Where hosts have clocks of their own,
local_samples.csv has the same visits by the slowest local durations. Tables and run.json are replaced atomically.
Times in samples are integer nanoseconds; everything else is SI. Empty means not measured.
"""

import csv
import errno
import io
import json
import math
import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpibench.errors import DiskFault, UsageError
from mpibench.protocols import TOLD

SCHEMA = 1
ABSENT = -1  # in sample arrays: not measured, empty in the file

_TEXT = ("phase", "progress")
SAMPLE_COLUMNS = (
    "cell", "visit", "iteration", "position", "phase", "progress", "span_ns", "skew_ns", "slowest_rank",
    "start_ns", "during_ns", "test_ns", "tests", "wait_ns", "cpu_wait_ns", "throttled",
)  # fmt: skip
RANK_COLUMNS = ("cell", "visit", "rank", "host", "phase", "progress", "iterations", "median_ns", "wait_ns")
RANK_SAMPLE_COLUMNS = (
    "cell", "visit", "iteration", "phase", "progress", "rank", "begin_ns", "end_ns",
    "start_ns", "during_ns", "test_ns", "tests", "wait_ns", "cpu_wait_ns",
)  # fmt: skip
_OPTIONAL = {"rank_samples.csv": RANK_SAMPLE_COLUMNS, "local_samples.csv": SAMPLE_COLUMNS}  # not in every run
OVERLAP_COLUMNS = (
    "case", "cell", "collective", "nbytes", "count", "dtype", "in_place", "ranks", "nodes", "thread_level",
    "oversubscribed", "blas_threads", "device", "buffers", "kernel", "compute_steps", "progress",
    "poll_interval_s", "iterations", "effective_iterations", "allreduce_hot_s", "nonblocking_hot_s",
    "allreduce_s", "allreduce_lo_s", "allreduce_hi_s", "nonblocking_s", "nonblocking_lo_s", "nonblocking_hi_s",
    "compute_s", "compute_lo_s", "compute_hi_s", "sequential_s", "sequential_lo_s", "sequential_hi_s",
    "overlapped_s", "overlapped_lo_s", "overlapped_hi_s", "overlapped_mean_s", "overlapped_p95_s",
    "start_s", "during_s", "test_s", "tests", "wait_s", "overlap", "overlap_lo", "overlap_hi",
    "exposed_s", "exposed_lo_s", "exposed_hi_s", "gain_s", "speedup", "speedup_lo", "speedup_hi", "bias_s",
    "nonblocking_penalty", "compute_slowdown", "busbw_Bps", "skew_s", "cpu_wait_s", "outliers",
    "copy_in_s", "copy_out_s", "throttled", "slowest_rank", "wrong", "refined", "status", "verdict", "note",
)  # fmt: skip
CROSSOVER_COLUMNS = (
    "collective", "kernel", "compute_s", "progress", "poll_interval_s", "cover_nbytes", "cover_lo", "cover_hi",
    "cover_status", "hidden_nbytes", "hidden_lo", "hidden_hi", "hidden_from_nbytes", "hidden_status", "note",
)  # fmt: skip
EXPOSURE_COLUMNS = (
    "nbytes", "collective", "kernel", "progress", "hiding_compute_s", "hiding_compute_lo_s", "hiding_compute_hi_s",
    "efficiency", "efficiency_lo", "efficiency_hi", "floor_s", "floor_lo_s", "floor_hi_s",
    "hiding_rate_Bps", "hiding_latency_s", "note",
)  # fmt: skip

SAMPLE_DTYPE = np.dtype([(name, "O" if name in _TEXT else "i8") for name in SAMPLE_COLUMNS])


class RunDirectory:
    """The directory of one run, open for writing. Only rank 0 has one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> "RunDirectory":
        """Make the directory and its first files.

        Raises:
            UsageError: if it holds something already or cannot be written.
        """
        try:
            if path.is_dir() and any(path.iterdir()):
                raise UsageError(
                    f"--output {path}: there is something in it already; name a new directory, or --resume it"
                )
            path.mkdir(parents=True, exist_ok=True)
            directory = cls(path)
            directory._start("samples.csv", SAMPLE_COLUMNS)
            directory._start("ranks.csv", RANK_COLUMNS)
        except OSError as error:
            raise UsageError(f"--output {path}: cannot be written: {error.strerror}; name another place") from error
        return directory

    def _start(self, name: str, columns: Sequence[str]) -> None:
        (self.path / name).write_text(",".join(columns) + "\n", encoding="utf-8")

    def require_writable(self) -> None:
        """Raise UsageError now rather than after the first visit."""
        for path in (self.path, self.path / "samples.csv", self.path / "ranks.csv"):
            if not os.access(path, os.W_OK):
                raise UsageError(f"--resume {self.path}: {path} cannot be written; copy the run to a place of your own")

    def forget_ending(self) -> None:
        """What ranks told when an earlier launch was ended says nothing of this one."""
        (self.path / TOLD).unlink(missing_ok=True)
        shutil.rmtree(self.path / "stuck", ignore_errors=True)

    def append_visit(
        self, samples: Any, ranks: Iterable[Sequence[Any]], rank_samples: Any = (), local: Any = None
    ) -> None:
        """Commit a visit: `samples` of SAMPLE_DTYPE, rows of ranks.csv, of rank_samples.csv, and of local_samples.csv.

        Raises:
            DiskFault: if the disk does not take it; the files stay as they were.
        """
        rows: dict[str, Iterable[Sequence[Any]]] = {"ranks.csv": ranks}
        if local is not None:
            rows["local_samples.csv"] = local.tolist()
        rows["samples.csv"] = samples.tolist()
        if len(rank_samples):
            rows["rank_samples.csv"] = rank_samples
        before: dict[str, int] = {}
        try:
            for name, lines in rows.items():
                path = self.path / name
                if name in _OPTIONAL and not path.exists():
                    self._start(name, _OPTIONAL[name])
                before[name] = path.stat().st_size
                _append(path, _lines(lines).encode())
        except OSError as error:
            for taken, size in before.items():
                os.truncate(self.path / taken, size)
            raise DiskFault(
                f"{path}: {error.strerror}; the last visit was taken back, what was there before is whole"
            ) from error

    def write_table(self, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace a table atomically. Missing or NaN values are empty."""
        self._replace(name, ",".join(columns) + "\n" + _lines([[row.get(c) for c in columns] for row in rows]))

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Replace run.json atomically."""
        self._replace("run.json", json.dumps({"schema": SCHEMA, **run}, indent=2) + "\n")

    def write_trace(self, document: Mapping[str, Any]) -> None:
        """Replace trace.json atomically."""
        self._replace("trace.json", json.dumps(document, separators=(",", ":")) + "\n")

    def _replace(self, name: str, text: str) -> None:
        # The guard's thread may write the same table while the main thread is stuck in doing so.
        draft = self.path / f".{name}.{os.getpid()}.{threading.get_ident()}"
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(self.path / name)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise DiskFault(f"{self.path / name}: {error.strerror}; what was there before is whole") from error

    def keep_only(self, samples: Any) -> None:
        """Let the record hold just the visits of `samples`, as read: drops what did not arrive whole."""
        kept = {(str(cell), str(visit)) for cell, visit in samples[["cell", "visit"]].tolist()}
        self._replace("samples.csv", ",".join(SAMPLE_COLUMNS) + "\n" + _lines(samples.tolist()))
        for name, columns in {"ranks.csv": RANK_COLUMNS, **_OPTIONAL}.items():
            path = self.path / name
            if path.exists():
                whole = [row for row in _read_rows(path, columns) if tuple(row[:2]) in kept]
                self._replace(name, ",".join(columns) + "\n" + _lines(whole))


def _append(path: Path, data: bytes) -> None:
    """Append with one write; OSError if not all of it arrives."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        if os.write(file, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    """A value as the files have it: empty for None, NaN and ABSENT; no locale."""
    if value is None or (isinstance(value, float) and math.isnan(value)) or (value == ABSENT and type(value) is int):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    return format(value, ".9g") if isinstance(value, float) else str(value)


def read_run(path: Path, needed: Sequence[str] = (), named: str = "--resume ") -> dict[str, Any]:
    """run.json of a run directory, which must have the keys `needed`; `named` is how the user named the directory.

    Raises:
        UsageError: if there is none, or it is of a newer schema.
    """
    file = path / "run.json"
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
        schema = int(run["schema"])
        if missing := [key for key in needed if key not in run]:
            raise KeyError(missing[0])
    except OSError as error:
        raise UsageError(
            f"{named}{path}: no run there ({file.name}: {error.strerror}); name a run's directory"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{named}{path}: {file.name} is not a run's record: {error}") from error
    if schema > SCHEMA:
        raise UsageError(
            f"{named}{path}: written by a newer mpibench (schema {schema}, this one reads {SCHEMA}); update mpibench"
        )
    return dict(run)


def read_samples(path: Path, name: str = "samples.csv") -> tuple[Any, str]:
    """samples.csv as an array of SAMPLE_DTYPE, whole visits only, and what was dropped in words.

    `name`: local_samples.csv is read the same way.

    Raises:
        UsageError: if the file is missing or is not a samples.csv.
    """
    rows = _read_rows(path / name, SAMPLE_COLUMNS)
    parsed = [parsed_row for row in rows if (parsed_row := _parse_sample(row)) is not None]
    samples = np.array(parsed, dtype=SAMPLE_DTYPE)
    wanted = _visit_sizes(path / "ranks.csv")
    found: dict[tuple[int, int], dict[tuple[str, str], int]] = {}
    for row in parsed:
        phases = found.setdefault((row[0], row[1]), {})
        phases[row[4], row[5]] = phases.get((row[4], row[5]), 0) + 1
    broken = {key for key, phases in found.items() if wanted is not None and phases != wanted.get(key)}
    torn = len(rows) - len(parsed)
    if not torn and not broken and (wanted is None or (_ends(path / "ranks.csv") and wanted.keys() <= found.keys())):
        return samples, ""
    keep = np.array([(row[0], row[1]) not in broken for row in parsed], dtype=bool)
    return samples[keep], f"{path / name}: dropped {torn} torn line(s) and {len(broken)} incomplete visit(s)"


def read_table(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a table such as overlap.csv by column name, as text; empty means not measured.

    Raises:
        UsageError: if there is no such file, or it lacks one of the columns `needed`.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream, restval="")
            columns, rows = reader.fieldnames or (), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: {reason}; name a run's directory") from error
    if missing := [name for name in needed if name not in columns]:
        raise UsageError(f"{path}: it has no column {missing[0]}; name a run's directory")
    return rows


def _parse_sample(row: Sequence[str]) -> tuple[Any, ...] | None:
    """A sample's values, or None for a torn line."""
    if len(row) != len(SAMPLE_COLUMNS):
        return None
    try:
        return tuple(
            value if name in _TEXT else int(value) if value else ABSENT
            for name, value in zip(SAMPLE_COLUMNS, row, strict=True)
        )
    except ValueError:
        return None


def _visit_sizes(path: Path) -> dict[tuple[int, int], dict[tuple[str, str], int]] | None:
    """Iterations of each phase of each visit according to ranks.csv; None without the file."""
    if not path.exists():
        return None
    sizes: dict[tuple[int, int], dict[tuple[str, str], int]] = {}
    for row in _read_rows(path, RANK_COLUMNS):
        if len(row) == len(RANK_COLUMNS) and row[2] == "0":
            sizes.setdefault((int(row[0]), int(row[1])), {})[row[4], row[5]] = int(row[6])
    return sizes


def _ends(path: Path) -> bool:
    """Whether the file's last line ends: it is not torn."""
    return path.read_bytes()[-1:] == b"\n"


def _read_rows(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """The rows of a CSV file. The last line counts as torn (one empty value) if it does not end."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name a run's directory") from error
    rows = list(csv.reader(io.StringIO(text)))
    if not rows or tuple(rows[0]) != tuple(columns):
        raise UsageError(f"{path}: its first line is not that of such a file; name a run's directory")
    if not text.endswith("\n"):
        rows[-1] = [""]
    return rows[1:]
