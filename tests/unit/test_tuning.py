"""The search for the poll interval, with a bench whose times are known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpibench.engine.bench import Load
from mpibench.engine.calibrate import Calibration
from mpibench.engine.phases import phase_names
from mpibench.engine.tuning import candidates, read_tuning, tune
from mpibench.errors import WrongData
from mpibench.progress.poll import Poll
from mpibench.protocols import Cell, Marks
from mpibench.records import ABSENT, SAMPLE_COLUMNS, SAMPLE_DTYPE
from mpibench.units import parse_poll_interval

C_NS = 1_000_000
NANOSECONDS_PER_BYTE = 10  # of N
SIZES = (1 << 10, 1 << 14, 90_000, 120_000, 1 << 20)
BEST = 64  # steps between tests

guard = SimpleNamespace(enter=lambda what: None)
session: Any = SimpleNamespace(on_root=lambda work: work(), guard=guard)
cells = [Cell(i, "x", n, n, n, "x", False, "x", "1ms", 1000) for i, n in enumerate(SIZES)]
loads: Any = {"1ms": Load(None, None, None, Calibration(1000, 1e-6, 1e-3))}  # type: ignore[arg-type]


class KnownBench:
    """N grows with the message; T is least at one quantum, and each step of two away costs a tenth more."""

    visited: list[tuple[int, int]]
    wrong = 0

    def __init__(self, strategies: Any, noise_ns: float) -> None:
        self.names = phase_names(tuple(strategies))
        self.quanta = {name: strategy._quantum for name, strategy in strategies.items()}
        self.noise = np.random.default_rng(1), noise_ns

    def visit(self, cell: Cell, visit: Any, hot: bool) -> Any:
        assert not hot
        self.visited.append((cell.nbytes, len(self.quanta)))
        rows = [self.row(cell, visit, i, name) for i in range(visit.iterations) for name in self.names]
        samples = np.array(rows, dtype=[(column, SAMPLE_DTYPE[column]) for column in SAMPLE_COLUMNS])
        return SimpleNamespace(samples=samples, seconds=1.0, local=None, wrong=self.wrong)

    def row(self, cell: Cell, visit: Any, iteration: int, name: tuple[str, str]) -> Any:
        span = {"nonblocking": cell.nbytes * NANOSECONDS_PER_BYTE, "compute": C_NS}.get(name[0], 1)
        if name[0] == "overlapped":
            span = round(C_NS * (1 + 0.1 * abs(np.log2(self.quanta[name[1]] / BEST))))
        generator, sigma = self.noise if name[0] == "overlapped" else (self.noise[0], 0)
        values = dict.fromkeys(SAMPLE_COLUMNS, ABSENT) | {"cell": cell.index, "visit": visit.number}
        values |= {"iteration": iteration, "phase": name[0], "progress": name[1], "skew_ns": 0}
        return tuple((values | {"span_ns": span + round(generator.normal(0, sigma)), "tests": 7}).values())

    def release(self) -> None:
        pass


def tuned(noise_ns: float, monkeypatch: pytest.MonkeyPatch, wrong: int = 0, most_s: float = 10.0) -> Any:
    monkeypatch.setattr(KnownBench, "visited", [], raising=False)
    monkeypatch.setattr(KnownBench, "wrong", wrong)
    make: Any = lambda strategies: KnownBench(strategies, noise_ns)  # noqa: E731
    return tune(session, make, cells, loads, most_s)


def test_candidates_halve_from_all_steps_to_some_microseconds() -> None:
    assert candidates(1000, 1e-6) == [1000, 500, 250, 125, 62, 31, 16, 8]
    assert candidates(8, 30e-6) == [8, 4, 2, 1]
    assert candidates(3, 30e-6) == [3, 2, 1]
    assert len(candidates(1 << 30, 1e-6)) == 12


def test_the_interval_with_the_least_time_is_found_at_the_message_as_long_as_the_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = tuned(1000, monkeypatch)
    assert (found.nbytes, found.compute) == (90_000, "1ms")
    assert found.ratio == pytest.approx(0.9, rel=0.01)
    assert found.interval_s == pytest.approx(62e-6)
    assert [point.interval_s for point in found.points] == pytest.approx([q * 1e-6 for q in candidates(1000, 1e-6)])
    assert {point.interval_s for point in found.points if point.as_good} == {62e-6}
    assert found.points[0].overlapped_s == pytest.approx(C_NS * 1e-9 * (1 + 0.1 * np.log2(1000 / BEST)), rel=0.01)
    assert all(point.lo_s <= point.overlapped_s <= point.hi_s and point.tests == 7 for point in found.points)
    assert [size for size, candidates_ in KnownBench.visited if not candidates_] == list(SIZES[:4])  # 1M is not tried


def test_what_cannot_be_told_from_the_least_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(300_000, monkeypatch)
    least = min(point.overlapped_s for point in found.points)
    assert [p.overlapped_s for p in found.points if p.interval_s == found.interval_s] == [least]
    assert sum(point.as_good for point in found.points) > 1
    assert not found.points[0].as_good  # 40 % longer: that can be told


def test_where_none_can_be_told_from_the_least_nothing_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(50_000_000, monkeypatch)
    assert (found.told, found.interval_s) == (False, 50e-6)
    assert all(point.as_good for point in found.points)


def test_wrong_results_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongData, match="3 wrong elements at 1024 bytes"):
        tuned(0, monkeypatch, wrong=3)


def test_a_compute_of_one_step_is_not_tuned() -> None:
    whole: Any = {"n=512": Load(None, None, None, Calibration(1, 1e-3, 1e-3))}  # type: ignore[arg-type]
    assert tune(session, lambda strategies: pytest.fail("measured"), cells, whole, 10.0) is None


def test_without_time_for_a_turn_it_is_not_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A visit of four iterations of four phases takes 1 s: fifteen phases would take most of another."""
    assert tuned(1000, monkeypatch, most_s=0.5) is None
    assert all(not candidates_ for _, candidates_ in KnownBench.visited), "only the probe was made"


def test_a_candidate_polls_in_its_own_quanta_and_leaves_the_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpibench.engine import tuning

    asked = []
    work = SimpleNamespace(advance=lambda quantum: asked.append(quantum) or len(asked) > 2, finish=lambda: None)
    transfer = SimpleNamespace(Test=lambda: False)
    marks = Marks(5)
    assert tuning._Every(16).drive(work, transfer, marks) is transfer  # type: ignore[arg-type]
    assert asked == [16, 16, 16]
    assert (marks.quantum, marks.tests) == (5, 2)
    assert isinstance(tuning._Every(1)._drive.__self__, Poll)  # type: ignore[attr-defined]


def test_read_back_from_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses
    import json

    found = tuned(1000, monkeypatch)
    assert read_tuning(json.loads(json.dumps({"tuning": dataclasses.asdict(found)}))) == found
    assert read_tuning({}) is None
    assert read_tuning({"tuning": None}) is None


def test_tune_is_a_word_among_durations() -> None:
    assert parse_poll_interval("tune") is None
    assert parse_poll_interval("20us") == pytest.approx(20e-6)
    with pytest.raises(ValueError, match="or tune"):
        parse_poll_interval("tuned")
