"""From a small synthetic record to the rows of the tables: every case has one, with its figures or its reason."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from mpibench.engine.exposures import exposure_row
from mpibench.engine.history import History
from mpibench.engine.plan import Plan
from mpibench.engine.refinement import grow
from mpibench.engine.results import Facts, Results, crossover_row, evaluate, overlap_row
from mpibench.protocols import Cell
from mpibench.records import CROSSOVER_COLUMNS, EXPOSURE_COLUMNS, OVERLAP_COLUMNS, SAMPLE_DTYPE, RunDirectory
from mpibench.units import IterationRange

# As design.md has them.
OVERLAP = (
    "case, cell, collective, nbytes, count, dtype, in_place, ranks, nodes, thread_level, oversubscribed, blas_threads, "
    "device, buffers, kernel, compute_steps, progress, poll_interval_s, iterations, effective_iterations, "
    "allreduce_hot_s, nonblocking_hot_s, allreduce_s, allreduce_lo_s, allreduce_hi_s, nonblocking_s, "
    "nonblocking_lo_s, nonblocking_hi_s, compute_s, compute_lo_s, compute_hi_s, sequential_s, sequential_lo_s, "
    "sequential_hi_s, overlapped_s, overlapped_lo_s, overlapped_hi_s, overlapped_mean_s, overlapped_p95_s, start_s, "
    "during_s, test_s, tests, wait_s, overlap, overlap_lo, overlap_hi, exposed_s, exposed_lo_s, exposed_hi_s, gain_s, "
    "speedup, speedup_lo, speedup_hi, bias_s, nonblocking_penalty, compute_slowdown, busbw_Bps, skew_s, cpu_wait_s, "
    "outliers, copy_in_s, copy_out_s, throttled, slowest_rank, wrong, refined, status, verdict, note"
)
CROSSOVER = (
    "collective, kernel, compute_s, progress, poll_interval_s, cover_nbytes, cover_lo, cover_hi, cover_status, "
    "hidden_nbytes, hidden_lo, hidden_hi, hidden_from_nbytes, hidden_status, note"
)
EXPOSURE = (
    "nbytes, collective, kernel, progress, hiding_compute_s, hiding_compute_lo_s, hiding_compute_hi_s, efficiency, "
    "efficiency_lo, efficiency_hi, floor_s, floor_lo_s, floor_hi_s, hiding_rate_Bps, hiding_latency_s, note"
)
FACTS = Facts(2, 1, "funneled", False, 1, "cpu", "host", 50e-6, True, False, False, True)
US = 1000  # ns
C = 1000 * US
N = {4: 10 * US, 65536: 100 * US, 1 << 20: 500 * US, 16 << 20: 2000 * US}  # = B, by size
HIDDEN = ("hidden_status", "hidden_nbytes", "hidden_hi", "hidden_from_nbytes")


def samples(cell: int, nonblocking: int, iterations: int = 12, **changes: Any) -> list[Any]:
    """Five visits: serial under `none`, perfect under `poll`, the same in every iteration unless changed."""
    sums = {"allreduce": nonblocking, "nonblocking": nonblocking, "compute": C, "sequential": C + nonblocking}
    spans = {(name, ""): value for name, value in sums.items()}
    spans |= {("overlapped", "none"): C + nonblocking, ("overlapped", "poll"): max(C, nonblocking)}
    spans |= {("allreduce-hot", ""): nonblocking // 2, ("nonblocking-hot", ""): nonblocking // 4}
    made = []
    for number in range(5):
        rows = np.zeros((iterations, len(spans)), dtype=SAMPLE_DTYPE)
        rows["cell"], rows["visit"], rows["iteration"] = cell, number, np.arange(iterations)[:, None]
        for place, ((phase, progress), span) in enumerate(spans.items()):
            at = rows[:, place]
            at["phase"], at["progress"], at["span_ns"] = phase, progress, span
            at["start_ns"], at["during_ns"] = 100, C
            at["wait_ns"] = span - C - 100 if phase == "overlapped" else -1
            for name, value in changes.items():
                at[name] = value(number, span) if callable(value) else value
        made.append(rows.reshape(-1))
    return made


def cells(*sizes: int, compute: str = "1ms", first: int = 0) -> tuple[Cell, ...]:
    return tuple(
        Cell(first + i, "iallreduce", n, -(-n // 4) * 4, -(-n // 4), "float32", False, "gemm", compute, 90)
        for i, n in enumerate(sizes)
    )


def measured(some: tuple[Cell, ...], **changes: Any) -> tuple[Plan, History]:
    history = History()
    for cell in some:
        for visit in samples(cell.index, N[cell.nbytes], **changes):
            history.add(cell.index, visit)
    return Plan(some, ("none", "poll"), 0.05, IterationRange(50, 1000), 40.0), history


def rows(results: Results, facts: Facts = FACTS) -> dict[str, dict[str, Any]]:
    return {record.case: overlap_row(record, facts) for record in results.records}


def points(results: Results, progress: str) -> dict[str, Any]:
    return next(crossover_row(c, FACTS) for c in results.crossovers if c.progress == progress)


def test_the_columns_are_those_of_the_design() -> None:
    assert ", ".join(OVERLAP_COLUMNS) == OVERLAP
    assert ", ".join(CROSSOVER_COLUMNS) == CROSSOVER


def test_every_column_is_produced_and_read_back(tmp_path: Path) -> None:
    results = evaluate(*measured(cells(65536)), FACTS)
    directory = RunDirectory.create(tmp_path / "run")
    directory.write_table("overlap.csv", OVERLAP_COLUMNS, rows(results).values())
    frame = pandas.read_csv(directory.path / "overlap.csv")
    assert ", ".join(frame.columns) == OVERLAP
    assert set(frame.columns[frame.isna().any()]) == {"copy_in_s", "copy_out_s", "throttled"}  # no device
    known = {"case": "64K-1ms-none", "ranks": 2, "count": 16384, "iterations": 60, "effective_iterations": 60}
    known |= {"allreduce_hot_s": 50e-6, "nonblocking_hot_s": 25e-6, "overlap": 0, "wait_s": 99.9e-6, "wrong": 0}
    known |= {"busbw_Bps": 65536 / 100e-6, "poll_interval_s": 50e-6, "status": "converged", "in_place": False}
    known |= {"verdict": "no-progress", "compute_slowdown": 1, "refined": False, "thread_level": "funneled"}
    assert frame.iloc[0][list(known)].to_dict() == pytest.approx(known)
    directory.write_table("crossover.csv", CROSSOVER_COLUMNS, [crossover_row(c, FACTS) for c in results.crossovers])
    assert ", ".join(pandas.read_csv(directory.path / "crossover.csv").columns) == CROSSOVER
    assert set(crossover_row(results.crossovers[0], FACTS)) == set(CROSSOVER_COLUMNS)


def test_figures_verdicts_and_crossover_of_a_known_system() -> None:
    results = evaluate(*measured(cells(4, 65536, 1 << 20, 16 << 20)), FACTS)
    assert [row["overlap"] for row in rows(results).values()] == pytest.approx([0, 1] * 4)
    verdicts = {case: row["verdict"] for case, row in rows(results).items()}
    assert {verdicts[f"{size}-1ms-none"] for size in ("4", "64K", "1M", "16M")} == {"no-progress"}
    assert [verdicts[f"{size}-1ms-poll"] for size in ("4", "64K", "1M", "16M")] == ["hidden"] * 3 + ["comm-bound"]
    # N - C is -0.5 ms at 1 MiB and 1 ms at 16 MiB: nil after a third of the way.
    poll, none = points(results, "poll"), points(results, "none")
    assert poll["cover_nbytes"] == none["cover_nbytes"] == pytest.approx(6 << 20)
    assert poll["cover_status"] == "found"
    assert [poll[name] for name in HIDDEN] == ["found", 1 << 20, 16 << 20, 4]
    assert [none[name] for name in HIDDEN] == ["never", None, None, None]
    assert poll["compute_s"] == pytest.approx(1e-3)


def test_what_was_not_measured_is_a_row_with_its_reason_and_no_times() -> None:
    some = (
        *cells(4, 65536, 1 << 20),
        Cell(3, "iallreduce", 64, 64, 16, "float32", False, "gemm", "1ms", 90, "no room"),
    )
    plan, history = measured(some[:3])
    plan = replace(plan, cells=(*some, *cells(128, first=4)))
    history.skipped[0], history.wrong[0] = "not in this library", 3  # skipped comes before wrong-data
    history.wrong[1] = 7
    found = rows(evaluate(plan, history, FACTS))
    assert len(found) == 10
    for case, status, verdict, reason in (
        ("4-1ms-none", "skipped", "skipped", "not in this library"),
        ("64K-1ms-poll", "failed", "wrong-data", "7 wrong elements"),
        ("64-1ms-none", "skipped", "skipped", "no room"),
        ("128-1ms-poll", "not-converged", "unresolved", "the run ended before it was measured"),
    ):
        row = found[case]
        assert (row["status"], row["verdict"]) == (status, verdict)
        assert reason in row["note"]
        present = {name for name in OVERLAP_COLUMNS if name.endswith(("_s", "_Bps")) and row.get(name) is not None}
        assert present == {"poll_interval_s"}
        assert row.get("overlap") is row.get("speedup") is None
    assert found["64K-1ms-none"]["wrong"] == 7
    assert found["1M-1ms-none"]["verdict"] == "no-progress"


def test_wrong_data_comes_before_unresolved() -> None:
    plan, history = measured(cells(65536), cpu_wait_ns=C)
    assert {row["verdict"] for row in rows(evaluate(plan, history, FACTS)).values()} == {"unresolved"}
    history.wrong[0] = 1
    assert {row["verdict"] for row in rows(evaluate(plan, history, FACTS)).values()} == {"wrong-data"}


@pytest.mark.parametrize("progress", ["none", "poll"])
def test_a_size_that_was_not_measured_does_not_change_what_the_others_say(progress: str) -> None:
    plan, history = measured(cells(65536, 1 << 20, 16 << 20))
    history.skipped[2] = "too large"
    found = points(evaluate(plan, history, FACTS), progress)
    assert (found["cover_status"], found["cover_nbytes"]) == ("beyond", 1 << 20)
    status = {"none": "never", "poll": "beyond"}[progress]
    assert (found["hidden_status"], found["hidden_nbytes"]) == (status, 1 << 20 if progress == "poll" else None)


def test_rows_that_waited_for_a_core_take_no_part_in_the_crossover() -> None:
    plan, history = measured(cells(65536, 1 << 20))[0], History()
    for visit in samples(0, N[65536], cpu_wait_ns=lambda _, span: span // 10) + samples(1, N[1 << 20]):
        history.add_all(visit)
    results = evaluate(plan, history, FACTS)
    assert rows(results)["64K-1ms-poll"]["verdict"] == "unresolved"
    assert "waited for a core" in rows(results)["64K-1ms-poll"]["note"]
    assert [points(results, "poll")[name] for name in HIDDEN] == ["beyond", 1 << 20, None, 1 << 20]


def test_rounding_and_other_notes() -> None:
    facts = Facts(8, 2, "funneled", True, 1, "cpu", "host", 50e-6, False, True, True, False)
    results = evaluate(*measured(cells(1)), facts)
    row = rows(results, facts)["1-1ms-none"]
    assert (row["nbytes"], row["count"]) == (4, 1)
    for note in ("1 B asked, 4 B sent", "emulated", "more ranks than cores", "results not checked"):
        assert note in row["note"]
    assert "wrong" not in row, "nothing was compared"
    assert math.isnan(row["compute_slowdown"]), "device-driven"
    assert "emulated" in crossover_row(results.crossovers[0], facts)["note"]


@pytest.mark.parametrize(
    ("iterations", "span_ns", "status", "note"),
    [
        (1, None, "not-converged", "too few independent iterations"),
        (2, None, "not-converged", ""),
        (12, lambda number, span: span + number * US, "unstable", "iterations tell as much as one"),
        (12, lambda number, span: np.where(np.arange(12) % 2, span, 3 * span), "unresolved", "x the asked precision"),
    ],
)
def test_status(iterations: int, span_ns: Any, status: str, note: str) -> None:
    plan, history = measured(cells(65536), iterations=iterations, **({"span_ns": span_ns} if span_ns else {}))
    row = rows(evaluate(plan, history, FACTS))["64K-1ms-none"]
    assert row["status"] == status
    assert note in row["note"]


def test_crossovers_are_by_compute_then_strategy() -> None:
    plan, history = measured((*cells(65536), *cells(65536, compute="2ms", first=1)))
    results = evaluate(plan, history, FACTS)
    assert [(c.cells[0].compute, c.progress) for c in results.crossovers] == [
        (compute, progress) for compute in ("1ms", "2ms") for progress in ("none", "poll")
    ]
    assert [(record.cell.index, record.progress) for record in results.records] == [
        (index, progress) for index in (0, 1) for progress in ("none", "poll")
    ]


def jittered(number: int, span: int) -> Any:
    """A time in every iteration, about 1 % about the span, in an order that shows no dependence."""
    return span + (np.array([0, 5, -5, 3, -3, 1, -1, 4, -4, 2, -2, 0]) + number % 2) * span // 500


def test_the_plan_grows_inside_the_bracket_of_the_cover_point_and_only_there() -> None:
    plan, history = measured(cells(4, 65536, 1 << 20, 16 << 20), span_ns=jittered)
    grown = grow(plan, history, evaluate(plan, history, FACTS))
    new = grown.cells[len(plan.cells) :]
    assert grown.cells[: len(plan.cells)] == plan.cells
    # N = 1 ms at 1 MiB + 15 MiB / 3 for the cover point, of both strategies; between the hidden 1 MiB and the
    # exposed 16 MiB for the hidden point of `poll`.
    assert [(cell.index, cell.refined, cell.compute_steps, cell.nbytes % 4) for cell in new] == [
        (4, True, 90, 0), (5, True, 90, 0),
    ]  # fmt: skip
    assert new[0].nbytes == pytest.approx(6 << 20, rel=0.05)
    assert new[1].nbytes == pytest.approx(4 << 20, rel=0.01)
    assert grow(grown, history, evaluate(grown, history, FACTS)) is grown, "not before the new cells' first look"


def test_the_plan_does_not_grow_before_every_cell_had_its_first_look() -> None:
    plan, history = measured(cells(65536, 1 << 20, 16 << 20), span_ns=jittered)
    more = replace(plan, cells=(*plan.cells, *cells(4, first=3)))
    assert grow(more, history, evaluate(more, history, FACTS)) is more


def test_refined_rows_are_marked_and_stand_by_their_size() -> None:
    plan, history = measured(cells(65536, 16 << 20))
    refined = replace(cells(1 << 20, first=2)[0], refined=True)
    for visit in samples(2, N[1 << 20]):
        history.add(2, visit)
    results = evaluate(replace(plan, cells=(*plan.cells, refined)), history, FACTS)
    assert [row["nbytes"] for row in rows(results).values()] == [65536] * 2 + [1 << 20] * 2 + [16 << 20] * 2
    assert [row["refined"] for row in rows(results).values()] == [False] * 2 + [True] * 2 + [False] * 2


def test_the_rows_of_exposure_csv(tmp_path: Path) -> None:
    """`none` hides nothing under any compute; what `poll` leaves exposed is N - C, nothing from C = N on."""
    some = (*cells(65536, 1 << 20, 16 << 20), *cells(65536, 1 << 20, 16 << 20, compute="2ms", first=3))
    plan, history = measured(some, span_ns=jittered)
    results = evaluate(plan, history, FACTS)
    directory = RunDirectory.create(tmp_path / "run")
    directory.write_table("exposure.csv", EXPOSURE_COLUMNS, [exposure_row(size, False) for size in results.exposures])
    frame = pandas.read_csv(directory.path / "exposure.csv").set_index(["progress", "nbytes"])
    assert ", ".join(["nbytes", *EXPOSURE_COLUMNS[1:]]) == EXPOSURE
    assert len(frame) == 6
    assert frame.loc["none", "efficiency"].abs().max() < 0.02
    assert frame.loc["none", "hiding_compute_s"].isna().all()
    assert frame.loc[("poll", 16 << 20), "efficiency"] == pytest.approx(1.0, abs=0.02)
    assert frame.loc[("poll", 16 << 20), "hiding_compute_s"] == pytest.approx(1.9e-3, rel=0.02)


def test_a_cell_whose_clocks_do_not_tell_is_of_local_durations_in_all_its_visits() -> None:
    """Spans are as `samples` makes them, local durations twice as long; the third visit has no skew."""
    (cell,) = cells(65536)
    plan, history = measured((cell,))[0], History()
    for number, visit in enumerate(samples(0, N[65536])):
        local = visit.copy()
        local["span_ns"] *= 2
        local["skew_ns"] = -1
        history.add(0, local if number == 2 else visit, local=local)
    row = rows(evaluate(plan, history, FACTS))["64K-1ms-none"]
    assert row["nonblocking_s"] == pytest.approx(2 * N[65536] * 1e-9), "not a mixture"
    assert math.isnan(row["skew_s"])
    assert "slowest local durations: the hosts' clocks are known no better than to a fifth of N" in row["note"]
    history.early[0] = 3
    row = rows(evaluate(plan, history, FACTS))["64K-1ms-none"]
    assert "slowest local durations: by the hosts' clocks 3 messages were received before they were sent" in row["note"]


def test_clocks_that_tell_give_spans() -> None:
    (cell,) = cells(65536)
    plan, history = measured((cell,))[0], History()
    for visit in samples(0, N[65536]):
        local = visit.copy()
        local["span_ns"] *= 2
        local["skew_ns"] = -1
        history.add(0, visit, local=local)
    row = rows(evaluate(plan, history, FACTS))["64K-1ms-none"]
    assert row["nonblocking_s"] == pytest.approx(N[65536] * 1e-9)
    assert "local durations" not in row["note"]


def test_a_visit_apart_from_the_others_makes_a_row_unstable() -> None:
    """One visit of eight at 1.2 times the time: too few to look dependent, too far to be the same machine."""
    plan, history = measured(cells(65536), span_ns=jittered)
    assert rows(evaluate(plan, history, FACTS))["64K-1ms-none"]["status"] == "converged"
    for number in range(5, 8):
        factor = 1.2 if number == 7 else 1.0
        visit = samples(0, N[65536], span_ns=lambda number, span, factor=factor: jittered(number, span) * factor)[0]
        visit["visit"] = number
        history.add(0, visit)
    row = rows(evaluate(plan, history, FACTS))["64K-1ms-none"]
    assert row["iterations"] / row["effective_iterations"] <= 3
    assert row["status"] == "unstable"
    assert "between visits" in row["note"]
