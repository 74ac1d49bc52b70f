"""Clocks of ranks on one machine, compared by real messages: the true offsets are known."""

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np
import pytest

from mpibench.engine import bench as bench_module
from mpibench.engine import measure
from mpibench.engine.offsets import Clocks
from mpibench.engine.plan import Visit
from mpibench.engine.synchronisation import Synchronisation
from tests.mpi.operations import make_bench, make_buffers, make_cell

pytestmark = pytest.mark.mpi(min_size=2)

SHIFT = 3_000_000_000_000  # ns, between one rank's clock and the next one's
DRIFT = 1e-4
SHAPES = {"straight": {}, "tree": {"straight": 1, "fan_out": 1}}


def own_clocks(session, **shape) -> Clocks:
    return Clocks([str(rank) for rank in range(session.ranks)], **shape)


class Shifted:
    """This rank's clock: rank 0's is true, the others are ahead and gain. Remembers what was true."""

    def __init__(self, session):
        self._rank = session.rank
        self._zero = session.control.bcast(perf_counter_ns())
        self.true = {}

    def __call__(self) -> int:
        now = perf_counter_ns()
        shown = now + self._rank * (SHIFT + round(DRIFT * (now - self._zero)))
        self.true[shown] = now
        return shown


@pytest.mark.parametrize("shape", SHAPES)
def test_the_true_offset_of_one_machines_clock_lies_within_the_uncertainty(session, shape):
    synchronised = Synchronisation(session, own_clocks(session, **SHAPES[shape]))
    synchronised.synchronise()
    record = synchronised.record()
    assert [clock["rank"] for clock in record] == list(range(1, session.ranks))
    assert [clock["against_rank"] for clock in record] == [
        0 if shape == "straight" else rank - 1 for rank in range(1, session.ranks)
    ]
    if session.rank:
        assert synchronised.clocks.points == [[]] * session.ranks, "rank 0 keeps them"
        return
    for clock in record:
        (point,) = clock["synchronisations"]
        assert point["round_trips"] >= 100
        assert point["early"] == 0
        assert abs(point["offset_ns"]) <= point["uncertainty_ns"] + 1


@pytest.mark.parametrize("shape", SHAPES)
def test_clocks_that_are_apart_and_drift_are_corrected(session, shape):
    clock = Shifted(session)
    synchronised = Synchronisation(session, own_clocks(session, **SHAPES[shape]), clock)
    synchronised.begin()
    stamps = np.array([clock() for _ in range(100)])
    synchronised.renew()
    stamps = np.concatenate([stamps, [clock() for _ in range(100)]])  # behind the last comparison
    every = session.control.gather(stamps)
    true = session.control.gather(np.array([clock.true[stamp] for stamp in stamps.tolist()]))
    if session.rank:
        return
    for part in (slice(0, 100), slice(100, 200)):
        own, wanted = np.array(every)[:, part], np.array(true)[:, part]
        bound = synchronised.clocks.uncertainty_ns(own)
        assert np.isfinite(bound)
        assert (np.abs(synchronised.clocks.to_root(own) - wanted) <= bound + 2 * session.ranks).all()


def _capture(monkeypatch) -> list:
    """What `fold` is given and what it returns, on rank 0."""
    seen = []
    fold: Callable = bench_module.fold

    def recorded(where, names, every, hot, seconds, keep_ranks):
        measured = fold(where, names, every, hot, seconds, keep_ranks)
        seen.append((where, every, measured))
        return measured

    monkeypatch.setattr(bench_module, "fold", recorded)
    return seen


def test_a_visit_on_clocks_that_are_apart_reads_the_true_spans(session, monkeypatch):
    clock, seen = Shifted(session), _capture(monkeypatch)
    synchronised = Synchronisation(session, own_clocks(session), clock)
    bench = make_bench(session, make_buffers(session, 100_000), clocks=synchronised, clock=clock)
    bench.visit(make_cell(100_000), Visit(0, 0, 12, float("inf")), hot=True)
    bench.visit(make_cell(100_000), Visit(0, 1, 12, float("inf")), hot=False)
    bench.release()
    known = session.control.gather(clock.true)
    if session.rank:
        assert not seen
        return
    assert len(seen) == 2
    assert all(len(points) >= 3 for points in synchronised.clocks.points[1:]), "before, after, at the end"
    for where, every, measured in seen:
        assert measured.early == 0
        assert measured.local is not None
        stamps = every[..., [measure.BEGIN, measure.END]]
        true = np.array([[[[known[rank][int(stamp)] for stamp in phase] for phase in row] for row in own]
                         for rank, own in enumerate(stamps)])  # fmt: skip
        spans = true[..., 1].max(axis=0) - true[..., 0].max(axis=0)
        bound = where.clocks.uncertainty_ns(stamps) + 2 * session.ranks
        samples = measured.samples[~np.char.endswith(measured.samples["phase"].astype(str), "-hot")]
        lasting = (stamps[..., 1] - stamps[..., 0]).max(axis=0)
        for row, local in zip(samples, measured.local[-len(samples) :], strict=True):
            at = row["iteration"], [*bench._names].index((row["phase"], row["progress"]))
            assert local["span_ns"] == lasting[at]
            if row["skew_ns"] < 0:  # other processes keep the machine busy: not known to a fifth of N
                assert row["span_ns"] == lasting[at]
            else:
                assert abs(row["span_ns"] - spans[at]) <= bound


def test_ranks_that_share_a_clock_exchange_nothing(session):
    bench = make_bench(
        session, make_buffers(session, 100), clocks=Synchronisation(session, Clocks(["one"] * session.ranks))
    )
    measured = bench.visit(make_cell(100), Visit(0, 0, 12, float("inf")), hot=False)
    bench.release()
    assert bench.clocks.record() == []
    if measured is not None:
        assert measured.local is None
        assert (measured.samples["skew_ns"] >= 0).all()


def test_a_clock_that_is_set_while_it_is_used_is_found_and_not_believed(session, monkeypatch):
    clock, jump = Shifted(session), [0]
    monkeypatch.setattr(
        session.guard, "beat", lambda iteration, phase: jump.__setitem__(0, 10**9 * (iteration >= 6 or jump[0] > 0))
    )

    def stepped() -> int:
        return clock() + (jump[0] if session.rank == 1 else 0)

    bench = make_bench(
        session,
        make_buffers(session, 1000),
        clocks=Synchronisation(session, own_clocks(session), stepped),
        clock=stepped,
    )
    first = bench.visit(make_cell(1000), Visit(0, 0, 12, float("inf")), hot=False)
    again = bench.visit(make_cell(1000), Visit(0, 1, 12, float("inf")), hot=False)
    bench.release()
    if session.rank:
        return
    assert first.early > 0
    assert (first.samples["skew_ns"] == -1).all()
    assert first.samples.tolist() == first.local.tolist()
    # Behind the step there are two points again, or one before it if a comparison was not due.
    assert again.early == 0 or (again.samples["skew_ns"] == -1).all()
