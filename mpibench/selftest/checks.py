"""The checks of the certificate, as data: a run on a network whose answer is known, and what it must read.

A check is added here and nowhere else. Sizes and iterations are few: the whole takes about two minutes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from mpibench import errors
from mpibench.analysis.verdict import BLOCKING_START, HIDDEN_VERDICT, NO_PROGRESS, PARTLY_HIDDEN
from mpibench.selftest import readings
from mpibench.selftest.readings import Figure
from mpibench.selftest.wire import FAULTY_RANK, START, Wire


@dataclass(frozen=True)
class Aim:
    """What a figure must be."""

    name: str  # of the figure, as the certificate prints it
    least: float  # every reading lies between these two
    most: float
    holds: bool = False  # instead: every reading's interval reaches into them

    @property
    def text(self) -> str:
        """What it must be, in words."""
        if self.least == self.most:
            return f"{'interval holds' if self.holds else '='} {self.least:g}"
        if self.least == -self.most:
            return f"0 +- {self.most:g}"
        return f">= {self.least:g}" if self.most == inf else f"{self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Check:
    """A run of mpibench.overlap and its aims: figures and what they must be."""

    name: str
    about: str  # what is known
    wire: Wire
    options: str  # of mpibench.overlap
    aims: tuple[tuple[Figure, Aim], ...]
    status: int = errors.DONE  # that the command must end with
    busy: bool = False  # one core is kept busy meanwhile
    timeout_s: float = 90.0  # it stops by itself long before

    @property
    def flags(self) -> list[str]:
        """The options as words."""
        return self.options.split()


_K64 = 64 << 10
_DELAY = "--kernel delay --compute 5ms"
_WITHIN = 0.05
_BRIEF = "--iterations 25 --budget 20s"


def _all(name: str, figure: Figure) -> tuple[Figure, Aim]:
    return figure, Aim(name, 1, 1)


def _none(name: str, figure: Figure) -> tuple[Figure, Aim]:
    return figure, Aim(name, 0, 0)


def _shares() -> Iterator[Check]:
    for share in (0.0, 0.5, 1.0):
        yield Check(
            f"share-{share:g}",
            f"the transfer advances at {share:g} of its speed under compute",
            Wire(progress=share),
            "--kernel delay --compute 500us,1ms,2ms --sizes 128K --progress none --iterations 40 --budget 15s",
            ((readings.efficiency_error("none"), Aim("efficiency - share", -0.03, 0.03)),),
        )


CHECKS: tuple[Check, ...] = (
    Check(
        "ideal-nic",
        "a network card that moves on alone: all is hidden",
        Wire(),
        f"{_DELAY} --sizes 16K,64K,128K,256K,512K --progress none,poll {_BRIEF}",
        (
            (readings.cover_error, Aim("cover point / true - 1", -0.03, 0.03)),
            (readings.overlap(_K64, "poll"), Aim("overlap from 64K on, poll", 0.95, 1.05)),
        ),
    ),
    Check(
        "no-progress",
        "all of it is left to Wait: nothing is hidden",
        Wire(progress=0.0),
        f"{_DELAY} --sizes 16K,64K,128K --progress none,poll --iterations 40 --budget 20s",
        (
            (readings.overlap(16 << 10), Aim("overlap from 16K on", -_WITHIN, _WITHIN)),
            _all("rows that say no-progress", readings.share_of_verdicts(16 << 10, NO_PROGRESS)),
            _all("hidden point never", readings.share_never_hidden),
        ),
    ),
    Check(
        "no-progress-gemm",
        "the same under compute that keeps the host busy",
        Wire(progress=0.0),
        "--kernel gemm --compute 2ms --sizes 64K,128K --progress none --iterations 60 --budget 20s",
        (
            (readings.overlap(_K64, "none"), Aim("overlap from 64K on", -_WITHIN, _WITHIN)),
            _all("rows that say no-progress", readings.share_of_verdicts(_K64, NO_PROGRESS)),
        ),
    ),
    Check(
        "no-data",
        "no data moved, nothing is left to Wait: all but the start is hidden",
        Wire(moves=False),
        f"{_DELAY} --sizes 4K,16K,64K,128K,192K --progress none,poll --no-check {_BRIEF}",
        (
            (readings.overlap(_K64), Aim("overlap from 64K on", 0.98, 1.02)),
            (readings.overlap_and_start(0), Aim("overlap + start / min(N, C)", 0.95, 1.05)),
        ),
    ),
    Check(
        "z",
        "start and Wait after the compute: exactly 0 on any network",
        Wire(),
        "--kernel gemm --compute 3ms --sizes 4K,16K,64K,128K --progress none "
        "--collective mpibench.selftest.deferred:Deferred --iterations 80 --budget 20s",
        (
            (readings.joint_overlap, Aim("overlap at every size", 0, 0, holds=True)),
            (readings.table_error, Aim("overlap in the table - in the samples", -1e-6, 1e-6)),
            (readings.overlap(_K64), Aim("overlap from 64K on", -_WITHIN, _WITHIN)),
        ),
    ),
    Check(
        "blocking-start",
        "the call that starts it does it all",
        Wire(progress=START),
        f"{_DELAY} --sizes 64K,128K --progress none,poll --iterations 20 --budget 10s",
        (_all("rows that say blocking-start", readings.share_of_verdicts(0, BLOCKING_START)),),
    ),
    *_shares(),
    Check(
        "late-rank",
        f"rank {FAULTY_RANK} enters every collective 1 ms late",
        Wire(late_s=1e-3),
        "--kernel delay --compute 1ms --sizes 1K,4K --progress none --iterations 24 --budget 8s",
        (_all(f"visits in which rank {FAULTY_RANK} waits least", readings.share_waiting_least(FAULTY_RANK)),),
    ),
    Check(
        "flipped-bit",
        f"one bit of every 20th result of rank {FAULTY_RANK} is flipped",
        Wire(flip_every=20),
        "--kernel delay --compute 1ms --sizes 4K --progress none --iterations 12 --budget 8s",
        (_all("rows that say wrong-data and hold no time", readings.share_blank),),
        status=errors.FINDING,
    ),
    Check(
        "hang",
        f"after 60 transfers none of rank {FAULTY_RANK} completes",
        Wire(hang_after=60),
        "--kernel delay --compute 1ms --sizes 4K --progress none --watchdog 2s --budget 8s",
        (_all("message says stuck", readings.stuck_told),),
        status=errors.STUCK,
    ),
    Check(
        "ideal-nic-busy",
        "the ideal network card, one core kept busy by another process",
        Wire(),
        f"{_DELAY} --sizes 64K,256K --progress none,poll --iterations 12 --budget 10s",
        (_all("rows >= 0.9, or unresolved", readings.share_safe(_K64, 0.9)),),
        busy=True,
    ),
    Check(
        "no-progress-busy",
        "no progress, one core kept busy by another process",
        Wire(progress=0.0),
        f"{_DELAY} --sizes 16K,64K,256K --progress none,poll --iterations 12 --budget 10s",
        (
            _none(
                "rows that say (partly-)hidden",
                readings.share_of_verdicts(0, HIDDEN_VERDICT, PARTLY_HIDDEN, busy=True),
            ),
        ),
        busy=True,
    ),
)
