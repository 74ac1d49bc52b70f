"""What could mislead is warned of, and only then; what is kept of the environment."""

from types import SimpleNamespace
from typing import Any

import pytest

from mpibench.engine import environment
from mpibench.engine.calibrate import Calibration
from mpibench.engine.launcher import BLAS_VARIABLES
from mpibench.engine.session import Host, Session
from mpibench.kernels import KERNELS

FINE = {"1ms": Calibration(100, 10e-6, 1e-3)}


def session(*cores: tuple[int, ...], hosts: str = "", clock: str = "") -> Any:
    """A session's view of ranks with these affinity masks, all on one host or one letter of `hosts` each.

    `clock`: of all hosts; each has its own if empty.
    """
    names = hosts or "a" * len(cores)
    made = SimpleNamespace(rank=0, ranks=len(cores), common_clock=bool(clock) or len(set(names)) == 1)
    made.hosts = [Host(name, clock or name, mask, 1) for name, mask in zip(names, cores, strict=True)]
    made.local_ranks = names.count(names[0])
    made.nodes = len(set(names))
    made.oversubscribed = Session.oversubscribed.fget(made)  # type: ignore[attr-defined]
    return made


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """One BLAS thread, a fine clock and a small cache."""
    for name in BLAS_VARIABLES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(environment, "clock_step_ns", lambda: 20)
    monkeypatch.setattr(environment, "last_level_cache_nbytes", lambda: 1 << 20)


def codes(made: Any, kernel: str = "gemm", poll_interval_s: float = 50e-6, calibrations: Any = None) -> list[str]:
    found = environment.cautions(made, KERNELS.load(kernel), poll_interval_s, calibrations or FINE)
    assert all(caution.text and "\n" not in caution.text for caution in found)
    return [caution.code for caution in found]


def test_bound_ranks_on_a_quiet_machine_are_not_warned_of() -> None:
    assert codes(session((0,), (1,))) == []
    assert codes(session((0, 1), hosts="a")) == []


def test_ranks_bound_to_several_cores_each_are_bound() -> None:
    assert codes(session((0, 1, 2, 3), (4, 5, 6, 7))) == []
    assert codes(session(*(tuple(range(4 * r, 4 * r + 4)) for r in range(4)))) == []


@pytest.mark.parametrize("ranks", [2, 3])
def test_unbound(ranks: int) -> None:
    assert codes(session(*[(0, 1, 2, 3)] * ranks)) == ["unbound"]


@pytest.mark.parametrize(("ranks", "hint"), [(8, "mpirun -n 2"), (3, "mpirun -n 2")])
def test_oversubscribed_says_how_many_and_what_to_try(ranks: int, hint: str) -> None:
    made = session(*[(0, 1)] * ranks)
    (caution,) = environment.cautions(made, KERNELS.load("gemm"), 50e-6, FINE)
    assert caution.code == "oversubscribed"
    assert f"{ranks} ranks share 2 cores" in caution.text
    assert hint in caution.text


def test_hosts_on_one_machine_share_its_cores() -> None:
    """An emulated cluster, or containers: three hosts of one rank each on two cores are oversubscribed."""
    made = session((0,), (1,), (0,), hosts="abc", clock="one")
    (caution,) = environment.cautions(made, KERNELS.load("gemm"), 50e-6, FINE)
    assert caution.code == "oversubscribed"
    assert "3 ranks share 2 cores" in caution.text
    assert codes(session((0,), (1,), hosts="ab", clock="one")) == []
    assert codes(session((0, 1), (0, 1), hosts="ab", clock="one")) == ["unbound"]
    assert "oversubscribed" not in codes(session((0,), (1,), (0,), hosts="abc"))


def test_ranks_that_share_a_gpu_are_warned_of_and_the_gpu_is_named() -> None:
    made = session((0,), (1,), (2,), hosts="aab")
    without = environment.cautions(made, KERNELS.load("gemm"), 50e-6, FINE, ["", "", ""])
    assert "shared-gpu" not in [caution.code for caution in without]
    apart = environment.cautions(made, KERNELS.load("gemm"), 50e-6, FINE, ["0:1", "0:2", "0:1"])
    assert "shared-gpu" not in [caution.code for caution in apart]
    shared = environment.cautions(made, KERNELS.load("gemm"), 50e-6, FINE, ["0:1", "0:1", "0:1"])
    (caution,) = [caution for caution in shared if caution.code == "shared-gpu"]
    assert caution.text.startswith("2 ranks share the GPU 0:1 of a")


def test_blas_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BLAS_VARIABLES[0], "2")
    assert codes(session((0,), (1,))) == ["blas-threads"]
    assert "blas-threads" not in codes(session((0, 1), (2, 3)))


def test_several_hosts() -> None:
    assert codes(session((0,), (0,), hosts="ab")) == [], "cores of one number on two hosts are two"


def test_the_kernel() -> None:
    quiet = session((0,), (1,))
    assert codes(quiet, "delay") == ["emulated"]
    assert codes(quiet, calibrations={"a": FINE["1ms"], "n=900": Calibration(1, 1e-3, 1e-3)}) == ["coarse-steps"]
    assert codes(quiet, poll_interval_s=4e-6) == ["coarse-steps"]


def test_a_kernel_that_fits_into_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert codes(session((0,), (1,)), "triad") == []
    monkeypatch.setattr(environment, "last_level_cache_nbytes", lambda: 1 << 30)
    assert codes(session((0,), (1,)), "triad") == ["cache-resident"]


def test_a_coarse_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "clock_step_ns", lambda: 4_000_000)
    assert codes(session((0,), (1,))) == ["coarse-clock"]


def test_what_changes_how_mpi_behaves_is_kept_and_the_rest_is_not() -> None:
    kept = {"UCX_TLS": "tcp", "FI_PROVIDER": "shm", "MPICH_ASYNC_PROGRESS": "1", "OMP_NUM_THREADS": "2"}
    assert environment.kept_variables({**kept, "HOME": "/root", "SECRET_TOKEN": "x", "XFI_": "1"}) == kept


def test_the_hosts_are_told_by_rank() -> None:
    assert environment.host_table(session((0,), (1, 2), hosts="ab")) == [
        {"rank": 0, "host": "a", "cores": [0], "pid": 1}, {"rank": 1, "host": "b", "cores": [1, 2], "pid": 1},
    ]  # fmt: skip


def test_the_machines_own_clock_and_cache_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert environment.clock_step_ns() > 0
    assert environment.last_level_cache_nbytes() >= 0
