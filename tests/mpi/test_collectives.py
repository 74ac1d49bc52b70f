"""Real all-reduces on real ranks: exact in every type, in and out of place, and a wrong element is found."""

import pytest

from mpibench.collectives import COLLECTIVES
from mpibench.engine.buffers import DTYPES
from mpibench.errors import Unsupported
from tests.mpi.operations import Corrupt, make_buffers

pytestmark = pytest.mark.mpi(min_size=2)

COUNTS = (0, 1, 3, 1000)


@pytest.fixture(params=list(COLLECTIVES))
def collective(request, session):
    """Makes prepared collectives of one kind, and frees them; skips where the library lacks it."""
    prepared = []

    def prepare(buffers):
        made = COLLECTIVES.load(request.param)()
        try:
            made.prepare(session.comm, buffers)
        except Unsupported as reason:
            pytest.skip(str(reason))
        prepared.append(made)
        return made

    yield prepare
    for made in prepared:
        made.release()


@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_is_exact_for_every_count(session, dtype, in_place):
    buffers = make_buffers(session, max(COUNTS), dtype, in_place)
    for round_, count in enumerate(COUNTS):
        buffers.select(count)
        buffers.fill(round_)
        session.comm.Allreduce(buffers.send, buffers.receive)
        assert buffers.count_wrong(round_) == 0, count


@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
def test_what_was_not_reduced_is_wrong_in_every_element(session, in_place):
    buffers = make_buffers(session, 1000, "float32", in_place)
    buffers.fill(0)
    assert buffers.count_wrong(0) == 1000


def test_the_result_of_another_round_is_wrong(session):
    buffers = make_buffers(session, 1000)
    buffers.fill(0)
    session.comm.Allreduce(buffers.send, buffers.receive)
    assert buffers.count_wrong(0) == 0
    assert buffers.count_wrong(1) == 1000


@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_verb_of_a_collective(session, collective, dtype, in_place):
    buffers = make_buffers(session, max(COUNTS), dtype, in_place)
    for count in COUNTS:
        buffers.select(count)
        made = collective(buffers)

        buffers.fill(1)
        made.blocking()
        assert buffers.count_wrong(1) == 0, (count, "blocking")

        buffers.fill(2)
        made.start().Wait()
        assert buffers.count_wrong(2) == 0, (count, "start and wait")

        buffers.fill(3)
        transfer = made.start()
        while not transfer.Test():
            pass
        assert buffers.count_wrong(3) == 0, (count, "start and tests")
        transfer.Wait()  # after a test that told the end, as the loop does
        assert buffers.count_wrong(3) == 0, (count, "wait after the last test")


def test_a_start_after_a_start(session, collective):
    buffers = make_buffers(session, 1000)
    made = collective(buffers)
    for round_ in range(20):
        buffers.fill(round_)
        made.start().Wait()
        assert buffers.count_wrong(round_) == 0


def test_two_message_sizes_prepared_at_once(session, collective):
    buffers = make_buffers(session, 1000)
    buffers.select(3)
    short = collective(buffers)
    buffers.select(1000)
    long = collective(buffers)
    for round_ in range(4):
        buffers.select(3)
        buffers.fill(round_)
        short.start().Wait()
        assert buffers.count_wrong(round_) == 0
        buffers.select(1000)
        buffers.fill(round_)
        long.start().Wait()
        assert buffers.count_wrong(round_) == 0


@pytest.mark.parametrize("which", ["blocking", "start"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_element_is_found_on_its_rank(session, dtype, which):
    for rank in range(session.ranks):
        buffers = make_buffers(session, 1000, dtype)
        made = Corrupt(rank, which)
        made.prepare(session.comm, buffers)
        buffers.fill(5)
        made.blocking() if which == "blocking" else made.start().Wait()
        assert buffers.count_wrong(5) == (1 if session.rank == rank else 0)
