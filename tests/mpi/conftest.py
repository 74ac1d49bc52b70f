"""Tests inside MPI: `mpirun -n 4 python -m pytest --with-mpi tests/mpi`. Without --with-mpi they are skipped.

pytest-mpi starts MPI (at the highest thread level) before the first test, mpi4py ends it after the
last. After every test all ranks meet; where one does not come, or a test fails on one of them,
the job is ended, with what that rank has to say: otherwise the others would wait for ever.
"""

import os
import sys
import time
from collections.abc import Iterator

import pytest

from mpibench.engine.guard import Guard
from mpibench.engine.launcher import identify
from mpibench.engine.session import Session

_MEETING_S = 60.0  # longest wait for the other ranks after a test
_FAILURES = pytest.StashKey[list[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.stash.setdefault(_FAILURES, []).append(report.longreprtext)
    return report


@pytest.fixture(scope="session")
def session() -> Session:
    """A session on the MPI that runs already. Its guard watches nothing, and nobody finalises it."""
    from mpi4py import MPI

    return Session(MPI, Guard(float("inf")), identify(os.environ))


@pytest.fixture(scope="session")
def meeting_comm(session: Session):
    return session.mpi.COMM_WORLD.Dup()


@pytest.fixture(autouse=True)
def meet(request: pytest.FixtureRequest, meeting_comm) -> Iterator[None]:
    """All ranks leave a test together, and all of them well."""
    yield
    failures = request.node.stash.get(_FAILURES, [])
    arrived = meeting_comm.Ibarrier()
    deadline = time.monotonic() + _MEETING_S
    while not (failures or arrived.Test()) and time.monotonic() < deadline:
        time.sleep(0.001)
    if not failures and arrived.Test():
        return
    told = "\n".join(failures) or "the other ranks did not come"
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\nrank {meeting_comm.rank}: {request.node.nodeid}:\n{told}", file=sys.stderr, flush=True)
        meeting_comm.Abort(1)
