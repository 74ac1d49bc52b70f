"""A CUDA device through cupy: kernels on one stream, copies on another, all asked by events.

Knows streams and events; knows nothing of MPI. MPI is not aware of streams: what it is handed
must be complete, which `synchronise`, a finished `Work` or a copy's answer tells.
"""

import ctypes
from collections.abc import Callable
from time import perf_counter_ns, sleep
from typing import Any

import numpy

from mpibench.engine.device import Compute, HostDevice
from mpibench.errors import EnvironmentRefused
from mpibench.protocols import Kernel, Work

_NOT_READY = 600  # cudaErrorNotReady
_SPIN_NS = 100_000  # the last part of a kernel is asked without sleeping: a sleep may wake late
_PR_SET_TIMERSLACK = 29


def _asker(cuda: Any, event: Any) -> Callable[[], bool]:
    """A question whether what was recorded last in `event` is done.

    Not `event.done`: after a fault of the device that is False for ever. This raises the fault.
    """
    query, fault = cuda.runtime.eventQuery, cuda.runtime.CUDARuntimeError

    def is_done() -> bool:
        status = query(event.ptr)
        if status == _NOT_READY:
            return False
        if status:
            raise fault(status)
        return True

    return is_done


class CudaWork:
    """Steps that the device runs by itself, between two events. Its own Compute: launching begins anew.

    Args:
        cuda: the module cupy.cuda, or a double of it.
        stream: where the steps are enqueued.
        step: enqueues one step on the current stream.
        steps: their number.
    """

    __slots__ = ("_begin", "_elapsed_ms", "_end", "_expected_end", "_is_done", "_step", "_step_ns", "_steps",
                 "_stream", "elapsed_ns")  # fmt: skip

    def __init__(self, cuda: Any, stream: Any, step: Callable[[], None], steps: int) -> None:
        self._stream, self._step, self._steps = stream, step, steps
        self._begin, self._end = cuda.Event(), cuda.Event()
        self._elapsed_ms = cuda.get_elapsed_time
        self._is_done = _asker(cuda, self._end)
        self._step_ns = 0.0  # of the fastest launch so far; 0 before the first is finished
        self._expected_end = 0
        self.elapsed_ns = 0  # between the two events, known after `finish`

    def launch(self) -> Work:
        """Enqueue all steps. Blocks only where the driver's queue is full (about 1000 kernels)."""
        stream, step = self._stream, self._step
        self._expected_end = perf_counter_ns() + int(self._step_ns * self._steps)
        stream.use()  # again: leaving a `with stream` of a kernel's own falls back to the null stream
        self._begin.record(stream)
        for _ in range(self._steps):
            step()
        self._end.record(stream)
        return self

    def advance(self, quantum: int) -> bool:
        """Leave the device alone for at most the time of `quantum` steps; True once all are done.

        Sleeps while the end is far, then asks. Before the first `finish` the time of a step is
        not known, and it asks once and returns.
        """
        is_done = self._is_done
        if is_done():
            return True
        now = perf_counter_ns()
        quantum_ns = quantum * self._step_ns
        left = self._expected_end - now
        if left > _SPIN_NS:
            sleep(min(quantum_ns, left - _SPIN_NS) * 1e-9)
            return is_done()
        until = now + quantum_ns
        while perf_counter_ns() < until:
            if is_done():
                return True
        return is_done()

    def finish(self) -> None:
        """Return when all steps are done; raises cupy's CUDARuntimeError if one failed."""
        self._end.synchronize()
        self.elapsed_ns = round(self._elapsed_ms(self._begin, self._end) * 1e6)
        step_ns = self.elapsed_ns / self._steps if self._steps else 0.0
        self._step_ns = min(self._step_ns or step_ns, step_ns)  # the first launch may have compiled


class CudaDevice:
    """One GPU. Makes its compute stream the current one, so that everything cupy does is ordered in it.

    A copy's answer is for the latest copy in its direction: with several in flight an earlier
    one is reported late, never early.

    Args:
        cupy: the module, or a double of it.
        index: the device, 0 to the number of devices - 1.
    """

    name = "cuda"

    def __init__(self, cupy: Any, index: int) -> None:
        self.array_module, self.index = cupy, index
        self._cuda = cuda = cupy.cuda
        self._device = cuda.Device(index)
        self._device.use()
        # Non-blocking: the null stream, which an MPI library may use, neither waits for them nor holds them up.
        self._compute_stream = cuda.Stream(non_blocking=True)
        self._copy_stream = cuda.Stream(non_blocking=True)
        self._compute_stream.use()
        self._computed, self._copied_out, self._copied_in = (cuda.Event(disable_timing=True) for _ in range(3))
        self._is_copied_out, self._is_copied_in = _asker(cuda, self._copied_out), _asker(cuda, self._copied_in)

    @property
    def identity(self) -> str:
        """The GPU's PCI bus address."""
        return str(self._cuda.runtime.deviceGetPCIBusId(self.index))

    def compute(self, kernel: Kernel, steps: int) -> Compute:
        """Steps on the compute stream; a kernel that is emulated gets its time kept by the host."""
        if kernel.emulated:
            return HostDevice().compute(kernel, steps)
        # A sleep ends up to 50 us late by default: let the timer be exact for this thread.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        return CudaWork(self._cuda, self._compute_stream, kernel.step, steps)

    def allocate(self, count: int, dtype: str) -> Any:
        """A cupy array of shape (count,), of cudaMalloc's own: memory of an async pool breaks CUDA IPC."""
        with self._cuda.using_allocator(None):
            return self.array_module.full(count, 1, dtype=dtype)

    def allocate_pinned(self, count: int, dtype: str) -> Any:
        """A numpy array of shape (count,) in page-locked memory, its pages touched."""
        memory = self._cuda.alloc_pinned_memory(max(count, 1) * numpy.dtype(dtype).itemsize)
        array = numpy.frombuffer(memory, dtype=dtype, count=count)
        array.fill(1)
        return array

    def copy_to_host(self, target: Any, source: Any) -> Callable[[], bool]:
        """Begin copying a device array to a pinned one of its shape, once the compute enqueued so far is done."""
        self._computed.record(self._compute_stream)
        self._copy_stream.wait_event(self._computed)
        source.get(stream=self._copy_stream, out=target, blocking=False)
        self._copied_out.record(self._copy_stream)
        return self._is_copied_out

    def copy_from_host(self, target: Any, source: Any) -> Callable[[], bool]:
        """Begin copying a pinned array to a device one of its shape, at once: compute in flight goes on."""
        target.set(source, stream=self._copy_stream)
        self._copied_in.record(self._copy_stream)
        return self._is_copied_in

    def synchronise(self) -> None:
        """Return when everything on the device is done. MPI may touch device memory then."""
        self._device.synchronize()


def open_cuda(local_rank: int) -> CudaDevice:
    """The GPU of a rank: `local_rank`, its number on its host, modulo the number of devices.

    Raises:
        EnvironmentRefused: without cupy, a driver that fits it, or a device.
    """
    try:
        import cupy

        devices = cupy.cuda.runtime.getDeviceCount()
        if devices < 1:
            raise RuntimeError("no device is visible")
        return CudaDevice(cupy, local_rank % devices)
    except ImportError as error:
        raise _refused(error, 'pip install "mpibench[cuda12]" (or cuda13)') from error
    except (RuntimeError, OSError) as error:  # cupy's CUDARuntimeError is a RuntimeError
        raise _refused(error, "check nvidia-smi and CUDA_VISIBLE_DEVICES") from error


def _refused(error: Exception, remedy: str) -> EnvironmentRefused:
    # cupy wraps what went wrong in a banner of many lines and keeps it as the cause.
    why = " ".join(str(error.__cause__ or error).split())
    return EnvironmentRefused(f"--device cuda: no GPU can be used ({why}); {remedy}, or use --device cpu")
