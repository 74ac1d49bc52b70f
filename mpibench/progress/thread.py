"""thread: a helper thread sits inside Wait while the program computes.

Shows what a progress thread of one's own costs and gains: the library is inside a call all the
time, and the thread takes a core, or its share of one. What would fool you: it needs
MPI_THREAD_MULTIPLE, whose locks slow every call; where no core is free the thread and the compute
take turns, which reads as a compute slowdown; and Python's interpreter lock is only free while the
compute is inside a call that releases it.
"""

import threading

from mpibench.protocols import Marks, Transfer, Work


class _Helper:
    """A thread that waits for one transfer after another; as a Transfer, it is complete when its own is.

    Started once: starting a thread takes longer than a small message.
    """

    def __init__(self) -> None:
        self._begun, self._ended = threading.Semaphore(0), threading.Semaphore(0)
        self._transfer: Transfer | None = None
        self._fault: BaseException | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def hand(self, transfer: Transfer) -> None:
        """Let the thread wait for it from now on."""
        self._transfer = transfer
        self._begun.release()

    def Test(self) -> bool:
        """Never needed: the thread is inside the library."""
        return False

    def Wait(self) -> None:
        """Return when the thread has seen the transfer complete; raises what it raised."""
        self._ended.acquire()
        if self._fault is not None:
            raise self._fault

    def _serve(self) -> None:
        while True:
            self._begun.acquire()
            assert self._transfer is not None
            try:
                self._transfer.Wait()
            except BaseException as fault:
                self._fault = fault
            self._ended.release()


class HelperThread:
    """Advance the work, nothing else, while a helper waits for the transfer."""

    def __init__(self) -> None:
        self._helper = _Helper()

    def drive(self, work: Work, transfer: Transfer, marks: Marks) -> Transfer:
        """Run `work` to its end in quanta of `marks.quantum` steps; what is left is to join the helper."""
        quantum, advance, helper = marks.quantum, work.advance, self._helper
        helper.hand(transfer)
        while not advance(quantum):
            pass
        work.finish()
        return helper
