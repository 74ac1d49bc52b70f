"""What surrounds a run and may change its answer: recorded in run.json, and warned of where it could mislead."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import mpibench
from mpibench.engine.calibrate import Calibration
from mpibench.engine.launcher import blas_threads
from mpibench.engine.session import Session
from mpibench.protocols import Caution, Kernel
from mpibench.units import approximate_bytes, format_duration

_KEPT_PREFIXES = (
    "MPICH_", "MPIR_", "HYDRA_", "OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_", "UCX_", "FI_", "I_MPI_", "MV2_", "SLURM_",
    "OMP_", "OPENBLAS_", "MKL_", "BLIS_", "CUDA_", "NCCL_", "CUPY_",
)  # fmt: skip
_PACKAGES = ("mpi4py", "numpy", "cupy-cuda12x", "cupy-cuda13x")
_COARSE_NS = 1000


def versions(session: Session) -> dict[str, str]:
    """Versions of everything between the flag and the wire."""
    found = {"mpibench": mpibench.__version__, "python": sys.version.split()[0], "mpi": session.library}
    found["mpi_standard"] = ".".join(map(str, session.mpi.Get_version()))
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that change how MPI, BLAS and the GPU behave."""
    return {name: value for name, value in sorted(environ.items()) if name.startswith(_KEPT_PREFIXES)}


def host_table(session: Session) -> list[dict[str, Any]]:
    """Per rank: host, cores it may use, process."""
    return [
        {"rank": rank, "host": host.name, "cores": list(host.cores), "pid": host.pid}
        for rank, host in enumerate(session.hosts)
    ]


def describe(session: Session) -> dict[str, Any]:
    """What run.json keeps of the environment."""
    return {
        "versions": versions(session),
        "mpi_library": session.mpi.Get_library_version().rstrip("\0").splitlines(),
        "platform": platform.platform(),
        "hosts": host_table(session),
        "clock": {"common": session.common_clock, "resolution_ns": clock_step_ns()},
        "environment": kept_variables(os.environ),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Caution]:
    """What differs between the launch that began a run and the one that goes on with it."""

    def essence(around: Mapping[str, Any]) -> dict[str, Any]:
        variables = around["environment"].items()
        return {
            "hosts": sorted({host["host"] for host in around["hosts"]}),
            "cores by rank": [host["cores"] for host in around["hosts"]],
            "versions": around["versions"],
            "environment variables": {name: value for name, value in variables if not name.startswith("SLURM_")},
        }

    earlier, later = essence(before), essence(now)
    if differing := [name for name in earlier if earlier[name] != later[name]]:
        yield Caution(
            "other-machine",
            f"this launch differs from the one that began the run in its {', '.join(differing)}: the figures mix both "
            "(run.json has the details)",
        )


def clock_step_ns() -> int:
    """The least step of the clock seen in a short loop, in nanoseconds."""
    least = 1 << 62
    for _ in range(1000):
        begin = end = perf_counter_ns()
        while end == begin:
            end = perf_counter_ns()
        least = min(least, end - begin)
    return least


def cautions(
    session: Session,
    kernel: type[Kernel],
    poll_interval_s: float,
    calibrations: Mapping[str, Calibration],
    gpus: Sequence[str] = (),
) -> list[Caution]:
    """All that could mislead in this run, for stderr and run.json. `gpus`: by rank, empty for none."""
    step_s = max(calibration.step_s for calibration in calibrations.values())
    return [*_placement(session), *_shared_gpus(session, gpus), *_compute(kernel, poll_interval_s, step_s), *_clock()]


def _placement(session: Session) -> Iterator[Caution]:
    # Hosts with one clock are one machine: containers, an emulated cluster.
    machine = [host for host in session.hosts if host.clock == session.hosts[0].clock]
    cores, ranks = len({core for host in machine for core in host.cores}), len(machine)
    if session.oversubscribed:
        yield Caution(
            "oversubscribed",
            f"{ranks} ranks share {cores} cores: a rank waits while others run, which looks like "
            "communication or like overlap; such rows are unresolved. Try mpirun -n "
            f"{max(2, min(cores, session.ranks))}",
        )
    elif _masks_overlap(session):
        yield Caution(
            "unbound",
            "ranks are not bound to cores and may wander; bind them: mpirun -bind-to core (MPICH), "
            "--bind-to core (Open MPI), srun --cpu-bind=cores",
        )
    threads = blas_threads(os.environ)
    if threads * ranks > cores and threads > 1:
        yield Caution(
            "blas-threads",
            f"{threads} BLAS threads on each of {ranks} ranks are more than {cores} cores; "
            f"set OMP_NUM_THREADS={max(1, cores // ranks)}",
        )


def _shared_gpus(session: Session, gpus: Sequence[str]) -> Iterator[Caution]:
    used = [(host.name, gpu) for host, gpu in zip(session.hosts, gpus, strict=False) if gpu]
    for host, gpu in sorted(set(used)):
        sharing = used.count((host, gpu))
        if sharing > 1:
            yield Caution(
                "shared-gpu",
                f"{sharing} ranks share the GPU {gpu} of {host}: their kernels take turns, which looks like "
                "communication; use one rank per GPU",
            )


def _masks_overlap(session: Session) -> bool:
    """Whether two ranks on one machine may run on the same core."""
    taken: set[tuple[str, int]] = set()
    for host in session.hosts:
        own = {(host.clock, core) for core in host.cores}
        if own & taken:
            return True
        taken |= own
    return False


def _compute(kernel: type[Kernel], poll_interval_s: float, step_s: float) -> Iterator[Caution]:
    if kernel.emulated:
        yield Caution(
            "emulated", "the compute is emulated: an accelerator that leaves the host free and contends for nothing"
        )
    if step_s > 2 * poll_interval_s and not kernel.device_driven:
        yield Caution(
            "coarse-steps",
            f"a step of the kernel lasts {format_duration(step_s)}: polling is no finer, whatever --poll-interval says",
        )
    working_set = getattr(kernel, "working_set_nbytes", 0)
    cache = last_level_cache_nbytes()
    if working_set and working_set <= cache:
        yield Caution(
            "cache-resident",
            f"the kernel's {approximate_bytes(working_set)} fit into the last-level cache of "
            f"{approximate_bytes(cache)}: it does not load the memory as it would elsewhere",
        )


def _clock() -> Iterator[Caution]:
    if not Path("/proc/thread-self/schedstat").exists():
        yield Caution(
            "no-cpu-wait", "this system does not tell when a rank waits for a core: a stolen core may read as overlap"
        )
    step = clock_step_ns()
    if step > _COARSE_NS:
        yield Caution("coarse-clock", f"the clock advances in steps of {step} ns: short messages cannot be timed")


def last_level_cache_nbytes() -> int:
    """Size of the largest cache of core 0 in bytes; 0 if it cannot be told."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0) if text[:-1].isdigit() else 0)
    return max(sizes)
