"""mpibench.engine.order: balance and determinism."""

import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpibench.engine.order import balanced_block, block_length, orders

phases = st.integers(1, 12)
seeds = st.text(max_size=8)


@pytest.mark.parametrize(("count", "length"), [(2, 2), (4, 4), (5, 10), (6, 6), (7, 14)])
def test_a_block_is_as_long_as_the_phases_or_twice_if_odd(count: int, length: int) -> None:
    assert block_length(count) == length
    assert len(balanced_block(count, random.Random(0))) == length


@given(phases, seeds)
def test_every_row_runs_every_phase_once(count: int, seed: str) -> None:
    for row in balanced_block(count, random.Random(seed)):
        assert sorted(row) == list(range(count))


@given(phases, seeds)
def test_each_phase_stands_at_each_position_equally_often(count: int, seed: str) -> None:
    block = balanced_block(count, random.Random(seed))
    places = Counter((phase, place) for row in block for place, phase in enumerate(row))
    assert len(places) == count * count
    assert set(places.values()) == {len(block) // count}


@given(st.integers(2, 12), seeds)
def test_each_phase_follows_each_other_equally_often(count: int, seed: str) -> None:
    block = balanced_block(count, random.Random(seed))
    pairs = Counter(pair for row in block for pair in pairwise(row))
    assert len(pairs) == count * (count - 1)
    assert set(pairs.values()) == {len(block) // count}


@given(phases, st.integers(0, 60), seeds)
def test_orders_are_whole_blocks_the_last_one_cut(count: int, iterations: int, seed: str) -> None:
    rows = orders(count, iterations, seed)
    assert len(rows) == iterations
    length = block_length(count)
    for start in range(0, iterations - length + 1, length):
        block = rows[start : start + length]
        places = Counter((phase, place) for row in block for place, phase in enumerate(row))
        assert set(places.values()) == {length // count}


@given(phases, st.integers(0, 40), st.integers(0, 40), seeds)
def test_a_shorter_visit_is_the_beginning_of_a_longer(count: int, iterations: int, more: int, seed: str) -> None:
    assert orders(count, iterations + more, seed)[:iterations] == orders(count, iterations, seed)


def test_one_seed_gives_one_order_in_every_process() -> None:
    # Ranks agree without a message: neither hash randomisation nor anything drawn before may count.
    code = "from mpibench.engine.order import orders; print(orders(6, 12, 'cell 3, visit 2, seed 0'))"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    random.seed(1)
    assert printed.strip() == str(orders(6, 12, "cell 3, visit 2, seed 0"))


def test_other_seeds_and_other_blocks_give_other_orders() -> None:
    assert len({str(orders(6, 12, str(seed))) for seed in range(50)}) == 50
    rows = orders(6, 600, "0")
    assert len({str(rows[start : start + 6]) for start in range(0, 600, 6)}) > 90
