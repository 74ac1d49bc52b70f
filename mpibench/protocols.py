"""The protocols that plugins keep, and the small frozen types that pass between the layers.

Times inside a phase are integer nanoseconds of one monotonic clock; everything else is seconds
and bytes. Imports nothing of the project and neither MPI nor numpy at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Protocol

# The phases of a cell, in the words of samples.csv. B, N, C, S and T in docs/overlap.md.
ALLREDUCE = "allreduce"
NONBLOCKING = "nonblocking"
COMPUTE = "compute"
SEQUENTIAL = "sequential"
OVERLAPPED = "overlapped"
ALLREDUCE_HOT = "allreduce-hot"
NONBLOCKING_HOT = "nonblocking-hot"

TOLD = "ending"
"""File in a run's directory, made by the rank that ends the job: only one speaks."""


class Work(Protocol):
    """Compute that has been begun."""

    elapsed_ns: int
    """Time the kernel itself took, known after `finish`, in nanoseconds."""

    def advance(self, quantum: int) -> bool:
        """Let at most `quantum` steps pass; True once all steps are done."""

    def finish(self) -> None:
        """Return when all steps are done and their results are visible to the host."""


class Transfer(Protocol):
    """Communication that has been begun. The verbs are spelled as in mpi4py: a request is one as it is."""

    def Test(self) -> bool:
        """Give the library a chance to progress; True once complete. Must not block."""

    def Wait(self) -> None:
        """Return when complete: the receive buffer holds the result, the send buffer is free."""


class Collective(Protocol):
    """A collective operation, blocking and non-blocking, on buffers given beforehand."""

    def prepare(self, comm: Any, buffers: Any) -> None:
        """Bind to a communicator and to buffers with `send` and `receive` MPI specifications.

        Raises:
            Unsupported: if the MPI library lacks it.
        """

    def start(self) -> Transfer:
        """Start the non-blocking operation."""

    def blocking(self) -> None:
        """Run the blocking operation that a program would use instead."""

    def release(self) -> None:
        """Free what `prepare` made."""


class Progress(Protocol):
    """What the host does between start and wait."""

    def drive(self, work: Work, transfer: Transfer, marks: Marks) -> Transfer:
        """Run `work` to its end in quanta of `marks.quantum` steps, progressing `transfer`.

        Adds the time inside tests and their number to `marks`. Returns what is left to wait for:
        `transfer`, or what stands for it where something else waits for that.
        """


class Kernel(Protocol):
    """A compute kernel: fixed work in equal steps."""

    device_driven: bool
    """True if the host is free while it runs."""
    emulated: bool
    """True if no device really computes; said wherever its figures show."""
    takes_order: bool
    """Whether `order` means something to it."""
    step_s: float | None
    """Seconds of a step where it is known by definition; None where it is to be calibrated."""

    def __init__(self, array_module: Any, dtype: str, order: int | None) -> None:
        """Allocate with numpy or cupy; `order` is the GEMM order that the user asked for."""

    def step(self) -> None:
        """Run (numpy) or enqueue on the current stream (cupy) one step."""

    def verify(self) -> bool:
        """Whether the last steps computed the right result."""


class Marks:
    """Time stamps of one phase, written between clock reads and copied out afterwards.

    Args:
        quantum: steps between two tests.
        clock: tells nanoseconds; a test moves one by hand.
    """

    __slots__ = ("begin", "clock", "computed", "end", "quantum", "started", "test_ns", "tests")

    def __init__(self, quantum: int = 1, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.quantum, self.clock = quantum, clock
        self.reset()

    def reset(self) -> None:
        """Forget the phase before."""
        self.begin = 0  # the phase began
        self.started = 0  # the start call returned; 0 without one
        self.computed = 0  # the compute was done; 0 without one
        self.end = 0  # the phase ended
        self.test_ns = 0  # spent inside tests
        self.tests = 0  # number of tests


class Phase(Protocol):
    """One thing that is timed."""

    def prepare(self, iteration: int) -> None:
        """Fill the send buffer for this iteration and poison the receive buffer. Untimed."""

    def run(self, marks: Marks) -> None:
        """The timed part; writes the stamps."""

    def check(self, iteration: int) -> int:
        """Number of wrong elements in the result. Untimed."""


@dataclass(frozen=True)
class Cell:
    """One collective, one message size, one kernel with fixed work, on one communicator."""

    index: int  # position in the sweep, the `cell` column
    collective: str  # a word of the registry
    asked_nbytes: int  # message size as asked for, in bytes
    nbytes: int  # message size that is sent: whole elements
    count: int  # its elements
    dtype: str  # numpy name of the element type
    in_place: bool  # MPI_IN_PLACE instead of a send buffer
    kernel: str  # a word of the registry
    compute: str  # compute as asked for: "1ms" or "n=512"
    compute_steps: int  # fixed number of the kernel's steps
    skip: str = ""  # why it cannot be measured; empty if it can
    refined: bool = False  # not asked for: measured to know a crossover more exactly


@dataclass(frozen=True)
class Record:
    """One row of overlap.csv: a case (a cell under a strategy) with its figures, or the reason it has none."""

    case: str  # its name, such as "64K-1ms-poll"
    cell: Cell  # what was measured
    progress: str  # the strategy
    status: str  # converged, not-converged, unstable, unresolved, failed or skipped
    verdict: str = ""  # a word of analysis.verdict
    evidence: str = ""  # the sentence behind the verdict
    advice: str = ""  # what to try
    notes: tuple[str, ...] = ()  # what could mislead, joined in the `note` column
    figures: Mapping[str, float] = field(default_factory=dict)  # column name to SI value


@dataclass(frozen=True)
class Caution:
    """Something that could mislead: shown on stderr once and kept in run.json."""

    code: str  # a stable word, such as "oversubscribed"
    text: str  # one sentence: what it is and what to do
