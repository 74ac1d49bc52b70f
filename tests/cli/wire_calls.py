"""Run under mpirun with the interposer: every way to start and complete an all-reduce, against the wire's own times.

A transfer takes 20 ms. That none ends earlier holds on any machine, however busy; that it ends is what a
hang of the test would show. Prints OK on rank 0. `refuse`: asks in a way that the interposer does not know.
`nothing`: no data are moved, and no result is there.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

DURATION_S = 0.02
comm = MPI.COMM_WORLD
send = np.full(256, comm.rank + 1, dtype=np.float64)
moves = sys.argv[1:] != ["nothing"]
total = comm.size * (comm.size + 1) / 2 if moves else 0.0


def start():
    receive = np.zeros_like(send)
    return comm.Iallreduce(send, receive), receive


def took(work):
    comm.Barrier()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def check(least, receives, work):
    elapsed = took(work)
    assert elapsed >= least * DURATION_S, (elapsed, least)
    for receive in receives:
        assert (receive == total).all()
        receive[:] = 0


def one_after_another():
    """Three at once share one wire: the last ends after three times the duration, whoever asks how."""
    for complete in (MPI.Request.Waitall, lambda requests: [r.Wait() for r in reversed(requests)], by_waitany,
                     by_waitsome, by_testall, by_testsome, by_testany):  # fmt: skip
        receives = []

        def work(complete=complete, receives=receives):
            requests, arrays = zip(*(start() for _ in range(3)), strict=True)
            receives.extend(arrays)
            complete(list(requests))
            assert all(request == MPI.REQUEST_NULL for request in requests)

        elapsed = took(work)
        assert elapsed >= 3 * DURATION_S, (complete, elapsed)
        assert all((receive == total).all() for receive in receives)


def by_waitany(requests):
    first = MPI.Request.Waitany(requests)
    assert first == 0, "the wire carries one after the other"
    assert MPI.Request.Waitany(requests) == 1
    assert MPI.Request.Waitany(requests) == 2
    assert MPI.Request.Waitany(requests) == MPI.UNDEFINED


def by_waitsome(requests):
    done = []
    while len(done) < 3:
        done += MPI.Request.Waitsome(requests)
    assert sorted(done) == [0, 1, 2]


def by_testall(requests):
    assert not MPI.Request.Testall(requests)
    while not MPI.Request.Testall(requests):
        pass


def by_testsome(requests):
    done = []
    while len(done) < 3:
        done += MPI.Request.Testsome(requests)
    assert sorted(done) == [0, 1, 2]


def by_testany(requests):
    done = []
    while len(done) < 3:
        index, flag = MPI.Request.Testany(requests)
        if flag:
            done.append(index)
    assert done == [0, 1, 2]


def singly():
    receive = np.zeros_like(send)
    check(1, [receive], lambda: comm.Allreduce(send, receive))
    check(1, [receive], lambda: comm.Iallreduce(send, receive).Wait())

    def test():
        request = comm.Iallreduce(send, receive)
        assert not request.Test()
        while not request.Test():
            pass

    check(1, [receive], test)


def persistently():
    receive = np.zeros_like(send)
    try:
        request = comm.Allreduce_init(send, receive)
    except NotImplementedError:
        return
    for _ in range(3):

        def work():
            request.Start()
            request.Wait()

        check(1, [receive], work)
        assert request != MPI.REQUEST_NULL
    request.Free()


def bookkeeping():
    """What does not go over the wire is right, and takes no 20 ms by design (not asserted: no absolute times)."""
    assert comm.allgather(comm.rank) == list(range(comm.size))
    assert comm.bcast("told" if comm.rank == 0 else None) == "told"
    gathered = comm.gather(comm.rank * "x")
    assert gathered == ([rank * "x" for rank in range(comm.size)] if comm.rank == 0 else None)
    into = np.zeros(comm.size) if comm.rank == 0 else None
    comm.Gather(np.array([float(comm.rank)]), into)
    assert comm.rank or (into == np.arange(comm.size)).all()
    outbox = comm.Isend(np.zeros(4), (comm.rank + 1) % comm.size)  # point to point passes through
    comm.Recv(np.zeros(4), (comm.rank - 1) % comm.size)
    outbox.Wait()


if sys.argv[1:] == ["refuse"]:
    request, _ = start()
    request.Get_status()
    raise SystemExit("not refused")
singly()
one_after_another()
persistently()
bookkeeping()
comm.Barrier()
if comm.rank == 0:
    print("OK")
