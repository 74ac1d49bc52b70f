"""The measuring loop. Knows phases, a sync, an order; no names, files, options or printing."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mpibench.protocols import Marks, Phase

# Columns of the array that `measure` fills, one row per iteration and phase. Nanoseconds but
# for tests, position (place within the iteration) and wrong (elements). ABSENT: has no such part.
BEGIN, END, START, DURING, TEST, TESTS, WAIT, CPU_WAIT, POSITION, WRONG = range(10)
FIELDS = 10
ABSENT = -1


@contextmanager
def _without_collection() -> Iterator[None]:
    """No garbage collection inside; also a decorator."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@_without_collection()
def measure(
    phases: Sequence[Phase],
    order: Sequence[Sequence[int]],
    *,
    first_round: int,
    preamble: Callable[[], None],
    sync: Callable[[], None],
    keep_going: Callable[[], bool],
    cpu_wait: Callable[[], int],
    beat: Callable[[int, int], None],
    marks: Marks,
    out: Any,
) -> int:
    """Run every phase once per iteration in the given order; return the iterations that were run.

    Args:
        phases: what is timed.
        order: a permutation of the phases per iteration, the same on all ranks.
        first_round: number that makes the test values of this visit differ from all others.
        preamble: brings the core to what a step sees after computing; untimed.
        sync: a barrier, before and after every phase.
        keep_going: asked before every iteration but the first; all ranks must get the same answer.
        cpu_wait: nanoseconds that this thread was runnable but not running so far.
        beat: told (iteration, phase) before every phase: a sign of life.
        marks: the stamps' place, and the clock.
        out: int64 array, (iterations, phases, FIELDS), written in place.
    """
    for iteration, row in enumerate(order):
        if iteration and not keep_going():
            return iteration
        for position, index in enumerate(row):
            phase = phases[index]
            round_ = first_round + iteration * len(phases) + position
            beat(iteration, index)
            phase.prepare(round_)
            marks.reset()
            preamble()
            sync()
            waited = cpu_wait()
            phase.run(marks)
            waited = cpu_wait() - waited
            sync()
            out[iteration, index] = (*_parts(marks), waited, position, phase.check(round_))
    return len(order)


@_without_collection()
def measure_hot(phase: Phase, *, sync: Callable[[], None], marks: Marks, begin: Any, end: Any) -> None:
    """The hot loop of OSU and IMB: a barrier and the phase, again and again, nothing in between.

    Args:
        phase: B or N; prepared and checked by the caller, once around the loop.
        sync: a barrier.
        marks: the stamps' place.
        begin, end: int64 arrays of one element per call, nanoseconds, written in place.
    """
    run = phase.run
    for call in range(len(begin)):
        sync()
        run(marks)
        begin[call] = marks.begin
        end[call] = marks.end


def _parts(marks: Marks) -> tuple[int, int, int, int, int, int, int]:
    """Begin and end, and the time from stamp to stamp, for those stamps that the phase has."""
    start = marks.started - marks.begin if marks.started else ABSENT
    during = marks.computed - (marks.started or marks.begin) if marks.computed else ABSENT
    last = marks.computed or marks.started
    waits = marks.started or (marks.computed and marks.computed != marks.end)
    wait = marks.end - last if waits else ABSENT
    overlapped = marks.started and marks.computed
    return (
        marks.begin,
        marks.end,
        start,
        during,
        marks.test_ns if overlapped else ABSENT,
        marks.tests if overlapped else ABSENT,
        wait,
    )
