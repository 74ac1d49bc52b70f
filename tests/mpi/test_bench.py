"""A visit with real phases on real ranks: whole, in one order, correct; and it says when it is not."""

import numpy as np
import pytest

from mpibench.collectives.iallreduce import Iallreduce
from mpibench.collectives.persistent import Persistent
from mpibench.engine.order import block_length
from mpibench.engine.phases import phase_names
from mpibench.engine.plan import Visit
from mpibench.errors import Unsupported
from mpibench.kernels.gemm import Gemm
from mpibench.protocols import ALLREDUCE_HOT, COMPUTE, NONBLOCKING_HOT, OVERLAPPED, SEQUENTIAL
from mpibench.records import ABSENT, RANK_COLUMNS, RANK_SAMPLE_COLUMNS, SAMPLE_COLUMNS
from tests.mpi.operations import STRATEGIES, Corrupt, make_bench, make_buffers, make_cell

pytestmark = pytest.mark.mpi(min_size=2)

PHASES = phase_names(STRATEGIES)
ITERATIONS = block_length(len(PHASES))
FIRST = Visit(0, 0, ITERATIONS, float("inf"))


class Lacking(Iallreduce):
    """A collective that the MPI library of one rank lacks."""

    def prepare(self, comm, buffers):
        if comm.rank == comm.size - 1:
            raise Unsupported("not in this library")
        super().prepare(comm, buffers)


class Miscomputing(Gemm):
    """A kernel whose result is wrong."""

    def verify(self):
        super().verify()
        return False


def only_rank_0(session, measured):
    """The measured visit on rank 0; others get None."""
    assert (measured is None) == (session.rank != 0)
    return measured


def timed(samples):
    return samples[~np.isin(samples["phase"], (ALLREDUCE_HOT, NONBLOCKING_HOT))]


@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_a_visit_is_whole_and_correct(session, count, in_place):
    bench = make_bench(session, make_buffers(session, 1000, in_place=in_place))
    measured = only_rank_0(session, bench.visit(make_cell(count, in_place=in_place), FIRST, hot=False))
    bench.release()
    if measured is None:
        return
    assert measured.wrong == 0
    samples = measured.samples
    assert samples.dtype.names == SAMPLE_COLUMNS
    assert len(samples) == ITERATIONS * len(PHASES)
    for iteration in range(ITERATIONS):
        rows = samples[samples["iteration"] == iteration]
        assert rows["position"].tolist() == list(range(len(PHASES)))  # as they ran
        assert sorted(zip(rows["phase"], rows["progress"], strict=True)) == sorted(PHASES)
    assert (samples["span_ns"] >= 0).all()
    assert (samples["skew_ns"] >= 0).all()
    assert set(samples["slowest_rank"]) <= set(range(session.ranks))


def test_each_phase_has_its_parts(session):
    bench = make_bench(session, make_buffers(session, 1000))
    measured = only_rank_0(session, bench.visit(make_cell(1000), FIRST, hot=False))
    bench.release()
    if measured is None:
        return
    for name, progress in PHASES:
        rows = measured.samples[(measured.samples["phase"] == name) & (measured.samples["progress"] == progress)]
        assert len(rows) == ITERATIONS
        assert ((rows["start_ns"] != ABSENT) == (name in ("nonblocking", OVERLAPPED))).all(), name
        assert ((rows["during_ns"] != ABSENT) == (name in (COMPUTE, SEQUENTIAL, OVERLAPPED))).all(), name
        assert ((rows["wait_ns"] != ABSENT) == (name in ("nonblocking", SEQUENTIAL, OVERLAPPED))).all(), name
        assert ((rows["tests"] != ABSENT) == (name == OVERLAPPED)).all(), name
        if name == OVERLAPPED:
            assert ((rows["tests"] >= 1) if progress == "poll" else (rows["tests"] == 0)).all()
            parts = rows["start_ns"] + rows["during_ns"] + rows["wait_ns"]
            assert (rows["test_ns"] <= rows["during_ns"]).all()
            # The rank that ended last began at most the skew before the last one.
            assert (rows["span_ns"] <= parts).all()
            assert (parts <= rows["span_ns"] + rows["skew_ns"]).all()


def test_all_ranks_run_one_order(session, monkeypatch):
    ran = []
    monkeypatch.setattr(session.guard, "beat", lambda iteration, phase: ran.append((iteration, phase)))
    bench = make_bench(session, make_buffers(session, 3), seed=7)
    bench.visit(make_cell(3), FIRST, hot=False)
    bench.visit(make_cell(3), Visit(0, 1, ITERATIONS, float("inf")), hot=False)
    bench.release()
    every = session.control.allgather([place for place in ran if place[0] >= 0])
    assert all(order == every[0] for order in every)
    for iteration in range(ITERATIONS):
        mine = [phase for number, phase in every[0][: ITERATIONS * len(PHASES)] if number == iteration]
        assert sorted(mine) == list(range(len(PHASES)))


def test_time_that_is_over_ends_a_visit_on_all_ranks_at_once(session):
    bench = make_bench(session, make_buffers(session, 3))
    measured = only_rank_0(session, bench.visit(make_cell(3), Visit(0, 0, 1000, 0.0), hot=False))
    bench.release()
    if measured is not None:
        assert len(measured.samples) == len(PHASES)  # the first iteration is always run


def test_hot_loops_are_rows_of_their_own(session):
    bench = make_bench(session, make_buffers(session, 100))
    measured = only_rank_0(session, bench.visit(make_cell(100), FIRST, hot=True))
    again = only_rank_0(session, bench.visit(make_cell(100), Visit(0, 1, ITERATIONS, 60.0), hot=False))
    bench.release()
    if measured is None:
        return
    for name in (ALLREDUCE_HOT, NONBLOCKING_HOT):
        rows = measured.samples[measured.samples["phase"] == name]
        assert 1 <= len(rows) <= 1000
        assert (rows["position"] == ABSENT).all()
        assert not (again.samples["phase"] == name).any()
    assert len(timed(measured.samples)) == len(again.samples) == ITERATIONS * len(PHASES)
    assert measured.wrong == again.wrong == 0


def test_ranks_and_their_samples(session):
    bench = make_bench(session, make_buffers(session, 100), keep_ranks=True)
    measured = only_rank_0(session, bench.visit(make_cell(100), FIRST, hot=False))
    bench.release()
    if measured is None:
        return
    assert len(measured.ranks) == session.ranks * len(PHASES)
    assert {len(row) for row in measured.ranks} == {len(RANK_COLUMNS)}
    assert {row[2] for row in measured.ranks} == set(range(session.ranks))
    assert {row[6] for row in measured.ranks} == {ITERATIONS}
    assert len(measured.rank_samples) == session.ranks * len(PHASES) * ITERATIONS
    assert {len(row) for row in measured.rank_samples} == {len(RANK_SAMPLE_COLUMNS)}
    begin, end = (RANK_SAMPLE_COLUMNS.index(name) for name in ("begin_ns", "end_ns"))
    spans = {}
    for row in measured.rank_samples:  # the span again, from every rank's own times
        spans.setdefault((row[2], row[3], row[4]), []).append((row[begin], row[end]))
    for row in measured.samples:
        times = spans[row["iteration"], row["phase"], row["progress"]]
        assert row["span_ns"] == max(end for _, end in times) - max(begin for begin, _ in times)


@pytest.mark.parametrize("which", ["blocking", "start"])
@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
def test_a_wrong_element_is_counted(session, which, in_place):
    guilty = session.ranks - 1
    bench = make_bench(session, make_buffers(session, 50, in_place=in_place), lambda: Corrupt(guilty, which))
    measured = only_rank_0(session, bench.visit(make_cell(50, in_place=in_place), FIRST, hot=False))
    bench.release()
    if measured is not None:
        operations = {"blocking": 2, "start": 1 + len(STRATEGIES)}[which]  # B and S, or N and every T
        assert measured.wrong == operations * ITERATIONS


@pytest.mark.parametrize("which", ["blocking", "start"])
def test_a_wrong_element_in_a_hot_loop_is_counted(session, which):
    bench = make_bench(session, make_buffers(session, 50), lambda: Corrupt(0, which))
    measured = only_rank_0(session, bench.visit(make_cell(50), Visit(0, 0, 1, 60.0), hot=True))
    bench.release()
    if measured is not None:
        assert measured.wrong == {"blocking": 2, "start": 1 + len(STRATEGIES)}[which] + 1


def test_without_checks_nothing_is_compared(session):
    bench = make_bench(session, make_buffers(session, 50), lambda: Corrupt(0, "blocking"), checked=False)
    measured = only_rank_0(session, bench.visit(make_cell(50), FIRST, hot=False))
    bench.release()
    if measured is not None:
        assert measured.wrong == 0


def test_a_kernel_that_miscomputes_is_found(session):
    bench = make_bench(session, make_buffers(session, 3), kernel=Miscomputing(np, "float32", 16))
    measured = only_rank_0(session, bench.visit(make_cell(3), FIRST, hot=False))
    bench.release()
    if measured is not None:
        assert measured.wrong == session.ranks * ITERATIONS


def test_what_one_rank_lacks_is_unsupported_on_all(session):
    bench = make_bench(session, make_buffers(session, 3), Lacking)
    with pytest.raises(Unsupported, match="not in this library"):
        bench.visit(make_cell(3), FIRST, hot=False)
    bench.release()


def test_persistent_is_measured_or_unsupported(session):
    bench = make_bench(session, make_buffers(session, 1000), Persistent)
    try:
        measured = only_rank_0(session, bench.visit(make_cell(1000), FIRST, hot=True))
    except Unsupported as reason:
        pytest.skip(str(reason))
    finally:
        bench.release()
    if measured is not None:
        assert measured.wrong == 0
        assert len(timed(measured.samples)) == ITERATIONS * len(PHASES)
