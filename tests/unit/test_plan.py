"""The plan and the rule of stopping: decisions one by one, and whole runs on synthetic samples."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mpibench.engine.history import History
from mpibench.engine.plan import Plan, Visit, level, next_visit, outcome
from mpibench.engine.stopping import decide, is_look
from mpibench.protocols import Cell
from mpibench.records import SAMPLE_DTYPE
from mpibench.units import IterationRange

STRATEGIES = ("none", "poll")
VISIT = 12  # iterations of a full visit: six phases make blocks of six
NOISE = 0.02  # standard deviation of every time, as a share of it
# With C = 1 ms: the half-width of overlap is about 2.5 sqrt(2) 0.02 C / N / sqrt(iterations), to be at most 5 %.
EASY, LONGER, HOPELESS = 1_000_000, 100_000, 10_000  # N in ns: needs 4, about 350, about 35000 iterations


def cell(index: int, skip: str = "") -> Cell:
    return Cell(index, "iallreduce", 1 << index, 1 << index, 1 << index, "float32", False, "gemm", "1ms", 10, skip)


def plan(cells: int, iterations: tuple[int, int] = (50, 1000), budget_s: float = math.inf) -> Plan:
    return Plan(tuple(cell(i) for i in range(cells)), STRATEGIES, 0.05, IterationRange(*iterations), budget_s)


def samples_of(visit: Visit, iterations: int, nonblocking_ns: int) -> Any:
    """A serial system: T = N + C, all with independent noise."""
    rng = np.random.default_rng([visit.cell, visit.number])
    typical = {"allreduce": 0, "nonblocking": 0, "compute": 1_000_000, "sequential": 1_000_000}
    names = [(phase, "") for phase in typical] + [("overlapped", strategy) for strategy in STRATEGIES]
    rows = np.full((iterations, len(names)), -1, dtype=SAMPLE_DTYPE)
    rows["cell"], rows["visit"], rows["iteration"] = visit.cell, visit.number, np.arange(iterations)[:, None]
    for place, (phase, strategy) in enumerate(names):
        mean = typical.get(phase, 1_000_000) + (nonblocking_ns if phase != "compute" else 0)
        rows["phase"][:, place], rows["progress"][:, place] = phase, strategy
        rows["span_ns"][:, place] = mean * (1 + NOISE * rng.standard_normal(iterations))
    rows["slowest_rank"], rows["cpu_wait_ns"], rows["skew_ns"] = 0, 0, 0
    return rows.reshape(-1)


def run(
    plan_: Plan, nonblocking_ns: Mapping[int, int], iteration_s: float = 1e-3, history: History | None = None
) -> tuple[list[Visit], History]:
    """Measure to the end, every iteration at a cost of `iteration_s`."""
    history = History() if history is None else history
    visits: list[Visit] = []
    elapsed_s = 0.0
    while (visit := next_visit(plan_, history, elapsed_s)) is not None:
        visits.append(visit)
        assert len(visits) < 5000
        elapsed_s += visit.iterations * iteration_s
        history.add(
            visit.cell, samples_of(visit, visit.iterations, nonblocking_ns[visit.cell]), visit.iterations * iteration_s
        )
    return visits, history


@pytest.fixture(scope="module")
def whole() -> tuple[Plan, list[Visit], History]:
    sweep = plan(4)
    return (sweep, *run(sweep, {0: EASY, 1: HOPELESS, 2: LONGER, 3: EASY}))


def test_a_whole_run_ends_with_every_cell_decided(whole: Any) -> None:
    sweep, _, history = whole
    assert [outcome(sweep, history, i) for i in range(4)] == ["converged", "futile", "converged", "converged"]
    assert [history.iterations(i) for i in (0, 1, 3)] == [60] * 3  # 5 visits of 12
    assert 200 < history.iterations(2) < 1000


def test_a_pass_visits_every_unfinished_cell_once_in_order(whole: Any) -> None:
    _, visits, _ = whole
    passes = [[visit.cell for visit in visits if visit.number == number] for number in range(visits[-1].number + 1)]
    assert [visit.number for visit in visits] == sorted(visit.number for visit in visits)
    assert passes[:5] == [[0, 1, 2, 3]] * 5
    assert passes[5:]
    assert all(cells == [2] for cells in passes[5:])
    assert len(passes) in (18, 27, 41, 62)  # it stopped at a look
    assert all(visit.iterations == VISIT for visit in visits)


@pytest.mark.parametrize("strategies", [("none",), ("none", "poll"), ("a", "b", "c")])
def test_a_full_visit_is_about_ten_iterations_in_whole_blocks(strategies: tuple[str, ...]) -> None:
    phases = 4 + len(strategies)
    block = phases if phases % 2 == 0 else 2 * phases
    length = replace(plan(1), strategies=strategies).visit_length
    assert length % block == 0
    assert 7 <= length <= 14


@pytest.mark.parametrize("n", [1, 5, 6, 12, 13, 50, 137])
def test_one_number_is_exactly_so_many_iterations(n: int) -> None:
    _, history = run(plan(3, (n, n)), dict.fromkeys(range(3), EASY))
    assert [history.iterations(i) for i in range(3)] == [n] * 3


def test_at_least_so_many_iterations_and_never_more_than_the_most() -> None:
    _, history = run(plan(2, (200, 230)), {0: EASY, 1: HOPELESS})
    assert history.iterations(0) == 216  # 17 visits would do, the next look is at 18
    assert history.iterations(1) in (216, 230)
    _, history = run(plan(1, (6, 1000)), {0: EASY})
    assert history.visits(0) == 5


def test_what_cannot_run_is_never_visited() -> None:
    sweep = replace(plan(3), cells=(cell(0), cell(1, skip="too large"), cell(2)))
    history = History()
    history.skipped[2] = "not in this library"
    visits, _ = run(sweep, {0: EASY}, history=history)
    assert {visit.cell for visit in visits} == {0}


@pytest.mark.parametrize(("elapsed_s", "more"), [(0.0, True), (38.9, True), (39.0, False), (500.0, False)])
def test_the_budget_ends_it_a_second_before(elapsed_s: float, more: bool) -> None:
    assert (next_visit(plan(2, budget_s=40.0), History(), elapsed_s) is not None) is more


def test_a_share_is_what_is_left_over_the_visits_of_the_first_five_passes() -> None:
    sweep, history = plan(4, budget_s=41.0), History()
    first = next_visit(sweep, history, 0.0)
    assert first == Visit(0, 0, VISIT, 40 / 20)
    history.add(0, samples_of(first, VISIT, LONGER), 1.0)
    second = next_visit(sweep, history, 2.0)
    assert second == Visit(1, 0, VISIT, pytest.approx((38 - 4 * 1.0) / 15))  # four more visits of the first, 1 s each
    for number in range(7):
        for index in range(4):
            if history.visits(index) <= number:
                history.add(index, samples_of(Visit(index, number, VISIT, 0.0), VISIT, LONGER), 1.0)
    late = next_visit(sweep, history, 31.0)
    # Past the fifth pass: this pass's visits only, at 1 s each, and 5 s that nobody needs.
    assert late == Visit(0, 7, VISIT, pytest.approx(1 + 5))


@pytest.mark.parametrize(("cost_s", "iterations"), [(0.1, VISIT), (0.2, 6), (0.3, 6), (0.375, 5), (1.5, 1), (50.0, 1)])
def test_a_visit_is_as_long_as_its_share_allows_in_whole_blocks(cost_s: float, iterations: int) -> None:
    history = History()
    history.add(0, samples_of(Visit(0, 0, VISIT, 0.0), VISIT, EASY), cost_s * VISIT)
    visit = next_visit(plan(1, budget_s=11.0), history, 2.0)  # 8 s for 4 visits
    assert visit is not None
    assert (visit.share_s, visit.iterations) == (pytest.approx(2.0 if cost_s > 0.1 else 1.2 + 3.2), iterations)


def test_a_budget_too_small_is_shared_by_all_and_spent() -> None:
    visits, history = run(plan(10, budget_s=7.0), dict.fromkeys(range(10), EASY), iteration_s=0.05)
    # 6 s are 120 iterations; the first pass cannot know the cost.
    assert Counter(visit.cell for visit in visits if visit.number == 0) == dict.fromkeys(range(10), 1)
    assert sum(history.iterations(i) for i in range(10)) == pytest.approx(120, abs=2)


def test_a_run_read_back_is_gone_on_with_as_if_it_had_not_ended() -> None:
    sweep = plan(3, budget_s=100.0)
    live, everything = History(), np.empty(0, SAMPLE_DTYPE)
    for _ in range(100):
        visit = next_visit(sweep, live, 10.0)
        read_back = History()
        read_back.add_all(everything)
        assert next_visit(sweep, read_back, 10.0) == visit
        if visit is None:
            break
        made = samples_of(visit, visit.iterations, (EASY, HOPELESS, LONGER)[visit.cell])
        live.add(visit.cell, made)
        everything = np.concatenate([everything, made])
    assert [outcome(sweep, read_back, i) for i in range(3)] == [outcome(sweep, live, i) for i in range(3)]
    assert [read_back.visits(i) for i in range(3)] == [live.visits(i) for i in range(3)]


def test_one_cell_alone_read_back_has_all_its_visits() -> None:
    history = History()
    history.add_all(np.concatenate([samples_of(Visit(0, number, 4, 0.0), 4, EASY) for number in range(3)]))
    assert (history.visits(0), history.iterations(0)) == (3, 12)


@pytest.mark.parametrize(
    ("worst", "iterations", "visits", "wanted"),
    [
        (0.5, 49, 9, "go-on"),  # fewer than 50
        (0.5, 60, 4, "go-on"),  # fewer than 5 visits
        (0.5, 50, 5, "converged"),
        (1.0, 50, 5, "converged"),
        (1.1, 50, 5, "go-on"),
        (4.4, 50, 5, "go-on"),  # needs 968 iterations
        (4.5, 50, 5, "futile"),  # needs 1013
        (math.inf, 50, 5, "futile"),
        (1.01, 990, 93, "futile"),
        (1.01, 990, 90, "go-on"),  # no look before the 93rd visit
        (0.5, 80, 7, "go-on"),
        (0.5, 90, 8, "converged"),
        (0.9, 1000, 90, "converged"),
        (1.01, 1000, 90, "exhausted"),
        (math.inf, 3, 5, "go-on"),
    ],
)
def test_when_a_cell_has_enough(worst: float, iterations: int, visits: int, wanted: str) -> None:
    assert decide(worst, iterations, visits, IterationRange(50, 1000), VISIT) == wanted


def test_looks_are_half_as_many_visits_apart_again() -> None:
    assert [visits for visits in range(1, 100) if is_look(visits)] == [5, 8, 12, 18, 27, 41, 62, 93]


def test_the_end_of_the_time_is_a_look() -> None:
    assert decide(0.9, 80, 7, IterationRange(50, 1000), VISIT, last=True) == "converged"
    assert decide(1.1, 80, 7, IterationRange(50, 1000), VISIT, last=True) == "go-on"
    assert decide(0.9, 40, 7, IterationRange(50, 1000), VISIT, last=True) == "go-on"


@pytest.mark.parametrize(
    ("left_s", "due", "wanted"),
    [
        (10, [(math.inf, 5)], 2.0),
        (10, [(1.0, 4), (math.inf, 2)], 3.0),
        (10, [(1.0, 4), (2.5, 1), (math.inf, 1)], 3.5),
        (10, [(5.0, 4)], 2.5),
        (10, [(1.0, 4), (2.0, 2)], 4.0),  # all fit, and 2 s are left over
    ],
)
def test_what_cheap_visits_leave_goes_to_the_others(left_s: float, due: list[tuple[float, int]], wanted: float) -> None:
    assert level(left_s, due) == pytest.approx(wanted)


def test_five_visits_are_not_asked_of_a_cell_that_cannot_have_them() -> None:
    assert decide(0.5, 24, 2, IterationRange(20, 24), VISIT) == "converged"
    assert decide(2.0, 24, 2, IterationRange(20, 24), VISIT) == "exhausted"
    assert decide(0.5, 20, 2, IterationRange(20, 24), VISIT) == "converged"
