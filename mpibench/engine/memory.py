"""Whether a run fits in memory, known before anything is allocated."""

from collections.abc import Sequence
from pathlib import Path

from mpibench.errors import UsageError
from mpibench.protocols import Kernel
from mpibench.units import Compute, approximate_bytes

_LIBRARY_MESSAGES = 2  # temporary messages that an MPI library takes for a reduction, at most seen
_HARNESS_NBYTES = 32 << 20  # per rank: patterns, samples, tables


def need_per_rank(largest_nbytes: int, in_place: bool, kernel_nbytes: int) -> int:
    """Bytes that a rank takes beyond what it has after MPI's start."""
    messages = (1 if in_place else 2) + _LIBRARY_MESSAGES
    return messages * largest_nbytes + _HARNESS_NBYTES + kernel_nbytes


def kernel_nbytes(kernel: type[Kernel], computes: Sequence[Compute]) -> int:
    """Bytes of a kernel's arrays: three matrices of the largest order asked for, while they are being made."""
    order = max((compute.order or 0 for compute in computes), default=0)
    return max(int(getattr(kernel, "working_set_nbytes", 0)), 5 * 8 * order**2)


def available_nbytes() -> int | None:
    """Bytes free on this host, or in this control group if that is less; None if neither can be told."""
    candidates = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                candidates.append(int(line.split()[1]) << 10)
    except OSError:
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            candidates.append(int(Path(limit).read_text()) - int(Path(used).read_text()) + _reclaimable(Path(limit)))
        except (OSError, ValueError):
            continue
    return min(candidates) if candidates else None


def _reclaimable(limit: Path) -> int:
    """Bytes of a control group's cache of files, which count as used but are given up when needed."""
    for line in (limit.parent / "memory.stat").read_text().splitlines():
        if line.startswith(("inactive_file ", "total_inactive_file ")):
            return int(line.split()[1])
    return 0


def refuse_too_large(hosts: Sequence[tuple[str, int | None]], need: int, largest_nbytes: int) -> None:
    """Refuse a run that does not fit.

    Args:
        hosts: by rank, the host's name and the bytes available there.
        need: bytes per rank.
        largest_nbytes: the largest message.

    Raises:
        UsageError: says the need and what is free, on the first host where it does not fit.
    """
    names = [name for name, _ in hosts]
    for name, available in dict(hosts).items():
        total = need * names.count(name)
        if available is not None and total > available:
            raise UsageError(
                f"--sizes: a message of {approximate_bytes(largest_nbytes)} does not fit: {names.count(name)} ranks on "
                f"{name} need {approximate_bytes(total)}, {approximate_bytes(available)} are free; use smaller sizes "
                "or fewer ranks per host"
            )
