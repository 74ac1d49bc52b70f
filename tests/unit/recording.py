"""Doubles that record order and punish a wrong one: a cupy whose streams run late, an MPI that reads at once.

Everything that is enqueued waits until a stream is advanced by hand, a host call waits for it,
or a question for an event has been asked `patience` times. So what reads too early reads what
was there before. All of it goes into one `log`, in the order in which it happened: "stream1: write"
when the device does it, "ask 4", "synchronised", "mpi start" when the host does.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

NOT_READY = 600
IN_PLACE = "in place"
MPI = SimpleNamespace(
    IN_PLACE=IN_PLACE,
    buffer=SimpleNamespace(frombuffer=lambda array: array),
    FLOAT="float32",
    DOUBLE="float64",
    INT32_T="int32",
    INT64_T="int64",
)


def raw(value: Any) -> Any:
    """The memory behind an array, past everything that is enqueued; other values as they are."""
    return value.view(np.ndarray) if isinstance(value, np.ndarray) else value


def in_order(log: list[str], *entries: str) -> bool:
    """Whether the entries are there, the first occurrence of each after that of the one before."""
    places = [log.index(entry) if entry in log else -1 for entry in entries]
    return -1 not in places and places == sorted(places)


class FaultError(RuntimeError):
    """Stands for cupy's CUDARuntimeError."""


class Event:
    """A cudaEvent: complete when the record made last was reached."""

    def __init__(self, cuda: "Cuda") -> None:
        self.cuda, self.ptr = cuda, len(cuda.events)
        self.recorded = self.reached = 0
        self.time_ms = 0.0
        self.stream: Stream | None = None
        cuda.events.append(self)

    def record(self, stream: "Stream") -> None:
        self.recorded += 1
        number, self.stream = self.recorded, stream

        def reach() -> None:
            self.reached, self.time_ms = number, self.cuda.time_ms

        stream.enqueue(f"event {self.ptr}", reach)

    def synchronize(self) -> None:
        while self.reached < self.recorded and self.stream:
            self.stream.advance()
        self.cuda.log.append(f"synchronised event {self.ptr}")


class Stream:
    """A queue of operations. Entering and leaving it restores what cupy restores: not what `use` set."""

    def __init__(self, cuda: "Cuda", name: str) -> None:
        self.cuda, self.name = cuda, name
        self.queue: deque[tuple[str, Callable[[], None], tuple[Event, int] | None]] = deque()

    def enqueue(self, what: str, action: Callable[[], None], after: tuple[Event, int] | None = None) -> None:
        self.queue.append((what, action, after))

    def wait_event(self, event: Event) -> None:
        self.enqueue("wait", lambda: None, (event, event.recorded))

    def advance(self, operations: int = 1, help_others: bool = True) -> None:
        """Let operations pass. One that waits for another stream lets that one pass first, or stays."""
        for _ in range(operations):
            if not self.queue:
                return
            what, action, after = self.queue[0]
            while after and after[0].reached < after[1]:
                if not help_others or after[0].stream is None:
                    return
                after[0].stream.advance()
            self.queue.popleft()
            action()
            self.cuda.log.append(f"{self.name}: {what}")

    def use(self) -> Self:
        self.cuda.current = self
        return self

    def __enter__(self) -> Self:
        self.cuda.entered.append(self)
        return self.use()

    def __exit__(self, *_: object) -> None:
        self.cuda.entered.pop()
        self.cuda.entered[-1].use()


class Array(np.ndarray[Any, Any]):
    """Device memory: writes are enqueued on the current stream, values are computed once it is idle."""

    cuda: "Cuda"

    def __array_finalize__(self, source: Any) -> None:
        if hasattr(source, "cuda"):
            self.cuda = source.cuda

    def __setitem__(self, index: Any, value: Any) -> None:
        target = raw(self)[index]
        self.cuda.enqueue("write", lambda: np.copyto(target, raw(value)))

    def fill(self, value: Any) -> None:
        self[:] = value

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        self.cuda.idle()
        return self.cuda.array(raw(self).astype(*args, **kwargs))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        call = getattr(ufunc, method)
        if out is not None:
            arguments, target = [raw(value) for value in inputs], raw(out[0])
            self.cuda.enqueue(ufunc.__name__, lambda: call(*arguments, out=target, **kwargs))
            return out[0]
        self.cuda.idle()
        return self.cuda.array(call(*[raw(value) for value in inputs], **kwargs))

    def get(self, *, stream: Stream, out: Any, blocking: bool) -> Any:
        assert out.shape == self.shape
        assert out.dtype == self.dtype
        assert not blocking
        stream.enqueue("copy out", lambda: np.copyto(out, raw(self)))
        return out

    def set(self, array: Any, stream: Stream) -> None:
        assert array.shape == self.shape
        assert array.dtype == self.dtype
        stream.enqueue("copy in", lambda: np.copyto(raw(self), array))


class Cuda:
    """Stands for cupy.cuda. Streams are called null, stream1, stream2, ... as they are made.

    Args:
        log: what happens is appended to it.
        patience: questions for an unfinished event until its stream goes on by one; None: never.
        tick_ms: device time of an operation that is no event.
        devices: their number.
    """

    def __init__(self, log: list[str], patience: int | None, tick_ms: float = 0.001, devices: int = 1) -> None:
        self.log, self.patience, self.tick_ms = log, patience, tick_ms
        self.time_ms, self.asked, self.fault = 0.0, 0, 0
        self.events: list[Event] = []
        self.streams = [Stream(self, "null")]
        self.entered = [self.streams[0]]
        self.current = self.streams[0]
        self.runtime = SimpleNamespace(
            getDeviceCount=lambda: devices, eventQuery=self._query, CUDARuntimeError=FaultError
        )
        self.get_elapsed_time = lambda begin, end: end.time_ms - begin.time_ms

    def Stream(self, non_blocking: bool = False) -> Stream:  # noqa: N802
        assert non_blocking, "a blocking stream would hide what the null stream does late"
        self.streams.append(Stream(self, f"stream{len(self.streams)}"))
        return self.streams[-1]

    def Event(self, disable_timing: bool = False) -> Event:  # noqa: N802
        return Event(self)

    def Device(self, index: int) -> Any:  # noqa: N802
        return SimpleNamespace(use=lambda: self.log.append(f"device {index}"), synchronize=self.synchronise)

    def alloc_pinned_memory(self, nbytes: int) -> bytearray:
        assert nbytes > 0, "cupy gives a null pointer for it"
        return bytearray(nbytes)

    @contextmanager
    def using_allocator(self, allocator: None) -> Iterator[None]:
        yield

    def array(self, values: Any) -> Any:
        """Values as device memory; scalars as they are."""
        if not isinstance(values, np.ndarray):
            return values
        array = values.view(Array)
        array.cuda = self
        return array

    def enqueue(self, what: str, action: Callable[[], None]) -> None:
        """Put an operation on the current stream."""

        def run() -> None:
            action()
            self.time_ms += self.tick_ms

        self.current.enqueue(what, run)

    def idle(self) -> None:
        """Let the current stream run to its end, as whatever needs a value does."""
        self.current.advance(len(self.current.queue))

    def synchronise(self) -> None:
        """Let everything run to its end."""
        for stream in self.streams:
            stream.advance(len(stream.queue))
        self.log.append("synchronised")

    def _query(self, pointer: int) -> int:
        event = self.events[pointer]
        self.log.append(f"ask {pointer}")
        if self.fault:
            return self.fault
        if event.reached == event.recorded:
            return 0
        self.asked += 1
        if self.patience and event.stream and self.asked % self.patience == 0:
            event.stream.advance()
        return NOT_READY


class Cupy:
    """Stands for the module cupy; arguments are those of `Cuda`."""

    def __init__(self, log: list[str], patience: int | None = 1, **kwargs: Any) -> None:
        self.__name__ = "cupy"
        self.cuda = Cuda(log, patience, **kwargs)
        self.dtype = np.dtype
        # Those with `out` are enqueued by Array.__array_ufunc__.
        self.matmul, self.multiply, self.add, self.not_equal = np.matmul, np.multiply, np.add, np.not_equal

    def arange(self, *bounds: int, dtype: str) -> Any:
        return self.cuda.array(np.arange(*bounds, dtype=dtype))

    def empty(self, shape: Any, dtype: str) -> Any:
        return self.cuda.array(np.full(shape, 99, dtype=dtype))

    def full(self, shape: Any, value: Any, dtype: str) -> Any:
        array = self.empty(shape, dtype)
        array.fill(value)
        return array

    def zeros(self, shape: Any, dtype: str) -> Any:
        return self.full(shape, 0, dtype)

    def count_nonzero(self, array: Any) -> int:
        self.cuda.idle()
        return int(np.count_nonzero(raw(array)))

    def ElementwiseKernel(self, inputs: str, outputs: str, operation: str, name: str) -> Any:  # noqa: N802
        assert (inputs, outputs, operation) == ("T b, T c, T s", "T a", "a = b + s * c")

        def launch(b: Any, c: Any, s: Any, a: Any) -> None:
            self.cuda.enqueue(name, lambda: np.copyto(raw(a), raw(b) + s * raw(c)))

        return launch


class Request:
    """An MPI request, persistent or not: reads its send buffer when started, writes when complete."""

    def __init__(self, comm: "Comm", send: Any, receive: Any) -> None:
        self._comm = comm
        self._receive = raw(receive[0])
        self._send = self._receive if send == IN_PLACE else raw(send[0])
        self._tests_left = -1  # inactive

    def Start(self) -> None:  # noqa: N802
        assert self._tests_left < 0, "started again before it was complete"
        self._comm.log.append("mpi start")
        self._read = self._send.copy()
        self._tests_left = self._comm.tests

    def Test(self) -> bool:
        self._comm.log.append("mpi test")
        self._tests_left -= 1
        if self._tests_left == 0:
            self.complete()
        return self._tests_left < 0

    def Wait(self) -> None:
        self._comm.log.append("mpi wait")
        if self._tests_left >= 0:
            self.complete()

    def Free(self) -> None:  # noqa: N802
        self._comm.log.append("mpi free")

    def complete(self) -> None:
        """Write the sum over the ranks, of which the others send what `Pattern` lets them send."""
        if not np.array_equal(self._send, self._read):
            self._comm.log.append("mpi send buffer changed in flight")
        ranks = self._comm.ranks
        self._receive[:] = self._read * ranks + sum(range(ranks))
        self._tests_left = -1
        self._comm.log.append("mpi complete")


class Comm:
    """A communicator seen from rank 0. An operation is complete after `tests` tests, or in its wait."""

    def __init__(self, log: list[str], ranks: int = 3, tests: int = 2) -> None:
        self.log, self.ranks, self.tests = log, ranks, tests

    def Allreduce_init(self, send: Any, receive: Any) -> Request:  # noqa: N802
        return Request(self, send, receive)

    def Iallreduce(self, send: Any, receive: Any) -> Request:  # noqa: N802
        request = Request(self, send, receive)
        request.Start()
        return request

    def Allreduce(self, send: Any, receive: Any) -> None:  # noqa: N802
        self.log.append("mpi allreduce")
        self.Iallreduce(send, receive).complete()


class HandClock:
    """Stands for perf_counter_ns and sleep: a reading takes a microsecond, a sleep exactly its time."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000
        self.slept_s: list[float] = []

    def __call__(self) -> int:
        self.now_ns += 1_000
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_ns += round(seconds * 1e9)
