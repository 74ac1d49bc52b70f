"""The order of the phases within an iteration: drawn anew, and balanced.

A Williams design: over one block of rows each phase stands at each position equally often and
follows each other phase equally often, so that what one phase leaves behind (caches, clocks,
queues) falls on all alike. Source: E. J. Williams, Experimental designs balanced for the
estimation of residual effects of treatments, Aust. J. Sci. Res. A 2 (1949) 149.
"""

import random


def block_length(phases: int) -> int:
    """Iterations of one balanced block: the number of phases if even, twice that if odd."""
    return phases if phases % 2 == 0 else 2 * phases


def balanced_block(phases: int, rng: random.Random) -> list[list[int]]:
    """Rows of phase indices, one per iteration, `block_length(phases)` of them, shuffled."""
    first = [0] * phases
    for position in range(1, phases):
        first[position] = (position + 1) // 2 if position % 2 else phases - position // 2
    rows = [[(value + shift) % phases for value in first] for shift in range(phases)]
    if phases % 2:
        rows += [row[::-1] for row in rows]
    labels = list(range(phases))
    rng.shuffle(labels)
    rng.shuffle(rows)
    return [[labels[value] for value in row] for row in rows]


def orders(phases: int, iterations: int, seed: str) -> list[list[int]]:
    """An order per iteration: whole balanced blocks, the last one cut if `iterations` is no multiple.

    The same on every rank that calls it with the same `seed`.
    """
    rng = random.Random(seed)
    rows: list[list[int]] = []
    while len(rows) < iterations:
        rows += balanced_block(phases, rng)
    return rows[:iterations]
