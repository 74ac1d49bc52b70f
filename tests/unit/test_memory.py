"""Whether a run fits in memory is known, and said, before anything is allocated."""

import pytest

from mpibench.engine.memory import available_nbytes, need_per_rank, refuse_too_large
from mpibench.errors import UsageError

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("largest", [0, MIB, 4 * GIB])
def test_the_need_holds_the_buffers_and_is_at_most_what_was_promised(largest: int, in_place: bool) -> None:
    need = need_per_rank(largest, in_place, 60 * MIB)
    assert (1 if in_place else 2) * largest + 60 * MIB <= need <= 6 * largest + 32 * MIB + 60 * MIB


def test_a_run_that_does_not_fit_is_told_its_need_and_what_is_free() -> None:
    hosts = [("a", 10 * GIB), ("b", 3 * GIB), ("b", 3 * GIB), ("a", 10 * GIB)]
    with pytest.raises(UsageError) as error:
        refuse_too_large(hosts, 2 * GIB, 512 * MIB)
    assert str(error.value) == (
        "--sizes: a message of 512 MiB does not fit: 2 ranks on b need 4.00 GiB, 3.00 GiB are free; "
        "use smaller sizes or fewer ranks per host"
    )
    assert error.value.status == 2


def test_what_fits_or_cannot_be_told_is_not_refused() -> None:
    refuse_too_large([("a", 4 * GIB), ("a", 4 * GIB)], 2 * GIB, MIB)
    refuse_too_large([("a", None), ("a", None)], 200 * GIB, 99 * GIB)


def test_every_host_is_looked_at() -> None:
    with pytest.raises(UsageError, match=r"1 ranks? on b need 2\.00 GiB"):
        refuse_too_large([("a", None), ("b", GIB)], 2 * GIB, MIB)


def test_what_is_free_is_a_number_of_bytes_of_this_machine() -> None:
    free = available_nbytes()
    assert free is None or 0 < free < 1 << 50
