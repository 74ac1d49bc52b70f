"""What the launcher tells in the environment, before MPI starts: who we are and how many share this host.

Needed early: the thread level and the BLAS threads must be chosen before MPI and numpy are
imported, and a usage error must be printed once. Pure functions of the environment.
"""

import os
import re
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import NamedTuple

from mpibench.errors import EnvironmentRefused

_RANK = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_RANKS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_LOCAL_RANK = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_LOCAL_RANKS = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
BLAS_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


class Launch(NamedTuple):
    """This process as the launcher sees it."""

    rank: int  # in the job; 0 where nothing tells
    ranks: int  # of the job; 1 where nothing tells
    local_rank: int  # on this host
    local_ranks: int  # on this host; 1 where nothing tells
    open_mpi: bool  # started by Open MPI's mpirun
    cores: int  # that the ranks of this host may use together


def identify(environ: Mapping[str, str]) -> Launch:
    """Read the variables of Hydra, PMIx, Open MPI and Slurm."""
    return Launch(
        rank=_first(environ, _RANK, 0),
        ranks=_first(environ, _RANKS, 1),
        local_rank=_first(environ, _LOCAL_RANK, 0),
        local_ranks=_first(environ, _LOCAL_RANKS, 0) or _slurm_local_ranks(environ),
        open_mpi="OMPI_COMM_WORLD_RANK" in environ,
        cores=_cores(),
    )


def _cores() -> int:
    """Cores that this host's ranks may use together: a launcher that binds ranks is itself not bound."""
    cores = os.sched_getaffinity(0)
    with suppress(OSError):  # the launcher is gone
        cores |= os.sched_getaffinity(os.getppid())
    return len(cores)


def _first(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return default


def _slurm_local_ranks(environ: Mapping[str, str]) -> int:
    """Tasks of this step on this node, from a list such as "4(x2),3"; 1 without Slurm."""
    counts: list[int] = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    node = _first(environ, ("SLURM_NODEID",), 0)
    return counts[node] if node < len(counts) else 1


def choose_thread_level(asked: str, launch: Launch, strategies: tuple[str, ...]) -> tuple[str, str]:
    """The MPI thread level to ask for, and the reason in words.

    `auto` is funneled, or multiple where a strategy needs a helper thread or ranks outnumber cores:
    MPICH yields the core while it waits at multiple only.
    """
    if asked != "auto":
        return asked, "as asked"
    if "thread" in strategies:
        return "multiple", "the thread strategy calls MPI from a second thread"
    if launch.local_ranks > launch.cores:
        return "multiple", (
            f"{launch.local_ranks} ranks share {launch.cores} cores, and a waiting MPICH yields its core only then"
        )
    return "funneled", "what most programs ask for"


def limit_blas_threads(environ: MutableMapping[str, str], launch: Launch) -> str:
    """Set the BLAS libraries' thread counts to cores over local ranks, unless the user did; say which.

    To be called before numpy is imported.
    """
    given = [f"{name}={environ[name]}" for name in BLAS_VARIABLES if name in environ]
    if given:
        return "as set: " + ", ".join(given)
    threads = max(1, launch.cores // launch.local_ranks)
    for name in BLAS_VARIABLES:
        environ[name] = str(threads)
    return f"set to {threads}: {launch.cores} cores over {launch.local_ranks} local ranks"


def blas_threads(environ: Mapping[str, str]) -> int:
    """BLAS threads per rank as the environment limits them; the first variable that is set counts."""
    return _first(environ, BLAS_VARIABLES, 1)


def refuse_single_rank(ranks: int, launch: Launch, library: str, module: str) -> None:
    """Refuse to measure communication with one rank, and say how the launch went wrong.

    Raises:
        EnvironmentRefused: if `ranks`, the size of MPI_COMM_WORLD, is 1.
    """
    if ranks > 1:
        return
    if launch.ranks > 1:
        import shutil

        found = [
            program
            for folder in os.environ.get("PATH", "").split(os.pathsep)
            if (program := shutil.which("mpirun", path=folder))
        ]
        raise EnvironmentRefused(
            f"the launcher started {launch.ranks} processes, but each is alone in its own MPI_COMM_WORLD: it does "
            f"not belong to the MPI library in use ({library}). Under Slurm try srun --mpi=pmi2 (srun --mpi=list "
            f"lists the kinds); else use the mpirun of that library (on PATH: {', '.join(found) or 'none'})"
        )
    raise EnvironmentRefused(f"one rank has nobody to communicate with; try: mpirun -n 2 python -m {module}")


_ASYNC_PROGRESS = ("MPICH_ASYNC_PROGRESS", "MPIR_CVAR_ASYNC_PROGRESS", "I_MPI_ASYNC_PROGRESS")


def async_progress(environ: Mapping[str, str]) -> str:
    """The setting that makes the library progress collectives by itself, as NAME=VALUE; empty without one.

    MPICH, Cray MPICH and Intel MPI have one; Open MPI has none.
    """
    for name in _ASYNC_PROGRESS:
        if environ.get(name, "0").strip().lower() not in ("", "0", "no", "off", "false"):
            return f"{name}={environ[name]}"
    return ""
