"""The tests that run inside MPI, started from here: so one `pytest` runs every tier."""

import pytest

from tests.cli.launch import ROOT, mpirun


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_inside_mpi(ranks):
    finished = mpirun(
        ranks, "-m", "pytest", "--with-mpi", "--color=no", "-p", "no:cacheprovider", "tests/mpi", cwd=ROOT, timeout=300
    )
    assert finished.status == 0, finished
    assert finished.out.count(" passed in ") == ranks, finished
    assert " failed" not in finished.out, finished
