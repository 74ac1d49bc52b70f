"""What the device does is complete before MPI sees it, and the other way round: on the log and on the data.

Each rule is shown twice: that it is kept, and that the doubles find it out where it is broken.
"""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpibench.collectives.iallreduce import Iallreduce
from mpibench.collectives.persistent import Persistent
from mpibench.engine import cuda as cuda_module
from mpibench.engine import device as device_module
from mpibench.engine.buffers import Buffers
from mpibench.engine.cuda import CudaDevice, CudaWork, open_cuda
from mpibench.engine.device import EmulatedWork, HostDevice, HostWork
from mpibench.engine.phases import build_phases
from mpibench.engine.staging import Staged, StagedBuffers, StagedTransfer
from mpibench.errors import EnvironmentRefused
from mpibench.kernels.delay import Delay
from mpibench.kernels.gemm import Gemm
from mpibench.kernels.triad import Triad
from mpibench.progress.none import NoProgress
from mpibench.progress.poll import Poll
from mpibench.protocols import Collective, Marks, Progress, Work
from tests.unit.recording import MPI, Comm, Cupy, FaultError, HandClock, in_order, raw

RANKS, COUNT, STEPS = 3, 300, 5
PHASES = ("B", "N", "C", "S", "T-none", "T-poll")
MESSAGES = ("B", "N", "S", "T-none", "T-poll")
NEVER = None  # patience: nothing on the device happens by itself
STEP, COPY_OUT, COPY_IN = "stream1: matmul", "stream2: copy out", "stream2: copy in"


class Bench:
    """One message, a device and its kernel, with a log of what happened."""

    def __init__(
        self,
        *,
        staged: bool = False,
        in_place: bool = False,
        patience: int | None = 1,
        collective: Callable[[], Collective] = Iallreduce,
        device: Callable[[Any, int], Any] = CudaDevice,
        wrap: Callable[[Collective, Any], Any] = Staged,
    ) -> None:
        self.log: list[str] = []
        self.cupy = Cupy(self.log, patience)
        self.streams = self.cupy.cuda.streams
        self.device = device(self.cupy, 0)
        self.buffers = (StagedBuffers if staged else Buffers)(self.device, MPI, COUNT, "float32", 0, RANKS, in_place)
        plain = collective()
        self.collective: Any = wrap(plain, self.device) if staged else plain
        self.collective.prepare(Comm(self.log, RANKS), self.buffers)
        self.compute = self.device.compute(Gemm(self.cupy, "float32", 4), STEPS)

    def run(self, name: str, round_: int = 1) -> int:
        """Run a phase; wrong elements. The log begins with its preparation."""
        strategies: dict[str, Progress] = {"none": NoProgress(), "poll": Poll()}
        phases = build_phases(self.collective, self.buffers, self.compute, strategies, True)
        phase = phases[PHASES.index(name)]
        self.log.clear()
        phase.prepare(round_)
        phase.run(Marks(1))
        return phase.check(round_)


@pytest.mark.parametrize("patience", [1, 7])
@pytest.mark.parametrize("collective", [Iallreduce, Persistent])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("staged", [False, True])
def test_every_phase_gives_the_sum(staged: bool, in_place: bool, collective: Any, patience: int) -> None:
    bench = Bench(staged=staged, in_place=in_place, collective=collective, patience=patience)
    for round_, name in enumerate(PHASES * 2):
        assert bench.run(name, round_) == 0, name
        assert "mpi send buffer changed in flight" not in bench.log


def test_a_shorter_message_is_staged_alone() -> None:
    bench = Bench(staged=True)
    bench.device.synchronise()
    bench.buffers.select(7)
    bench.collective.prepare(Comm(bench.log, RANKS), bench.buffers)
    assert bench.run("N") == 0
    assert raw(bench.buffers._whole_receive)[7:].tolist() == [1.0] * (COUNT - 7)


# Device buffers.


class Unsynchronised(CudaDevice):
    def synchronise(self) -> None:
        pass


@pytest.mark.parametrize("name", MESSAGES)
def test_device_buffers_are_filled_before_mpi_reads_them(name: str) -> None:
    bench = Bench()
    assert bench.run(name) == 0
    assert in_order(bench.log, "stream1: write", "synchronised", "mpi start")
    assert bench.log.index("synchronised") > max(i for i, entry in enumerate(bench.log) if entry == "stream1: write")
    # S's own compute, in the same stream, has waited for the fill.
    assert (Bench(device=Unsynchronised).run(name) > 0) == (name != "S")


class Careless(CudaWork):
    def advance(self, quantum: int) -> bool:
        return True

    def finish(self) -> None:
        pass


class Unfinished(CudaDevice):
    def compute(self, kernel: Any, steps: int) -> Any:
        return Careless(self._cuda, self._compute_stream, kernel.step, steps)


@pytest.mark.parametrize("staged", [False, True])
def test_sequential_computes_before_mpi_begins(staged: bool) -> None:
    def computed_first(device: Any) -> bool:
        bench = Bench(staged=staged, device=device)
        bench.run("S")
        steps_before = bench.log[: bench.log.index("mpi allreduce")].count(STEP)
        return steps_before == STEPS and not bench.streams[1].queue

    assert computed_first(CudaDevice)
    if not staged:  # a staged copy waits for the compute by itself
        assert not computed_first(Unfinished)


@pytest.mark.parametrize(("name", "tested"), [("T-none", False), ("T-poll", True)])
def test_overlapped_starts_before_it_computes_and_waits_after(name: str, tested: bool) -> None:
    bench = Bench()
    bench.run(name)
    assert in_order(bench.log, "mpi start", STEP, "mpi wait")
    last_step = max(i for i, entry in enumerate(bench.log) if entry == STEP)
    assert ("mpi test" in bench.log[:last_step]) == tested
    assert last_step < bench.log.index("mpi wait")


# The device alone.


def test_steps_run_between_two_events_and_are_never_waited_for_in_advance() -> None:
    bench = Bench(patience=NEVER)
    bench.device.synchronise()
    bench.log.clear()
    work = bench.compute.launch()
    assert not any(work.advance(1000) for _ in range(5))
    assert set(bench.log) == {"ask 4"}, "asked, and nothing else"
    work.finish()
    assert work.advance(1)
    ran = [entry for entry in bench.log if entry.startswith("stream1")]
    assert ran == ["stream1: event 3", *[STEP] * STEPS, "stream1: event 4"]
    assert work.elapsed_ns == STEPS * 1000
    again = bench.compute.launch()
    assert not again.advance(1)


def test_advance_leaves_the_device_alone_for_a_quantum(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    monkeypatch.setattr(cuda_module, "perf_counter_ns", clock)
    monkeypatch.setattr(cuda_module, "sleep", clock.sleep)
    cupy = Cupy([], NEVER, tick_ms=1.0)
    device: Any = CudaDevice(cupy, 0)
    work = device.compute(Gemm(cupy, "float32", 4), 4).launch()
    before = clock.now_ns
    assert not work.advance(3)
    assert clock.now_ns - before < 10_000, "the time of a step is not known yet"
    work.finish()
    work.launch()
    assert not work.advance(3)
    assert clock.slept_s == pytest.approx([3e-3])
    assert not work.advance(3)
    assert sum(clock.slept_s) == pytest.approx(3.9e-3, abs=1e-5), "the last 100 us are not slept"
    before = clock.now_ns
    assert not work.advance(3)
    assert len(clock.slept_s) == 2
    assert 3e6 <= clock.now_ns - before < 3.1e6, "asks for the time of a quantum, no longer"


def test_a_fault_of_the_device_is_raised_not_waited_for() -> None:
    bench = Bench(staged=True)
    work = bench.compute.launch()
    transfer = bench.collective.start()
    bench.cupy.cuda.fault = 700
    for ask in (lambda: work.advance(1), transfer.Test, transfer.Wait):
        with pytest.raises(FaultError):
            ask()


@pytest.mark.parametrize("stray", [False, True])
def test_what_verify_leaves_behind_is_ordered_before_the_next_launch(stray: bool) -> None:
    cupy = Cupy([], NEVER)
    null = cupy.cuda.streams[0]
    device: Any = CudaDevice(cupy, 0)
    kernel = Gemm(cupy, "float32", 4)
    compute = device.compute(kernel, 1)
    compute.launch().finish()
    if stray:
        null.use()  # so that the poison is enqueued beside the compute, not before it
    assert kernel.verify()
    compute.launch().finish()
    device.synchronise()
    assert kernel.verify() != stray


def test_a_kernel_that_enters_a_stream_of_its_own_does_not_lose_the_compute_stream() -> None:
    bench = Bench()
    with bench.streams[2]:
        pass
    assert bench.cupy.cuda.current is bench.streams[0], "as cupy does"
    bench.compute.launch().finish()
    assert bench.log.count(STEP) == STEPS


class Rushed(CudaDevice):
    def copy_to_host(self, target: Any, source: Any) -> Callable[[], bool]:
        source.get(stream=self._copy_stream, out=target, blocking=False)
        self._copied_out.record(self._copy_stream)
        return self._is_copied_out


@pytest.mark.parametrize(("device", "kept"), [(CudaDevice, True), (Rushed, False)])
def test_a_copy_out_waits_for_the_compute_enqueued_before_it(device: Any, kept: bool) -> None:
    bench = Bench(patience=NEVER, device=device)
    source, target = bench.device.allocate(4, "float32"), bench.device.allocate_pinned(4, "float32")
    bench.device.synchronise()
    source.fill(7)  # a gradient, computed late
    is_copied = bench.device.copy_to_host(target, source)
    bench.streams[2].advance(9, help_others=False)
    assert is_copied() != kept
    bench.streams[1].advance()
    bench.streams[1].advance()
    bench.streams[2].advance(9, help_others=False)
    assert is_copied()
    assert (target.tolist() == [7.0] * 4) == kept


def test_a_copy_in_does_not_wait_for_compute_in_flight() -> None:
    bench = Bench(patience=NEVER)
    target, source = bench.device.allocate(4, "float32"), bench.device.allocate_pinned(4, "float32")
    bench.device.synchronise()
    work = bench.compute.launch()
    is_copied = bench.device.copy_from_host(target, source)
    assert not is_copied()
    bench.streams[2].advance(9, help_others=False)
    assert is_copied()
    assert not work.advance(1)


def test_memory() -> None:
    device = CudaDevice(Cupy([]), 0)
    pinned = device.allocate_pinned(5, "float64")
    assert (pinned.shape, pinned.dtype, pinned.tolist()) == ((5,), np.float64, [1.0] * 5)
    assert device.allocate_pinned(0, "float32").shape == (0,)
    array = device.allocate(5, "int32")
    device.synchronise()
    assert raw(array).tolist() == [1] * 5


def test_an_emulated_kernel_is_not_run_on_the_device() -> None:
    device: Any = CudaDevice(Cupy([]), 0)
    assert isinstance(device.compute(Delay(device.array_module, "float32", None), 10), EmulatedWork)


def test_open_cuda_takes_the_device_of_the_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setitem(sys.modules, "cupy", Cupy(log, devices=3))
    assert open_cuda(4).index == 1
    assert log == ["device 1"]


def _banner() -> int:
    try:
        raise OSError("libcuda.so.1 is missing")
    except OSError as error:
        raise ImportError("=====\nFailed to import CuPy.\n=====") from error


def _insufficient() -> int:
    raise FaultError("cudaErrorInsufficientDriver: too old")


@pytest.mark.parametrize(
    ("count", "said"),
    [(_insufficient, "InsufficientDriver"), (_banner, "libcuda.so.1"), (lambda: 0, "no device is visible"), (None, "")],
)
def test_open_cuda_refuses_in_one_line(monkeypatch: pytest.MonkeyPatch, count: Any, said: str) -> None:
    runtime = SimpleNamespace(getDeviceCount=count)
    double = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)) if count else None
    monkeypatch.setitem(sys.modules, "cupy", double)
    with pytest.raises(EnvironmentRefused, match=r"^--device cuda: .*--device cpu$") as refused:
        open_cuda(0)
    assert said in str(refused.value)
    assert refused.value.status == 3


def test_the_double_has_no_name_that_cupy_lacks() -> None:
    cupy = pytest.importorskip("cupy")
    double = Cupy([])
    assert [name for name in vars(double) if not hasattr(cupy, name)] == []
    runtime = vars(double.cuda.runtime)
    assert [name for name in runtime if not hasattr(cupy.cuda.runtime, name)] == []
    for name in ("Device", "Event", "Stream", "alloc_pinned_memory", "get_elapsed_time", "using_allocator"):
        assert hasattr(cupy.cuda, name)
        assert hasattr(double.cuda, name)
    for name in ("record", "synchronize"):
        assert hasattr(cupy.cuda.Event, name)
    for name in ("use", "wait_event", "__enter__"):
        assert hasattr(cupy.cuda.Stream, name)


# Staged buffers.


def test_a_staged_transfer_moves_on_only_when_the_part_before_is_complete() -> None:
    bench = Bench(staged=True, patience=NEVER)
    bench.buffers.fill(1)
    bench.log.clear()
    copies = bench.streams[2]
    transfer = bench.collective.start()
    assert not any(transfer.Test() for _ in range(20))
    assert "mpi start" not in bench.log
    copies.advance(2)
    assert bench.log[-1] == COPY_OUT, "copied, but its event has not fired"
    assert not transfer.Test()
    assert "mpi start" not in bench.log
    copies.advance()
    assert not transfer.Test()
    assert bench.log[-1] == "mpi start"
    assert [transfer.Test(), transfer.Test()] == [False, False]
    assert bench.log[-3:] == ["mpi test", "mpi test", "mpi complete"]
    assert not any(transfer.Test() for _ in range(20))
    assert COPY_IN not in bench.log
    assert set(raw(bench.buffers.receive_array)) == {-1.0}
    copies.advance(2)
    assert transfer.Test()
    transfer.Wait()
    assert "mpi wait" not in bench.log
    assert bench.buffers.count_wrong(1) == 0


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("tests", range(12))
def test_wait_takes_up_a_staged_transfer_wherever_it_is(tests: int, in_place: bool) -> None:
    bench = Bench(staged=True, in_place=in_place, patience=1)
    for round_ in (1, 2):
        bench.buffers.fill(round_)
        bench.log.clear()
        transfer = bench.collective.start()
        for _ in range(tests):
            transfer.Test()
        transfer.Wait()
        assert in_order(bench.log, COPY_OUT, "mpi start", "mpi complete", COPY_IN)
        assert [bench.log.count(entry) for entry in (COPY_OUT, "mpi start", "mpi complete", COPY_IN)] == [1] * 4
        assert bench.buffers.count_wrong(round_) == 0


def test_an_early_wait_waits_in_mpi() -> None:
    bench = Bench(staged=True, patience=3)
    assert bench.run("T-none") == 0
    assert in_order(bench.log, STEP, "mpi start", "mpi wait", "mpi complete", COPY_IN)
    assert "mpi test" not in bench.log


def test_a_staged_transfer_is_not_started_before_it_was_waited_for() -> None:
    bench = Bench(staged=True)
    transfer = bench.collective.start()
    with pytest.raises(RuntimeError, match="before it was waited for"):
        bench.collective.start()
    transfer.Wait()
    assert bench.log.count(COPY_OUT) == 1
    bench.collective.start().Wait()


def test_staged_blocking_returns_with_the_result_on_the_device() -> None:
    bench = Bench(staged=True, patience=3)
    bench.buffers.fill(1)
    bench.collective.blocking()
    assert in_order(bench.log, COPY_OUT, "mpi allreduce", "mpi complete", COPY_IN)
    assert not bench.streams[2].queue
    assert bench.buffers.count_wrong(1) == 0


def test_release_frees_what_the_collective_made() -> None:
    bench = Bench(staged=True, collective=Persistent)
    bench.collective.release()
    assert bench.log[-1] == "mpi free"


@pytest.mark.parametrize("in_place", [False, True])
def test_fill_poisons_what_a_copy_left_out_would_leave(in_place: bool) -> None:
    bench = Bench(staged=True, in_place=in_place)
    assert bench.run("N") == 0
    bench.buffers.fill(2)
    for name in ("host_send", "host_receive"):
        assert set(getattr(bench.buffers, name)) == {-1.0}


def test_staged_buffers_on_the_cpu() -> None:
    device: Any = HostDevice()
    buffers, staged = StagedBuffers(device, MPI, COUNT, "int64", 0, RANKS, False), Staged(Iallreduce(), device)
    staged.prepare(Comm([], RANKS), buffers)
    buffers.fill(3)
    staged.start().Wait()
    assert buffers.count_wrong(3) == 0


# Staged wrongly: each breaks one rule, and the data tell.


class StartsBeforeTheEvent(StagedTransfer):
    def begin(self) -> None:
        super().begin()
        self._is_copied = lambda: True


class CopiesInBeforeComplete(StagedTransfer):
    def Test(self) -> bool:
        if self._stage == 1:
            self._host.Test()
            self._begin_copy_in()
        return super().Test()

    def Wait(self) -> None:
        while not self.Test():
            pass


class ReturnsBeforeTheCopyIn(StagedTransfer):
    def Wait(self) -> None:
        while self._stage != 2:
            self.Test()
        self._stage = 3


class NeverCopiesOut(StagedTransfer):
    def begin(self) -> None:
        self._host = self._reduce()
        self._stage = 1


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["N", "T-none", "T-poll"])
@pytest.mark.parametrize(
    "wrong", [StartsBeforeTheEvent, CopiesInBeforeComplete, ReturnsBeforeTheCopyIn, NeverCopiesOut]
)
def test_a_wrong_staging_gives_wrong_data(wrong: type[StagedTransfer], name: str, in_place: bool) -> None:
    class Wrong(Staged):
        def prepare(self, comm: Any, buffers: StagedBuffers) -> None:
            super().prepare(comm, buffers)
            self._transfer = wrong(self._copy_out, self._collective.start, self._copy_in)

    assert Bench(staged=True, wrap=Wrong, in_place=in_place, patience=50).run(name) > 0


class ClaimsCopiedOut(CudaDevice):
    def copy_to_host(self, target: Any, source: Any) -> Callable[[], bool]:
        super().copy_to_host(target, source)
        return lambda: True


class ClaimsCopiedIn(CudaDevice):
    def copy_from_host(self, target: Any, source: Any) -> Callable[[], bool]:
        super().copy_from_host(target, source)
        return lambda: True


@pytest.mark.parametrize("name", ["B", "N"])
@pytest.mark.parametrize("device", [ClaimsCopiedOut, ClaimsCopiedIn])
def test_a_copy_that_is_not_waited_for_gives_wrong_data(device: Any, name: str) -> None:
    assert Bench(staged=True, device=device).run(name) > 0


def test_a_fill_in_flight_is_found() -> None:
    bench = Bench()
    bench.buffers.fill(1)
    transfer = bench.collective.start()
    bench.buffers.fill(2)
    transfer.Wait()
    assert "mpi send buffer changed in flight" in bench.log
    assert bench.buffers.count_wrong(2) > 0


# The CPU's works, and the kernels on either array module.


def test_host_work_runs_its_steps_in_quanta() -> None:
    done: list[int] = []
    compute = HostWork(lambda: done.append(1), 7)
    for _ in range(2):
        done.clear()
        work = compute.launch()
        assert [work.advance(3), len(done)] == [False, 3]
        assert [work.advance(3), len(done)] == [False, 6]
        assert [work.advance(3), len(done)] == [True, 7]
        work.finish()
        assert len(done) == 7
        compute.launch().finish()
        assert len(done) == 14
    assert HostWork(lambda: done.append(1), 0).launch().advance(1)


def test_emulated_work_sleeps_in_quanta_and_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    monkeypatch.setattr(device_module, "perf_counter_ns", clock)
    monkeypatch.setattr(device_module, "sleep", clock.sleep)
    begun = clock.now_ns
    work: Work = EmulatedWork(1e-6, 1000).launch()
    quanta = 1
    while not work.advance(300):
        quanta += 1
    assert clock.slept_s[:3] == pytest.approx([3e-4] * 3, abs=1e-5)
    assert sum(clock.slept_s) <= 9e-4, "the last 100 us are spun"
    assert 4 <= quanta <= 5
    assert 1_000_000 <= clock.now_ns - begun <= 1_010_000
    assert work.elapsed_ns == 1_000_000
    begun = clock.now_ns
    EmulatedWork(1e-6, 50).launch().finish()
    assert 50_000 <= clock.now_ns - begun <= 60_000


def test_the_cpu_keeps_the_time_of_an_emulated_kernel_and_runs_the_others() -> None:
    device: Any = HostDevice()
    assert isinstance(device.compute(Delay(np, "float32", None), 3), EmulatedWork)
    assert isinstance(device.compute(Gemm(np, "float32", 4), 3), HostWork)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("kernel_class", "order"), [(Gemm, 8), (Triad, None)])
@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_verify_tells_a_right_result_from_a_corrupted_one(on: str, kernel_class: Any, order: Any, dtype: str) -> None:
    device: Any = HostDevice() if on == "cpu" else CudaDevice(Cupy([]), 0)
    kernel = kernel_class(device.array_module, dtype, order)
    compute = device.compute(kernel, 3)
    compute.launch().finish()
    assert kernel.verify()
    device.synchronise()
    assert not kernel.verify(), "poisoned, and not computed since"
    compute.launch().finish()
    result = raw(kernel._c if kernel_class is Gemm else kernel._a[kernel._last])
    result.flat[5] += 1
    assert not kernel.verify()
