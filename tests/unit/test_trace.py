"""trace.json: the right slices at the right times, in the trace-event format, kept when a run goes on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpibench.engine import measure
from mpibench.engine.fold import Iteration
from mpibench.engine.phases import phase_names
from mpibench.engine.session import Host
from mpibench.engine.trace import Trace
from mpibench.errors import UsageError
from tests.unit.trace_format import check_trace

HOSTS = [Host("n1", "a", (0,), 10), Host("n1", "a", (1,), 11), Host("n2", "b", (0,), 10)]
NAMES = phase_names(("none", "poll"))
BOOT = 8_000_000_000_000_000
# By phase: begin within the iteration, start, during, test, tests, wait; -1: has no such part.
PHASES = {
    ("allreduce", ""): (10_000, -1, -1, -1, -1, -1, 900),
    ("nonblocking", ""): (20_000, 300, -1, -1, -1, 700, 1000),
    ("compute", ""): (0, -1, 4001, -1, -1, -1, 4001),
    ("sequential", ""): (30_000, -1, 4002, -1, -1, 900, 4902),
    ("overlapped", "none"): (40_000, 300, 4003, 0, 0, 650, 4953),
    ("overlapped", "poll"): (50_000, 301, 4100, 77, 7, 0, 4401),
}


def iteration(number: int = 4, late: int = 123) -> Iteration:
    """Three ranks, each `late` ns after the one before."""
    stamps = np.zeros((3, len(NAMES), measure.FIELDS), dtype=np.int64)
    for rank in range(3):
        for index, name in enumerate(NAMES):
            begin, start, during, test, tests, wait, lasts = PHASES[name]
            begin += BOOT + rank * late
            stamps[rank, index] = (begin, begin + lasts, start, during, test, tests, wait, 5000 * rank, index, 0)
    return Iteration(2, number, NAMES, stamps, 1500.0)


def document(trace: Trace, *order: str) -> dict[str, Any]:
    return json.loads(json.dumps(trace.document(order)))


def named(slices: list[dict[str, Any]], case: str) -> dict[str, list[tuple[float, float]]]:
    """Times and lengths by name, of one case, from its beginning on."""
    mine = [event for event in slices if event["args"]["case"] == case]
    zero = next(event["ts"] for event in mine if event["cat"] == "case")
    found: dict[str, list[tuple[float, float]]] = {}
    for event in mine:
        found.setdefault(event["name"], []).append((round(event["ts"] - zero, 3), event["dur"]))
    return found


def test_every_phase_and_its_parts_of_every_rank(tmp_path: Path) -> None:
    trace = Trace(HOSTS, tmp_path)
    trace.add("1K-4us-poll", "poll", iteration())
    slices = check_trace(document(trace, "1K-4us-poll"))
    assert set(slices) == {(0, 0), (0, 1), (1, 2)}, "a process is a host, a thread a rank"
    first = [slices[place][0]["ts"] for place in ((0, 0), (0, 1), (1, 2))]
    assert first == [0, 0.123, 0.246], "on one clock"
    for own in slices.values():
        assert named(own, "1K-4us-poll") == {
            "1K-4us-poll": [(0, 54.401)],
            "compute": [(0, 4.001), (30, 4.002)],
            "allreduce": [(10, 0.9), (34.002, 0.9)],
            "nonblocking": [(20, 1)],
            "start": [(20, 0.3), (50, 0.301)],
            "wait": [(20.3, 0.7), (54.401, 0)],
            "sequential": [(30, 4.902)],
            "overlapped poll": [(50, 4.401)],
            "during": [(50.301, 4.1)],
            "test total": [(50.301, 0.077)],
        }
    about = slices[0, 0][0]["args"]
    assert about == {"case": "1K-4us-poll", "visit": 2, "iteration": 4, "clock_uncertainty_us": 1.5}
    poll = next(event for event in slices[1, 2] if event["name"] == "test total")
    assert poll["args"]["tests"] == 7
    compute = next(event for event in slices[1, 2] if event["name"] == "compute")
    assert compute["args"]["waited_for_a_core_us"] == 10


@pytest.mark.parametrize("gained", [-3, 3])
def test_a_clock_that_counts_faster_than_rank_0s_leaves_the_parts_inside_the_phase(tmp_path: Path, gained: int) -> None:
    made = iteration()
    made.stamps[1:, :, measure.END] += gained
    trace = Trace(HOSTS, tmp_path)
    trace.add("a-poll", "poll", made)
    slices = check_trace(document(trace, "a-poll"))
    ends = {
        event["cat"]: event["ts"] + event["dur"] for event in slices[1, 2] if event["name"] in ("wait", "allreduce")
    }
    for event in slices[1, 2]:
        if event["cat"] in ends and event["name"].startswith(event["cat"]):
            assert event["ts"] + event["dur"] == pytest.approx(ends[event["cat"]], abs=1e-6), "no gap either"


def test_names_of_hosts_and_ranks(tmp_path: Path) -> None:
    events = Trace(HOSTS, tmp_path).document(())["traceEvents"]
    assert [(event["name"], event["pid"], event["tid"], event["args"]["name"]) for event in events] == [
        ("process_name", 0, 0, "n1"),
        ("process_name", 1, 0, "n2"),
        ("thread_name", 0, 0, "rank 0"),
        ("thread_name", 0, 1, "rank 1"),
        ("thread_name", 1, 2, "rank 2"),
    ]


def test_cases_lie_end_to_end_in_the_order_of_the_table(tmp_path: Path) -> None:
    trace = Trace(HOSTS, tmp_path)
    trace.add("b-poll", "poll", iteration())
    trace.add("a-none", "none", iteration())
    slices = check_trace(document(trace, "a-none", "not-measured", "b-poll"))
    for own in slices.values():
        cases = [event for event in own if event["cat"] == "case"]
        assert [event["name"] for event in cases] == ["a-none", "b-poll"]
        assert cases[0]["ts"] + cases[0]["dur"] < cases[1]["ts"]
        assert "overlapped poll" not in named(own, "a-none"), "another case's"


def test_a_run_that_goes_on_keeps_what_is_not_measured_again(tmp_path: Path) -> None:
    trace = Trace(HOSTS, tmp_path)
    for case in ("a-none", "b-none"):
        trace.add(case, "none", iteration())
    before = document(trace, "a-none", "b-none")
    (tmp_path / "trace.json").write_text(json.dumps(before))
    again = Trace(HOSTS, tmp_path)
    assert document(again, "a-none", "b-none") == before
    again.add("b-none", "none", iteration(number=9))
    slices = check_trace(document(again, "a-none", "b-none"))
    cases = [event["args"] for event in slices[0, 0] if event["cat"] == "case"]
    assert [(about["case"], about["iteration"]) for about in cases] == [("a-none", 4), ("b-none", 9)]


@pytest.mark.parametrize("text", ["", "[]", '{"traceEvents": [{"ph": "X"}]}'])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(UsageError, match=r"trace\.json is not a trace"):
        Trace(HOSTS, tmp_path)
