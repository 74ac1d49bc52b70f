"""The values that betray an error: exact in every element type and order of addition, and no error is missed."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpibench.engine.buffers import DTYPES, Buffers, Pattern
from mpibench.engine.device import HostDevice
from mpibench.errors import UsageError

MPI: Any = SimpleNamespace(
    FLOAT="float", DOUBLE="double", INT32_T="int32", INT64_T="int64", IN_PLACE="in place",
    buffer=SimpleNamespace(frombuffer=lambda array: array),
)  # fmt: skip
COUNT = 300  # more than a period of the pattern


def formula(rank: int, round_: int, count: int = COUNT, period: int = 251) -> Any:
    """As docs/overlap.md has it, for ranks up to where the period shrinks."""
    return 1 + (np.arange(count) + round_) % period + rank % 1021


def one_by_one(terms: Any) -> Any:
    return np.add.accumulate(terms, axis=0, dtype=terms.dtype)[-1]


def as_a_tree(terms: Any) -> Any:
    while len(terms) > 1:
        odd = terms[len(terms) // 2 * 2 :]
        terms = np.concatenate([terms[0 : len(terms) // 2 * 2 : 2] + terms[1::2], odd])
    return terms[0]


def shuffled(terms: Any) -> Any:
    return one_by_one(np.random.default_rng(1).permutation(terms, axis=0))


ORDERS: list[Callable[[Any], Any]] = [one_by_one, lambda terms: one_by_one(terms[::-1]), as_a_tree, shuffled]


def sent_by_all(dtype: str, ranks: int, round_: int, count: int = COUNT) -> Any:
    """What `ranks` ranks send, (ranks, count); all ranks' patterns differ by rank mod 1021 alone."""
    first = np.zeros(count, dtype=dtype)
    Pattern(np, dtype, 0, ranks).fill(first, round_)
    return (first + (np.arange(ranks) % 1021)[:, None]).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [0, 1, 63, 1020, 1021, 1500])
def test_a_rank_sends_what_the_formula_says(dtype: str, rank: int) -> None:
    array = np.zeros(150_000, dtype=dtype)  # over several chunks
    for round_ in (0, 1, 250, 10**9):
        Pattern(np, dtype, rank, 2000).fill(array, round_)
        assert (array == formula(rank, round_, len(array))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sum_is_exact_for_up_to_64_ranks_in_any_order(dtype: str) -> None:
    every = sent_by_all(dtype, 64, 3)
    assert (every == [formula(rank, 3) for rank in range(64)]).all()
    for ranks in range(1, 65):
        pattern = Pattern(np, dtype, 0, ranks)
        for order in ORDERS:
            assert pattern.count_wrong(order(every[:ranks]), 3) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1021, 1022, 1500, 4096])
def test_the_sum_is_exact_for_many_ranks_in_any_order(dtype: str, ranks: int) -> None:
    every = sent_by_all(dtype, ranks, 5)
    assert (every[-1] == formula(ranks - 1, 5)).all()
    for order in ORDERS:
        assert Pattern(np, dtype, 0, ranks).count_wrong(order(every), 5) == 0


def test_where_float32_ends_the_period_shrinks_and_then_it_is_refused() -> None:
    """2^24 is the last whole number up to which float32 holds all: with p ranks sums reach p M + sum of r mod 1021."""
    for ranks in (22_000, 25_000, 30_000, 32_000):
        every = sent_by_all("float32", ranks, 2, count=64)
        assert int(every.astype(np.int64).sum(axis=0).max()) <= 1 << 24
        assert len(np.unique(every[0])) > 1
        for order in ORDERS[:3]:
            assert Pattern(np, "float32", 0, ranks).count_wrong(order(every), 2) == 0
    with pytest.raises(UsageError, match="--dtype float32: the sum over 40000 ranks is not exact in it; use float64"):
        Pattern(np, "float32", 0, 40_000)
    Pattern(np, "float64", 0, 40_000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64, 1500])
def test_every_error_is_found(dtype: str, ranks: int) -> None:
    pattern = Pattern(np, dtype, 0, ranks)
    every = sent_by_all(dtype, ranks, 11)
    right = as_a_tree(every)
    for index in (0, 1, 250, 251, COUNT - 1):
        flipped = right.copy()
        flipped[index] += 1
        assert pattern.count_wrong(flipped, 11) == 1
    assert pattern.count_wrong(np.full(COUNT, -1, dtype=dtype), 11) == COUNT, "poison"
    assert pattern.count_wrong(np.roll(right, 1), 11) == COUNT, "shifted by an element"
    if dtype.startswith("float"):
        assert pattern.count_wrong(np.full(COUNT, np.nan, dtype=dtype), 11) == COUNT
    for later in range(12, 40):  # a stale round: as many phases as a visit has and more
        assert pattern.count_wrong(right, later) == COUNT
    if ranks > 1:
        assert pattern.count_wrong(every[0], 11) == COUNT, "not added at all"
        assert pattern.count_wrong(right - every[-1], 11) == COUNT, "a rank left out"
        assert pattern.count_wrong(right - every[1] + every[0], 11) == COUNT, "a rank taken for another"


def test_wrong_elements_in_every_chunk_are_counted() -> None:
    pattern = Pattern(np, "float32", 0, 2)
    right = as_a_tree(sent_by_all("float32", 2, 4, count=200_000))
    assert pattern.count_wrong(right, 4) == 0
    right[::50_000] += 1
    assert pattern.count_wrong(right, 4) == 4


def made(count: int = COUNT, *, in_place: bool = False, dtype: str = "float32", rank: int = 1) -> Any:
    return Buffers(HostDevice(), MPI, count, dtype, rank, 3, in_place)


@pytest.mark.parametrize("dtype", DTYPES)
def test_buffers_are_filled_and_poisoned_and_mpi_is_handed_them(dtype: str) -> None:
    buffers = made(dtype=dtype)
    buffers.fill(8)
    assert (buffers.send_array == formula(1, 8)).all()
    assert (buffers.receive_array == -1).all()
    assert buffers.count_wrong(8) == COUNT, "untouched"
    kind = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    assert buffers.send[0] is buffers.send_array
    assert buffers.receive[0] is buffers.receive_array
    assert buffers.send[1:] == buffers.receive[1:] == [COUNT, kind]
    buffers.receive_array[:] = as_a_tree(sent_by_all(dtype, 3, 8))
    assert buffers.count_wrong(8) == 0


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_in_place(rank: int) -> None:
    buffers = made(in_place=True, rank=rank)
    buffers.fill(8)
    assert buffers.send == "in place"
    assert buffers.send_array is buffers.receive_array
    assert (buffers.receive_array == formula(rank, 8)).all()
    assert buffers.count_wrong(8) == COUNT, "untouched"
    buffers.receive_array[:] = as_a_tree(sent_by_all("float32", 3, 8))
    assert buffers.count_wrong(8) == 0
    buffers.receive_array[:] = 2 * buffers.receive_array
    assert buffers.count_wrong(8) == COUNT, "added twice"


@pytest.mark.parametrize("in_place", [False, True])
def test_smaller_messages_use_the_beginning_and_nothing_has_no_error(in_place: bool) -> None:
    buffers = made(in_place=in_place)
    whole = buffers.receive_array
    for count in (0, 1, 17, COUNT):
        buffers.select(count)
        assert buffers.receive[1] == len(buffers.receive_array) == len(buffers.send_array) == count
        assert np.shares_memory(whole, buffers.receive_array) or not count
        whole[:] = 55
        buffers.fill(1)
        assert (whole[count:] == 55).all()
        assert buffers.count_wrong(1) == count
    empty = made(0, in_place=in_place)
    empty.fill(1)
    assert empty.count_wrong(1) == 0
