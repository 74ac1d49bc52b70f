"""What launchers tell in the environment, and what is chosen from it before MPI starts."""

import os
from pathlib import Path
from typing import Any

import pytest

from mpibench.engine.launcher import (
    BLAS_VARIABLES,
    Launch,
    async_progress,
    blas_threads,
    choose_thread_level,
    identify,
    limit_blas_threads,
    refuse_single_rank,
)
from mpibench.errors import EnvironmentRefused

HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4", "PMI_FD": "9"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3", "PMIX_RANK": "5",
}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "11", "SLURM_NTASKS": "11", "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2",
}  # fmt: skip
# sbatch --ntasks=8: the batch script itself is one process of no step.
SBATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


def launch(**changes: Any) -> Launch:
    return Launch(
        **{"rank": 0, "ranks": 4, "local_rank": 0, "local_ranks": 2, "open_mpi": False, "cores": 4, **changes}
    )


@pytest.mark.parametrize(
    ("environ", "rank", "ranks", "local_rank", "local_ranks", "open_mpi"),
    [
        ({}, 0, 1, 0, 1, False),
        ({"PATH": "/bin", "PMI_RANK": "", "OMPI_COMM_WORLD_SIZE": "many"}, 0, 1, 0, 1, False),
        (HYDRA, 3, 8, 1, 4, False),
        (OPEN_MPI, 5, 6, 2, 3, True),
        (SRUN, 9, 11, 1, 3, False),
        (SRUN | {"PMI_RANK": "9", "PMI_SIZE": "11"}, 9, 11, 1, 3, False),  # srun --mpi=pmi2
        (SRUN | {"PMIX_RANK": "9"}, 9, 11, 1, 3, False),  # srun --mpi=pmix
        (SBATCH | HYDRA, 3, 8, 1, 4, False),  # mpirun inside a batch script
        (SBATCH | OPEN_MPI, 5, 6, 2, 3, True),
    ],
    ids=["none", "junk", "hydra", "openmpi", "srun", "srun-pmi2", "srun-pmix", "sbatch-hydra", "sbatch-openmpi"],
)
def test_identify(
    environ: dict[str, str], rank: int, ranks: int, local_rank: int, local_ranks: int, open_mpi: bool
) -> None:
    cores = len(os.sched_getaffinity(0))
    assert identify(environ) == Launch(rank, ranks, local_rank, local_ranks, open_mpi, cores)


def test_a_batch_script_without_a_launcher_is_one_process() -> None:
    assert identify(SBATCH).ranks == 1


@pytest.mark.parametrize(
    ("tasks", "node", "local_ranks"),
    [
        ("4(x2),3", 0, 4), ("4(x2),3", 1, 4), ("4(x2),3", 2, 3), ("2", 0, 2), ("1,2,3", 1, 2), ("16(x128)", 127, 16),
        ("4(x2),3", 3, 1), ("", 0, 1), ("four", 0, 1),
    ],
)  # fmt: skip
def test_slurm_tells_the_tasks_of_every_node(tasks: str, node: int, local_ranks: int) -> None:
    environ = SRUN | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": str(node)}
    assert identify(environ).local_ranks == local_ranks


@pytest.mark.parametrize(
    ("asked", "strategies", "local_ranks", "level", "reason"),
    [
        ("auto", ("none", "poll"), 4, "funneled", "what most programs ask for"),
        ("auto", ("none", "poll"), 5, "multiple", "5 ranks share 4 cores"),
        ("auto", ("none", "thread"), 1, "multiple", "second thread"),
        ("single", ("thread",), 9, "single", "as asked"),
        ("serialized", ("none",), 1, "serialized", "as asked"),
        ("multiple", ("none",), 1, "multiple", "as asked"),
    ],
)
def test_thread_level(asked: str, strategies: tuple[str, ...], local_ranks: int, level: str, reason: str) -> None:
    found, why = choose_thread_level(asked, launch(local_ranks=local_ranks), strategies)
    assert found == level
    assert reason in why


@pytest.mark.parametrize(("cores", "local_ranks", "threads"), [(4, 1, 4), (4, 2, 2), (4, 3, 1), (2, 8, 1)])
def test_blas_threads_are_cores_over_local_ranks(cores: int, local_ranks: int, threads: int) -> None:
    environ: dict[str, str] = {}
    said = limit_blas_threads(environ, launch(cores=cores, local_ranks=local_ranks))
    assert environ == dict.fromkeys(BLAS_VARIABLES, str(threads))
    assert said == f"set to {threads}: {cores} cores over {local_ranks} local ranks"
    assert blas_threads(environ) == threads


@pytest.mark.parametrize("name", BLAS_VARIABLES)
def test_blas_threads_that_the_user_set_are_left_alone(name: str) -> None:
    environ = {name: "3"}
    assert limit_blas_threads(environ, launch()) == f"as set: {name}=3"
    assert environ == {name: "3"}
    assert blas_threads(environ) == 3


def test_several_ranks_are_not_refused() -> None:
    refuse_single_rank(2, launch(), "MPICH 5", "mpibench.overlap")


def test_one_rank_is_told_how_to_start_more() -> None:
    with pytest.raises(EnvironmentRefused, match=r"mpirun -n 2 python -m mpibench\.overlap$") as error:
        refuse_single_rank(1, launch(ranks=1), "MPICH 5", "mpibench.overlap")
    assert error.value.status == 3


def test_n_singletons_are_told_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        if name != "b":
            (tmp_path / name / "mpirun").write_text("#!/bin/sh\n")
            (tmp_path / name / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / name) for name in ("a", "b", "c")))
    with pytest.raises(EnvironmentRefused) as error:
        refuse_single_rank(1, launch(ranks=8), "MPICH Version: 5.0", "mpibench.overlap")
    said = str(error.value)
    for part in ("8 processes", "MPICH Version: 5.0", "srun --mpi=pmi2", f"{tmp_path}/a/mpirun, {tmp_path}/c/mpirun"):
        assert part in said
    assert f"{tmp_path}/b" not in said
    assert "\n" not in said
    monkeypatch.setenv("PATH", str(tmp_path / "b"))
    with pytest.raises(EnvironmentRefused, match="on PATH: none"):
        refuse_single_rank(1, launch(ranks=8), "MPICH", "mpibench.overlap")


def test_bound_ranks_have_the_cores_that_their_launcher_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = {0: {3}, os.getppid(): {0, 1, 2, 3}}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: masks[pid])
    bound = identify({"MPI_LOCALNRANKS": "4", "PMI_RANK": "3"})
    assert bound.cores == 4
    assert choose_thread_level("auto", bound, ("none",))[0] == "funneled"


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, ""),
        ({"MPICH_ASYNC_PROGRESS": "1"}, "MPICH_ASYNC_PROGRESS=1"),
        ({"MPICH_ASYNC_PROGRESS": "0", "I_MPI_ASYNC_PROGRESS": "yes"}, "I_MPI_ASYNC_PROGRESS=yes"),
        ({"MPIR_CVAR_ASYNC_PROGRESS": "off"}, ""),
    ],
)
def test_the_librarys_own_progress_is_told(environ: dict[str, str], told: str) -> None:
    assert async_progress(environ) == told
