"""What all ranks must agree on: results, errors, calibrated steps, and one time for a phase."""

import os
from time import perf_counter_ns

import numpy as np
import pytest

from mpibench.engine.calibrate import calibrate
from mpibench.engine.clocks import spans
from mpibench.engine.device import HostDevice
from mpibench.errors import EnvironmentRefused, UsageError
from mpibench.kernels.delay import Delay
from mpibench.kernels.gemm import Gemm
from mpibench.kernels.triad import Triad
from mpibench.units import parse_computes

pytestmark = pytest.mark.mpi(min_size=2)


def test_the_communicators_are_private(session):
    assert session.ranks == session.mpi.COMM_WORLD.size
    assert session.rank == session.mpi.COMM_WORLD.rank
    world = session.mpi.COMM_WORLD
    for one, other in ((session.comm, world), (session.control, world), (session.comm, session.control)):
        assert session.mpi.Comm.Compare(one, other) == session.mpi.CONGRUENT


def test_hosts_are_known_by_rank(session):
    assert [host.pid for host in session.hosts] == session.control.allgather(os.getpid())
    assert session.hosts[session.rank].pid == os.getpid()
    assert session.nodes >= 1
    assert 1 <= session.local_ranks <= session.ranks


def test_on_root_gives_rank_0s_result_to_all(session):
    seen = []
    result = session.on_root(lambda: seen.append(session.rank) or {"rank": session.rank, "values": [1, 2]})
    assert result == {"rank": 0, "values": [1, 2]}
    assert seen == ([0] if session.rank == 0 else [])


def test_on_root_gives_rank_0s_error_to_all(session):
    def refuse():
        raise UsageError(f"--flag: refused on rank {session.rank}")

    with pytest.raises(UsageError, match="--flag: refused on rank 0") as caught:
        session.on_root(refuse)
    assert caught.value.agreed
    assert session.on_root(lambda: "the next one works") == "the next one works"


def test_everywhere_keeps_each_ranks_own_result(session):
    assert session.everywhere(lambda: session.rank * 10) == session.rank * 10


def test_everywhere_raises_the_lowest_ranks_error_on_all(session):
    def refuse():
        if session.rank > 0:
            raise EnvironmentRefused(f"no device on rank {session.rank}")
        return "rank 0 is well"

    with pytest.raises(EnvironmentRefused, match="no device on rank 1") as caught:
        session.everywhere(refuse)
    assert caught.value.agreed
    assert session.everywhere(lambda: True)


@pytest.mark.parametrize(("kernel", "duration"), [(Gemm, "100us"), (Gemm, "2ms"), (Triad, "100us")])
def test_a_duration_is_the_same_number_of_steps_on_all_ranks(session, kernel, duration):
    (compute,) = parse_computes(duration)
    calibration = calibrate(session, HostDevice(), kernel(np, "float32", None), compute)
    every = session.control.allgather(calibration)
    assert all(other == every[0] for other in every)
    assert calibration.steps >= 1
    assert calibration.measured_s > 0


def test_a_gemm_of_an_order_is_one_step_on_all_ranks(session):
    (compute,) = parse_computes("n=32")
    calibration = calibrate(session, HostDevice(), Gemm(np, "float32", compute.order), compute)
    assert session.control.allgather(calibration.steps) == [1] * session.ranks


def test_an_emulated_kernel_needs_no_calibration(session):
    (compute,) = parse_computes("1.5ms")
    calibration = calibrate(session, HostDevice(), Delay(np, "float32", None), compute)
    assert session.control.allgather(calibration.steps) == [1500] * session.ranks
    assert calibration.measured_s == pytest.approx(1.5e-3)


def test_spans_of_ranks_that_share_a_clock_are_not_negative(session):
    if not session.common_clock:
        pytest.skip("several hosts")
    clock_ns = perf_counter_ns
    stamps = np.empty((2, 50, 1), dtype=np.int64)
    result, own = np.empty(8), np.ones(8)
    for iteration in range(50):
        session.control.Barrier()
        stamps[0, iteration] = clock_ns()
        session.comm.Allreduce(own, result)
        stamps[1, iteration] = clock_ns()
    every = np.array(session.control.allgather(stamps))
    found = spans(every[:, 0], every[:, 1], common=True)
    assert found.span.shape == found.skew.shape == found.slowest.shape == (50, 1)
    assert (found.span >= 0).all()  # nobody leaves an all-reduce before the last one came
    assert (found.skew >= 0).all()
    assert ((found.slowest >= 0) & (found.slowest < session.ranks)).all()
    local = spans(every[:, 0], every[:, 1], common=False)
    assert (local.span >= found.span).all()  # a late start of another rank counts there
