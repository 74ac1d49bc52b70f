"""What a Chrome trace must be, by the document "Trace Event Format", as far as mpibench uses it."""

from typing import Any

Slice = dict[str, Any]


def ns(microseconds: float) -> int:
    """A time of the file in the nanoseconds that it stands for."""
    assert isinstance(microseconds, int | float)
    whole = round(microseconds * 1000)
    assert abs(microseconds * 1000 - whole) < 0.01, "finer than a nanosecond"
    return whole


def check_trace(document: dict[str, Any]) -> dict[tuple[int, int], list[Slice]]:
    """The slices of each thread, after every rule was checked: keys, types, order, names, nesting."""
    assert document["displayTimeUnit"] in ("ms", "ns")
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    slices: dict[tuple[int, int], list[Slice]] = {}
    last = 0
    for event in document["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        assert event["ph"] in ("M", "X")
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert set(event["args"]) == {"name"}
            names: dict[Any, str] = processes if event["name"] == "process_name" else threads
            names[event["pid"] if event["name"] == "process_name" else (event["pid"], event["tid"])] = event["args"][
                "name"
            ]
            continue
        assert isinstance(event["cat"], str)
        assert isinstance(event["args"], dict)
        assert ns(event["ts"]) >= last, "not in the order of time"
        assert ns(event["dur"]) >= 0
        last = ns(event["ts"])
        slices.setdefault((event["pid"], event["tid"]), []).append(event)
    assert set(slices) <= set(threads), "a thread has no name"
    assert {pid for pid, _ in slices} <= set(processes), "a process has no name"
    for own in slices.values():
        _check_nesting(own)
    return slices


def _check_nesting(own: list[Slice]) -> None:
    """Slices of one thread lie inside each other or side by side."""
    open_until: list[int] = []
    for event in own:
        begin, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
        while open_until and open_until[-1] <= begin and not (begin == end == open_until[-1]):
            open_until.pop()
        assert not open_until or end <= open_until[-1], f"{event['name']} overlaps the slice around it"
        open_until.append(end)
