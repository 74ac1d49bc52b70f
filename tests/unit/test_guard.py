"""What the guard says of a stuck job, and that it ends it whatever the disk does. No signals, no threads."""

from pathlib import Path
from typing import Any

import pytest

from mpibench.engine import guard as guard_module
from mpibench.engine.guard import Guard, collect_reports
from mpibench.errors import STUCK

WAITING = (
    "cell 3 (64K, 1ms), allreduce, iteration 7\n  File measure.py, line 1, in Wait\n  File bench.py, line 9, in visit"
)
COMPUTING = (
    "cell 3 (64K, 1ms), compute, iteration 7\n  File gemm.py, line 4, in step\n  File bench.py, line 9, in visit"
)


def report(folder: Path, rank: int, text: str) -> None:
    (folder / f"rank-{rank}.txt").write_text(text)


def test_the_silent_and_the_odd_one_are_named_first(tmp_path: Path) -> None:
    for rank in (0, 1, 3, 5):
        report(tmp_path, rank, WAITING)
    report(tmp_path, 4, COMPUTING)
    (tmp_path / "rank-6.part").write_text("not yet")
    lines = collect_reports(tmp_path, 7).split("\n")
    assert lines[0].startswith("  ranks 2, 6: no sign of life")
    assert lines[1].startswith("  rank 4: at cell 3 (64K, 1ms), compute, iteration 7; File gemm.py, line 4, in step")
    assert lines[2].startswith("  ranks 0, 1, 3, 5: at cell 3 (64K, 1ms), allreduce, iteration 7; File measure.py")
    stacks = lines[3:]
    assert [line for line in stacks if "stack of" in line] == [
        "  stack of rank 4, innermost call first:", "  stack of rank 0, innermost call first:",
    ]  # fmt: skip
    assert stacks[1].strip() == "File gemm.py, line 4, in step"
    assert "File bench.py, line 9, in visit" in stacks[2]


def test_all_at_one_place_are_told_once(tmp_path: Path) -> None:
    for rank in range(3):
        report(tmp_path, rank, WAITING)
    text = collect_reports(tmp_path, 3)
    assert "no sign of life" not in text
    assert text.startswith("  ranks 0, 1, 2: at cell 3")
    assert text.count("stack of") == 1


def test_nobody_reported(tmp_path: Path) -> None:
    assert collect_reports(tmp_path, 2).startswith("  ranks 0, 1: no sign of life")
    assert collect_reports(tmp_path, 1).startswith("  rank 0: no sign of life")


def test_where() -> None:
    guard = Guard(120.0)
    guard.describe = lambda iteration, phase: ("allreduce", "overlapped poll")[phase]
    assert guard.where() == "before the first cell"
    guard.enter("cell 2 (1M, 4ms)")
    assert guard.where() == "cell 2 (1M, 4ms)"
    guard.beat(0, 0)
    assert guard.where() == "cell 2 (1M, 4ms), allreduce, iteration 0"
    guard.beat(12, 1)
    assert guard.where() == "cell 2 (1M, 4ms), overlapped poll, iteration 12"
    guard.enter("writing the last tables")
    assert guard.where() == "writing the last tables"


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A guard whose ends are recorded: what it said, with which status the job was ended."""
    guard: Any = Guard(2.5)
    guard.said, guard.order = [], []
    guard.flush = lambda ended: guard.order.append(f"flush {ended}")

    def abort(status: int) -> None:
        guard.order.append(f"abort {status}")
        raise Ended

    guard.abort = abort
    guard._say = lambda text: (guard.said.append(text), guard.order.append("say"))
    monkeypatch.setattr(guard_module.time, "sleep", lambda seconds: None)
    return guard


def test_a_stuck_job_is_told_with_the_cell_and_the_ranks_and_ended(stuck: Any, tmp_path: Path) -> None:
    stuck.directory, stuck.ranks = tmp_path, 2
    stuck.enter("cell 5 (1K, 1ms)")
    with pytest.raises(Ended):
        stuck._end_stuck()
    assert [word.split()[0] for word in stuck.order] == ["flush", "say", "abort"]
    assert stuck.order[-1] == f"abort {STUCK}"
    (text,) = stuck.said
    for part in ("stuck: no phase finished for 2.5 s (--watchdog); cell 5 (1K, 1ms)", "rank 1: no sign of life",
                 "rank 0: at cell 5 (1K, 1ms)", f"what was measured is in {tmp_path}"):  # fmt: skip
        assert part in text
    assert (tmp_path / "stuck" / "rank-0.txt").read_text().startswith("cell 5 (1K, 1ms)\n")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stuck_job_is_ended_without_a_directory(stuck: Any, rank: int) -> None:
    stuck.rank = rank
    with pytest.raises(Ended):
        stuck._end_stuck()
    assert stuck.order[-1] == f"abort {STUCK}"
    assert f"rank {rank} is stuck: before the first cell" in "".join(stuck.said)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stuck_job_is_ended_though_its_directory_takes_no_report(stuck: Any, tmp_path: Path, rank: int) -> None:
    (tmp_path / "stuck").write_text("a full disk and a lost mount fail here as this file makes it fail")
    stuck.directory, stuck.rank = tmp_path, rank
    with pytest.raises(Ended):
        stuck._end_stuck()
    assert stuck.order[-1] == f"abort {STUCK}"
    assert "before the first cell" in "".join(stuck.said)


def test_a_job_is_ended_though_its_tables_cannot_be_written(stuck: Any) -> None:
    def full(ended: str) -> None:
        raise OSError("no space")

    stuck.flush = full
    with pytest.raises(Ended):
        stuck.end(143, "ended by SIGTERM")
    assert stuck.order == ["say", "abort 143"]
    assert "the tables could not be brought up to date: no space" in stuck.said[0]
