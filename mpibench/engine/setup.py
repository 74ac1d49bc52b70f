"""From words to things: the device, the buffers, the kernels with their calibrated steps."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpibench.engine.bench import Load
from mpibench.engine.buffers import Buffers
from mpibench.engine.calibrate import Calibration, calibrate
from mpibench.engine.device import Device, HostDevice
from mpibench.engine.session import Session
from mpibench.errors import EnvironmentRefused, UsageError
from mpibench.protocols import Collective, Kernel
from mpibench.records import read_run
from mpibench.units import Compute

_PREAMBLE_S = 2e-3  # at most


def open_device(asked: str, kernel: type[Kernel], session: Session) -> Device:
    """The device for `--device`; an emulated kernel needs none, and `auto` takes GPUs where every rank has one.

    Raises:
        EnvironmentRefused: if `cuda` is asked for and cannot be had.
        UsageError: if `cuda` is asked for an emulated kernel.
    """
    from mpibench.engine.cuda import open_cuda

    if kernel.emulated and asked == "cuda":
        raise UsageError("--device cuda: the kernel is emulated and runs on no device; use --kernel gemm or triad")
    if asked == "cpu" or kernel.emulated:
        return HostDevice()
    try:
        return session.everywhere(lambda: open_cuda(session.launch.local_rank))
    except EnvironmentRefused:
        if asked == "cuda":
            raise
        return HostDevice()


def choose_buffers(asked: str, device: Device) -> str:
    """What MPI is handed. On a GPU `auto` stages through pinned host memory, which every library takes.

    Raises:
        UsageError: if device memory is asked for on the CPU.
    """
    if asked in ("device", "staged") and device.name == "cpu":
        raise UsageError(f"--buffers {asked}: there is no device memory with --device cpu; use host")
    return asked if asked != "auto" else "host" if device.name == "cpu" else "staged"


def make_buffers(
    kind: str, device: Device, session: Session, collective: type[Collective], *, count: int, dtype: str, in_place: bool
) -> tuple[Buffers, Callable[[], Collective]]:
    """Buffers for the largest message, and what makes a collective that works on them."""
    shape = (session.mpi, count, dtype, session.rank, session.ranks, in_place)
    if kind == "staged":
        from mpibench.engine.staging import Staged, StagedBuffers

        return StagedBuffers(device, *shape), lambda: Staged(collective(), device)
    return Buffers(HostDevice() if kind == "host" else device, *shape), collective


def steps_from(path: Path, config: Any) -> dict[str, Calibration]:
    """The calibrations of an earlier run, so that this one does the same work.

    Args:
        path: of the earlier run.
        config: options with the fields of overlap.Config.

    Raises:
        UsageError: if it is no run, its steps are another kernel's, or it lacks a compute.
    """
    run = read_run(path, ("settings", "calibration"), "--steps-from ")
    for name in ("kernel", "kernel_dtype"):
        theirs, ours = run["settings"].get(name), getattr(config, name)
        if theirs != ours:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"--steps-from {path}: calibrated with {flag} {theirs}, this run has {ours}; use the same")
    known = {label: Calibration(**values) for label, values in run["calibration"].items()}
    for compute in config.compute:
        if compute.label not in known:
            there = ", ".join(known)
            raise UsageError(f"--steps-from {path}: it has no compute {compute.label}; use its --compute {there}")
    return known


def make_loads(
    session: Session,
    device: Device,
    kernel: type[Kernel],
    computes: Sequence[Compute],
    dtype: str,
    known: Mapping[str, Calibration],
) -> dict[str, Load]:
    """Every compute, calibrated and ready to run, by label. Those in `known` are not calibrated again."""
    loads = {}
    shared: dict[int | None, Any] = {}  # one kernel for all durations, one for each order
    for compute in computes:
        if compute.order not in shared:
            shared[compute.order] = kernel(device.array_module, dtype, compute.order)
        instance = shared[compute.order]
        session.guard.enter(f"calibrating {compute.label}")
        calibration = known.get(compute.label) or calibrate(session, device, instance, compute)
        before = max(1, min(calibration.steps, int(_PREAMBLE_S / calibration.step_s)))
        loads[compute.label] = Load(
            instance,
            device.compute(instance, calibration.steps),
            device.compute(instance, before),
            calibration,
        )
    return loads
