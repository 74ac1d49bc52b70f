"""poll: an MPI_Test between quanta of compute, as codes with a progress loop do.

Shows what overlap costs and gains when the program itself lends its time to the library. What
would fool you: an interval longer than the library needs attention makes it stall, a shorter
one slows the compute; and once the transfer is complete, polling ends.
"""

from mpibench.protocols import Marks, Transfer, Work


class Poll:
    """Advance the work by a quantum, test, and again, until the work is done."""

    def drive(self, work: Work, transfer: Transfer, marks: Marks) -> Transfer:
        """Run `work` to its end in quanta of `marks.quantum` steps, with a test between them."""
        quantum, advance, test, clock = marks.quantum, work.advance, transfer.Test, marks.clock
        spent = tests = 0
        complete = False
        while not advance(quantum):
            if not complete:
                before = clock()
                complete = test()
                spent += clock() - before
                tests += 1
        work.finish()
        marks.test_ns = spent
        marks.tests = tests
        return transfer
