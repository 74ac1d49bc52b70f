"""The real loop, phases and strategies on a clock moved by hand, with collectives whose behaviour is known."""

import gc
from itertools import count
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mpibench.analysis.figures import Times, case_figures
from mpibench.engine import measure as loop
from mpibench.engine.clocks import spans
from mpibench.engine.device import HostWork
from mpibench.engine.order import orders
from mpibench.engine.phases import build_phases
from mpibench.progress.none import NoProgress
from mpibench.progress.poll import Poll
from mpibench.protocols import Marks, Phase

SLOT = 1_000_000  # ns from barrier to barrier, longer than any phase: all ranks leave one at the same time
STEPS = 4  # of the compute
STRATEGIES = {"none": NoProgress(), "poll": Poll()}
B, N, C, S, T_NONE, T_POLL = range(6)
PARTS = [loop.START, loop.DURING, loop.TEST, loop.TESTS, loop.WAIT]


class World:
    """What all ranks' phases take, in ns; each of shape (ranks or 1, iterations, phases)."""

    def __init__(self, compute: Any, collective: Any, skew: Any) -> None:
        self.compute, self.collective, self.skew = compute // STEPS * STEPS, collective, skew

    @classmethod
    def constant(cls, compute: int, collective: int) -> "World":
        return cls(*(np.full((1, 12, 6), value) for value in (compute, collective, 0)))

    @classmethod
    def noisy(cls, seed: int, ranks: int, iterations: int, *, common: bool, skewed: bool = False) -> "World":
        """Compute of 2000 ns, a collective of 400 ns, times a factor from 1/2 to 2; `common` to an iteration."""
        rng = np.random.default_rng(seed)

        def draw(typical: int, rows: int) -> Any:
            factors = 2 ** rng.uniform(-1, 1, (rows, iterations, 1 if common else 6))
            return np.broadcast_to((typical * factors).astype(np.int64), (rows, iterations, 6))

        return cls(draw(2000, ranks), draw(400, 1), draw(300, ranks) * skewed)

    @classmethod
    def interrupted(cls, seed: int, ranks: int, iterations: int) -> "World":
        """Compute of 200 us and a collective of 100 us, both lengthened where an operating system takes a core away.

        A rank is interrupted in one phase of fifty, for 1 us on average; the collective waits for the worst of them.
        """
        rng = np.random.default_rng(seed)

        def lost() -> Any:
            shape = (ranks, iterations, 6)
            return (rng.exponential(1000, shape) * (rng.random(shape) < 0.02)).astype(np.int64)

        return cls(200_000 + lost(), 100_000 + lost().max(axis=0, keepdims=True), np.zeros((ranks, iterations, 6), int))


class Rank:
    """One simulated rank: clock, compute and buffers. Its collective completes alone: an ideal NIC."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        self.now = SLOT
        self.iteration = self.phase = self.done = self.tests = self.round = 0

    def clock(self) -> int:
        return self.now

    def beat(self, iteration: int, phase: int) -> None:
        self.iteration, self.phase = iteration, phase

    def sync(self) -> None:
        self.now = (self.now // SLOT + 1) * SLOT + int(self.world.skew[self.rank, self.iteration, self.phase])

    def step(self) -> None:
        self.now += int(self.world.compute[self.rank, self.iteration, self.phase]) // STEPS

    def completed(self, after_compute: bool) -> int:
        """When the collective is over if it moves from the moment on that the last rank is there."""
        i, p = self.iteration, self.phase
        arrival = self.world.skew[:, i, p] + (self.world.compute[:, i, p] if after_compute else 0)
        return int(self.now // SLOT * SLOT + arrival.max() + self.world.collective[0, i, p])

    def blocking(self) -> None:
        self.now = self.completed(self.phase == S)

    def start(self) -> "Rank":
        self.done = self.completed(False)
        return self

    def Test(self) -> bool:
        self.tests += 1
        return self.now >= self.done

    def Wait(self) -> None:
        self.now = max(self.now, self.done)

    def fill(self, round_: int) -> None:
        self.round = round_

    def count_wrong(self, round_: int) -> int:
        return 0 if round_ == self.round else 99


class NoProgressAtAll(Rank):
    """All of the collective is spent in Wait; tests do nothing."""

    def Test(self) -> bool:
        return False

    def Wait(self) -> None:
        self.now = self.completed(self.phase >= T_NONE)


class BlockingStart(Rank):
    """The call that starts does everything."""

    def start(self) -> Rank:
        self.now = self.done = self.completed(False)
        return self


class WorseThanSerial(NoProgressAtAll):
    """As if one after the other, and the collective once more."""

    def Wait(self) -> None:
        super().Wait()
        if self.phase >= T_NONE:
            self.now += int(self.world.collective[0, self.iteration, self.phase])


class OnlyInTests(Rank):
    """The collective has 5 parts of 80 ns; MPI calls begin the next one, a test takes 1 ns; the NIC completes it."""

    def start(self) -> Rank:
        self.parts, self.done = 4, self.now + 80
        return self

    def Test(self) -> bool:
        self.now += 1
        if self.parts and self.now >= self.done:
            self.parts, self.done = self.parts - 1, self.now + 80
        return not self.parts and self.now >= self.done

    def Wait(self) -> None:
        self.now = max(self.now, self.done) + 80 * self.parts


def run_rank(kind: type[Rank], world: World, rank: int) -> Any:
    """The stamps of a rank: (iterations, phases, FIELDS)."""
    me: Any = kind(world, rank)
    phases = build_phases(me, me, HostWork(me.step, STEPS), STRATEGIES, True)
    iterations = world.collective.shape[1]
    out = np.zeros((iterations, len(phases), loop.FIELDS), dtype=np.int64)
    done = loop.measure(
        phases, orders(len(phases), iterations, "seed"), first_round=7, preamble=lambda: None, sync=me.sync,
        keep_going=lambda: True, cpu_wait=lambda: 0, beat=me.beat, marks=Marks(1, me.clock), out=out,
    )  # fmt: skip
    assert done == iterations
    assert not out[..., loop.WRONG].any()
    return out


def simulate(kind: type[Rank], world: World, overlapped: int = T_NONE) -> dict[str, float]:
    """The figures of all ranks together."""
    ranks, iterations, _ = world.compute.shape
    stamps = np.array([run_rank(kind, world, rank) for rank in range(ranks)])
    folded = spans(stamps[..., loop.BEGIN], stamps[..., loop.END], common=True)

    def times(phase: int) -> Times:
        slowest = stamps[folded.slowest[:, phase], np.arange(iterations), phase]
        start, during, test, tests, wait = (np.where(slowest[:, f] < 0, np.nan, slowest[:, f] * 1e-9) for f in PARTS)
        span, skew, zero = folded.span[:, phase] * 1e-9, folded.skew[:, phase] * 1e-9, np.zeros(iterations)
        return Times(span, skew, start, during, test, tests * 1e9, wait, zero, folded.slowest[:, phase])

    cases = [times(phase) for phase in (B, N, C, S, overlapped)]
    return case_figures(*cases, nbytes=1024, ranks=ranks, host_driven=True)


KNOWN = [(Rank, 1.0, True), (NoProgressAtAll, 0.0, True), (BlockingStart, 0.0, False), (WorseThanSerial, -1.0, True)]


@pytest.mark.parametrize("overlapped", [T_NONE, T_POLL])
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize(("kind", "overlap", "skewed"), KNOWN)
def test_noise_common_to_an_iteration_leaves_overlap_exact(
    kind: type[Rank], overlap: float, skewed: bool, ranks: int, overlapped: int
) -> None:
    figures = simulate(kind, World.noisy(ranks, ranks, 24, common=True, skewed=skewed), overlapped)
    found = [figures[name] for name in ("overlap", "overlap_lo", "overlap_hi")]
    assert found == pytest.approx([overlap] * 3, abs=1e-9)
    assert figures["bias_s"] == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(("kind", "overlap"), [(Rank, 1.0), (NoProgressAtAll, 0.0), (BlockingStart, 0.0)])
def test_independent_noise_leaves_the_median_of_overlap_at_the_truth(kind: type[Rank], overlap: float) -> None:
    # T is drawn as N and C are, so overlap - truth has the sign of a fair coin: that of max(N, C) - max(N', C')
    # for a perfect system, of (N + C) - (N' + C') for a serial one. The interval holds it as often as it says.
    trials, held = 40, 0
    for seed in range(trials):
        figures = simulate(kind, World.noisy(seed, 2, 18, common=False))
        held += figures["overlap_lo"] <= overlap <= figures["overlap_hi"]
    assert stats.binom.cdf(held, trials, 0.95) > 1e-3


@pytest.mark.parametrize("ranks", [2, 64, 1000])
@pytest.mark.parametrize(("kind", "overlap"), [(Rank, 1.0), (NoProgressAtAll, 0.0)])
def test_interrupted_ranks_leave_overlap_unbiased(kind: type[Rank], overlap: float, ranks: int) -> None:
    figures = simulate(kind, World.interrupted(ranks, ranks, 50), T_POLL)
    assert figures["overlap"] == pytest.approx(overlap, abs=0.02)


def test_worse_than_serial_is_below_0_under_independent_noise() -> None:
    assert simulate(WorseThanSerial, World.noisy(1, 2, 200, common=False))["overlap_hi"] < 0


def test_progress_only_inside_tests_hides_what_the_tests_began() -> None:
    world = World.constant(400, 400)
    none, poll = simulate(OnlyInTests, world), simulate(OnlyInTests, world, T_POLL)
    assert none["nonblocking_s"] == pytest.approx(400e-9)
    assert none["overlap"] == pytest.approx(1 / 5)  # the part that the start began
    assert none["wait_s"] == pytest.approx(320e-9)
    # Tests after 100, 201 and 302 ns begin parts 2 to 4; part 4 ends within the compute, part 5 is left to Wait.
    assert [poll[name] for name in ("tests", "test_s", "wait_s", "start_s")] == pytest.approx([3, 3e-9, 80e-9, 0])
    assert poll["overlap"] == pytest.approx((400 + 400 - (403 + 80)) / 400)
    assert poll["compute_slowdown"] == pytest.approx(1)


def test_a_complete_transfer_is_not_tested_again() -> None:
    me = Rank(World.constant(2000, 400), 0)
    me.phase = T_POLL
    marks = Marks(1, me.clock)
    Poll().drive(HostWork(me.step, STEPS).launch(), me.start(), marks)
    assert (me.tests, marks.tests, me.now) == (1, 1, SLOT + 2000)


@pytest.mark.parametrize("kind", [Rank, NoProgressAtAll, BlockingStart, OnlyInTests])
def test_the_parts_add_up_and_others_are_absent(kind: type[Rank]) -> None:
    out = run_rank(kind, World.noisy(3, 1, 12, common=False), 0)
    every = set(PARTS)
    has = {B: set(), N: {loop.START, loop.WAIT}, C: {loop.DURING}, S: {loop.DURING, loop.WAIT}, T_NONE: every}
    for phase, parts in (has | {T_POLL: every}).items():
        rows = out[:, phase]
        assert {part for part in PARTS if (rows[:, part] != loop.ABSENT).all()} == parts
        assert {part for part in PARTS if (rows[:, part] == loop.ABSENT).all()} == every - parts
        whole = sum(rows[:, part] for part in parts - {loop.TEST, loop.TESTS})
        assert not parts or (whole == rows[:, loop.END] - rows[:, loop.BEGIN]).all()
        assert (rows[:, loop.TEST] <= rows[:, loop.DURING]).all()


class Logged:
    """A phase that takes no time and says what is done with it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def prepare(self, round_: int) -> None:
        self.log.append(f"prepare {self.name} {round_}")

    def run(self, marks: Marks) -> None:
        self.log.append(f"run {self.name}")
        marks.begin = marks.end = marks.clock()

    def check(self, round_: int) -> int:
        self.log.append(f"check {self.name} {round_}")
        return round_


def test_what_surrounds_a_phase() -> None:
    log: list[str] = []
    phases: list[Phase] = [Logged("x", log), Logged("y", log)]
    squares = (i * i for i in count())  # the k-th phase waited for (2k + 1)^2 - (2k)^2 = 4k + 1 ns
    out = np.full((4, 2, loop.FIELDS), -5, dtype=np.int64)
    answers = iter([True, False])
    done = loop.measure(
        phases, [[1, 0], [0, 1], [0, 1], [1, 0]], first_round=10,
        preamble=lambda: log.append("preamble"), sync=lambda: log.append("sync"),
        keep_going=lambda: log.append("go on?") or next(answers),
        cpu_wait=lambda: log.append("cpu") or next(squares), beat=lambda i, p: log.append(f"beat {i} {p}"),
        marks=Marks(clock=lambda: 7), out=out,
    )  # fmt: skip
    wanted = []
    for iteration, index, round_ in ((0, 1, 10), (0, 0, 11), (1, 0, 12), (1, 1, 13)):
        wanted += ["go on?"] * (round_ == 12) + [f"beat {iteration} {index}", f"prepare {'xy'[index]} {round_}"]
        wanted += ["preamble", "sync", "cpu", f"run {'xy'[index]}", "cpu", "sync", f"check {'xy'[index]} {round_}"]
    assert log == [*wanted, "go on?"]
    assert done == 2
    assert out[:2, :, [loop.WRONG, loop.POSITION, loop.CPU_WAIT]].tolist() == [
        [[11, 1, 5], [10, 0, 1]], [[12, 0, 9], [13, 1, 13]],
    ]  # fmt: skip
    assert (out[2:] == -5).all(), "iterations that were not run are left alone"


@pytest.mark.parametrize("enabled", [True, False])
def test_gc_stands_still_inside_and_goes_on_after_an_exception(enabled: bool) -> None:
    class Raises(Rank):
        def blocking(self) -> None:
            assert not gc.isenabled()
            raise MemoryError

    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(MemoryError):
            run_rank(Raises, World.constant(2000, 400), 0)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_the_hot_loop_is_a_barrier_and_the_call() -> None:
    log: list[str] = []
    begin, end = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)
    marks = Marks(clock=count(5).__next__)
    loop.measure_hot(Logged("x", log), sync=lambda: log.append("sync"), marks=marks, begin=begin, end=end)
    assert log == ["sync", "run x"] * 3
    assert begin.tolist() == end.tolist() == [5, 6, 7]
