"""From the compute asked for to a fixed number of the kernel's steps.

Calibrated once, on all ranks at the same time, for they compute at the same time: the measure is
the phase C itself, from the last rank's start to the last rank's end.
"""

from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from mpibench.engine.clocks import spans
from mpibench.engine.device import Device
from mpibench.engine.session import Session
from mpibench.protocols import Kernel
from mpibench.units import Compute

_BLOCK_NS = 5_000_000  # long enough for the clock and for scheduling
_REPEATS = 5
_CORRECTIONS = 6  # at most
_CLOSE = 0.05  # to what was asked for: no further correction


@dataclass(frozen=True)
class Calibration:
    """How a compute was turned into steps; kept in run.json, and never redone when resuming."""

    steps: int  # of the kernel, the same on all ranks
    step_s: float  # time of a step in seconds
    measured_s: float  # what the steps took while calibrating


def calibrate(session: Session, device: Device, kernel: Kernel, compute: Compute) -> Calibration:
    """The steps of `kernel` that take `compute`; a GEMM of a given order is one step."""
    if kernel.step_s is not None:
        assert compute.seconds is not None
        steps = max(1, round(compute.seconds / kernel.step_s))
        return Calibration(steps, kernel.step_s, steps * kernel.step_s)
    steps = 1
    measured_s = _span(session, device, kernel, steps)
    if compute.seconds is None:
        return Calibration(1, measured_s, measured_s)
    while measured_s * 1e9 < _BLOCK_NS:
        steps *= 2
        measured_s = _span(session, device, kernel, steps)
    asked_s, tried = compute.seconds, []
    for _ in range(_CORRECTIONS):  # a disturbed measurement sends the next one astray: the nearest of them counts
        steps = max(1, round(steps * asked_s / measured_s))
        measured_s = _span(session, device, kernel, steps)
        tried.append(Calibration(steps, measured_s / steps, measured_s))
        if abs(measured_s / asked_s - 1) <= _CLOSE:
            break
    return min(tried, key=lambda calibration: abs(calibration.measured_s - asked_s))


def _span(session: Session, device: Device, kernel: Kernel, steps: int) -> float:
    """Median time of `steps` over some repeats in seconds, the same number on all ranks."""
    work = device.compute(kernel, steps)
    stamps = np.empty((2, _REPEATS, 1), dtype=np.int64)
    for repeat in range(_REPEATS + 1):  # the first warms up and is overwritten
        session.guard.beat(-1, -1)
        session.control.Barrier()
        stamps[0, repeat - 1] = perf_counter_ns()
        work.launch().finish()
        stamps[1, repeat - 1] = perf_counter_ns()
    every: Any = np.array(session.control.allgather(stamps))
    return float(np.median(spans(every[:, 0], every[:, 1], session.common_clock).span)) * 1e-9
