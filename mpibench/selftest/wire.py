"""The network that the interposer makes: its settings as a value, and the answers that follow from them.

interposer.c documents what each setting does. Pure: starts and reads nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

START = "start"  # the call that starts a transfer spends all of its time


@dataclass(frozen=True)
class Wire:
    """A network whose answer is known."""

    latency_s: float = 50e-6
    bandwidth: float = 50e6  # bytes per second
    progress: float | str = 1.0  # share of its speed while the host is outside MPI, or START
    moves: bool = True  # whether data arrive; if not, results are wrong and every end is exact
    late_s: float = 0.0  # the faulty rank enters every all-reduce so much later
    flip_every: int = 0  # every so many results of the faulty rank have a flipped bit; 0: none
    hang_after: int = 0  # after so many transfers none of the faulty rank completes; 0: all do

    def duration_s(self, nbytes: float) -> float:
        """How long a transfer takes."""
        return self.latency_s + nbytes / self.bandwidth

    def covered_nbytes(self, compute_s: float) -> float:
        """The message that takes as long as the compute: the true cover point."""
        return (compute_s - self.latency_s) * self.bandwidth

    def environment(self) -> Iterator[str]:
        """What the interposer reads, as NAME=VALUE."""
        settings = {
            "LATENCY_S": self.latency_s, "BANDWIDTH_BPS": self.bandwidth, "PROGRESS": self.progress,
            "MOVES": int(self.moves), "LATE_S": self.late_s, "FLIP_EVERY": self.flip_every,
            "HANG_AFTER": self.hang_after, "FAULTY": FAULTY_RANK,
        }  # fmt: skip
        return (f"MPIBENCH_WIRE_{name}={value}" for name, value in settings.items())


FAULTY_RANK = 1  # the interposer's default
