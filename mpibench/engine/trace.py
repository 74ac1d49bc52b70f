"""trace.json: a typical iteration of each case as Chrome trace events, every rank's on one clock.

A process is a host, a thread a rank. Cases are laid end to end, each from 0 on; in a case a phase
stands where it ran. Opens in Perfetto. The format: "Trace Event Format", complete (X) and metadata
(M) events, microseconds.
"""

import json
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from mpibench.engine import measure
from mpibench.engine.fold import Iteration
from mpibench.engine.session import Host
from mpibench.errors import UsageError
from mpibench.protocols import ALLREDUCE, COMPUTE, OVERLAPPED, SEQUENTIAL

Event = dict[str, Any]
_US = 1000  # nanoseconds
_GAP = 0.1  # between cases, of the one before


class Trace:
    """The typical iterations of a run's cases.

    Args:
        hosts: by rank.
        directory: the run's; cases that its trace.json has already are kept until they are measured again.

    Raises:
        UsageError: if its trace.json is none.
    """

    def __init__(self, hosts: Sequence[Host], directory: Path) -> None:
        names = list(dict.fromkeys(host.name for host in hosts))
        self._places = [(names.index(host.name), rank) for rank, host in enumerate(hosts)]
        self._names = names
        self._cases = _read(directory / "trace.json")

    def add(self, case: str, strategy: str, iteration: Iteration) -> None:
        """The iteration that stands for a case from here on."""
        self._cases[case] = list(self._events(case, strategy, iteration))

    def document(self, order: Sequence[str]) -> dict[str, Any]:
        """The content of trace.json; the cases in this order."""
        events, begin = list(self._metadata()), 0
        for case in order:
            moved = self._cases.get(case, [])
            events += sorted(({**event, "ts": _rounded(event["ts"] + begin)} for event in moved), key=_place)
            begin += ceil((1 + _GAP) * max((event["ts"] + event["dur"] for event in moved), default=0.0))
        return {"traceEvents": events, "displayTimeUnit": "ns"}

    def _metadata(self) -> Iterator[Event]:
        for pid, name in enumerate(self._names):
            yield {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, rank in self._places:
            yield {"name": "thread_name", "ph": "M", "pid": pid, "tid": rank, "args": {"name": f"rank {rank}"}}

    def _events(self, case: str, strategy: str, iteration: Iteration) -> Iterator[Event]:
        """A case's slices from 0 on, those of other strategies left out."""
        shown = [index for index, name in enumerate(iteration.names) if name[1] in ("", strategy)]
        stamps = iteration.stamps[:, shown]
        zero = int(stamps[..., measure.BEGIN].min())
        about = {"case": case, "visit": iteration.visit, "iteration": iteration.number}
        if iteration.uncertainty_ns < float("inf"):
            about["clock_uncertainty_us"] = iteration.uncertainty_ns / _US
        for (pid, rank), own in zip(self._places, stamps.tolist(), strict=True):
            base: Event = {"ph": "X", "pid": pid, "tid": rank}
            begin = min(part[measure.BEGIN] for part in own)
            end = max(part[measure.END] for part in own)
            yield _slice(base, case, "case", begin - zero, end - begin, about)
            for index, part in zip(shown, own, strict=True):
                for name, at, lasts, args in _parts(*iteration.names[index], part):
                    yield _slice(base, name, iteration.names[index][0], at - zero, lasts, {"case": case, **args})


def _parts(phase: str, strategy: str, stamps: list[int]) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """A phase and what it is made of: name, begin and length in nanoseconds, arguments.

    The parts were timed by the rank's own clock, the phase's ends are by rank 0's, which may count some
    nanoseconds more or less: the last part takes up the difference.
    """
    begin, end = stamps[measure.BEGIN], stamps[measure.END]
    waited = {"waited_for_a_core_us": stamps[measure.CPU_WAIT] / _US} if stamps[measure.CPU_WAIT] >= 0 else {}
    yield " ".join(filter(None, (phase, strategy))), begin, end - begin, waited
    if phase == COMPUTE:
        return
    start, during, wait = (stamps[field] for field in (measure.START, measure.DURING, measure.WAIT))
    started = min(begin + max(start, 0), end)
    computed = min(started + max(during, 0), end)
    if start >= 0:
        yield "start", begin, started - begin, {}
    if during >= 0:
        yield (COMPUTE if phase == SEQUENTIAL else "during"), started, computed - started, {}
        if phase == OVERLAPPED and stamps[measure.TESTS] > 0:
            tests = min(stamps[measure.TEST], computed - started)
            yield "test total", started, tests, {"tests": stamps[measure.TESTS]}
    if wait >= 0:
        yield (ALLREDUCE if phase == SEQUENTIAL else "wait"), computed, end - computed, {}


def _slice(base: Event, name: str, category: str, at_ns: int, lasts_ns: int, args: dict[str, Any]) -> Event:
    return {**base, "name": name, "cat": category, "ts": at_ns / _US, "dur": lasts_ns / _US, "args": args}


def _rounded(microseconds: float) -> float:
    return round(microseconds, 3)


def _place(event: Event) -> tuple[float, float]:
    """In the order of time, a slice before those inside it."""
    return event["ts"], -event["dur"]


def _read(path: Path) -> dict[str, list[Event]]:
    """The cases of an earlier launch, each from 0 on."""
    if not path.exists():
        return {}
    cases: dict[str, list[Event]] = {}
    try:
        for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
            if event["ph"] == "X":
                cases.setdefault(event["args"]["case"], []).append(event)
        for case, events in cases.items():
            zero = min(event["ts"] for event in events)
            cases[case] = [{**event, "ts": _rounded(event["ts"] - zero)} for event in events]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--resume {path.parent}: {path.name} is not a trace: {error}; move it away") from error
    return cases
