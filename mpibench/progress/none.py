"""none: compute, and leave the collective alone until Wait. What most codes do.

Shows whether the library, a helper thread of its own or the network card moves data by itself.
What would fool you: "non-blocking" promises only that the call returns, not that anything moves.
"""

from mpibench.protocols import Marks, Transfer, Work


class NoProgress:
    """Advance the work, nothing else."""

    def drive(self, work: Work, transfer: Transfer, marks: Marks) -> Transfer:
        """Run `work` to its end in quanta of `marks.quantum` steps; `transfer` is not touched."""
        quantum, advance = marks.quantum, work.advance
        while not advance(quantum):
            pass
        work.finish()
        return transfer
