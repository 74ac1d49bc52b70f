"""The guard: one thread per rank that ends the job when a signal comes or nothing moves any more.

It works while the main thread sits inside MPI, where no Python signal handler runs: the signals
are blocked before MPI is imported and waited for here. It knows where the main thread is (its
`place`) and when it last gave a sign of life (`beat`). What it ends it ends whole: files first,
messages after, then MPI_Abort.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from mpibench.errors import SIGNALLED, STUCK
from mpibench.protocols import TOLD

_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_ROOT_FIRST_S = 2.5  # other ranks let rank 0 speak: its Abort silences them
_COLLECT_S = 2.5  # rank 0 waits so long for the other ranks' reports: their guards look once a second
_HEARD_S = 0.7  # a launcher drops what it has not yet passed on when a rank calls Abort
_UNHEARD_S = 4.0  # other ranks act themselves if rank 0 has not ended the job by then


def block_signals() -> None:
    """Leave SIGTERM and SIGINT to the guard. To be called before MPI is imported."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


class Guard(threading.Thread):
    """Waits for signals and watches for silence.

    Args:
        watchdog_s: longest silence in seconds; infinity for none.
    """

    def __init__(self, watchdog_s: float) -> None:
        super().__init__(daemon=True, name="mpibench-guard")
        self.rank, self.ranks = 0, 1
        self.flush: Callable[[str], None] = lambda ended: None  # brings the tables up to date
        self.abort: Callable[[int], None] = os._exit  # MPI_Abort once MPI has started
        self.directory: Path | None = None  # of the run, once there is one
        self.describe: Callable[[int, int], str] = lambda iteration, phase: ""
        self.cell = "before the first cell"
        self.ending = False  # the main thread stops at its next beat, so that nobody writes after the last tables
        self._watchdog_s = watchdog_s
        self._place = (-1, -1)
        self._beat = time.monotonic()
        self._stopping = False
        self._ending = threading.Lock()

    def enter(self, cell: str) -> None:
        """The main thread turns to a cell, or to something else that can be named."""
        self.cell = cell
        self.beat(-1, -1)

    def beat(self, iteration: int, phase: int) -> None:
        """A sign of life: a phase has ended and this one begins. Goes no further in a job that is being ended."""
        while self.ending:
            time.sleep(_UNHEARD_S)
        self._place = (iteration, phase)
        self._beat = time.monotonic()

    def stop(self) -> None:
        """The run is over; a signal from here on ends the process at once."""
        self._stopping = True
        self.abort = os._exit

    def run(self) -> None:
        """Wait for a signal or for silence, in turns of at most a second."""
        turn = min(1.0, self._watchdog_s / 4)
        while True:
            received = signal.sigtimedwait(_SIGNALS, turn)
            # After SIGCONT Python 3.11's sigtimedwait may return what it never filled in.
            if received is not None and received.si_signo in _SIGNALS:
                self.end(SIGNALLED + received.si_signo, f"ended by {signal.Signals(received.si_signo).name}")
            elif not self._stopping and time.monotonic() - self._beat > self._watchdog_s:
                self._end_stuck()

    def end(self, status: int, message: str) -> None:
        """Bring the tables up to date, say why, and end the whole job with `status`. Does not return."""
        self.ending = True
        if not self._ending.acquire(blocking=False):
            time.sleep(2 * _UNHEARD_S)  # another thread is ending the job already
        if self.rank:
            time.sleep(_ROOT_FIRST_S)
        if not self._first_to_tell():
            time.sleep(2 * _UNHEARD_S)  # another rank is ending the job already
        try:
            self.flush(message.split("\n")[0])
        except Exception as error:
            message += f"\nmpibench: the tables could not be brought up to date: {error}"
        kept = f"; what was measured is in {self.directory}" if self.directory else ""
        self._say(f"mpibench: rank {self.rank}: {message}{kept}\n")
        time.sleep(_HEARD_S)
        self.abort(status)
        time.sleep(_UNHEARD_S)  # MPI_Abort returns in no library known, but may hang
        os._exit(status)

    def _first_to_tell(self) -> bool:
        """Whether no other rank is ending the job: the run's directory knows, where ranks share it."""
        if self.directory is None:
            return True
        try:
            os.close(os.open(self.directory / TOLD, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        except OSError:
            return True
        return True

    def where(self) -> str:
        """Where the main thread is, in words."""
        iteration, phase = self._place
        inside = f", {self.describe(iteration, phase)}, iteration {iteration}" if iteration >= 0 else ""
        return self.cell + inside

    def _end_stuck(self) -> None:
        """Gather every rank's place and stack through the run's directory; rank 0 tells all."""
        folder = self.directory / "stuck" if self.directory else None
        report = f"{self.where()}\n{_stack()}"
        try:
            if folder is None:
                raise FileNotFoundError
            folder.mkdir(exist_ok=True)
            draft = folder / f"rank-{self.rank}.part"
            draft.write_text(report)
            draft.rename(draft.with_suffix(".txt"))
        except OSError:  # no directory yet, or a full disk: nobody can collect, each says its own
            folder = None
            self._say(f"mpibench: rank {self.rank} is stuck: {report}")
        time.sleep(_UNHEARD_S + 0.01 * self.rank if self.rank else _COLLECT_S)
        text = "" if folder is None else "\n" + collect_reports(folder, self.ranks)
        self.end(STUCK, f"stuck: no phase finished for {self._watchdog_s:g} s (--watchdog); {self.cell}{text}")

    def _say(self, text: str) -> None:
        os.write(sys.stderr.fileno() if hasattr(sys.stderr, "fileno") else 2, text.encode())


def _stack() -> str:
    """The main thread's stack, innermost call first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)[::-1])


def collect_reports(folder: Path, ranks: int) -> str:
    """What the ranks wrote, ranks at the same place together, with one stack for each place."""
    places: dict[str, list[int]] = {}
    stacks: dict[str, str] = {}
    silent = []
    for rank in range(ranks):
        try:
            place, _, stack = (folder / f"rank-{rank}.txt").read_text().partition("\n")
        except OSError:
            silent.append(rank)
            continue
        key = f"{place}; {stack.strip().partition(chr(10))[0]}"
        places.setdefault(key, []).append(rank)
        stacks.setdefault(key, stack)
    lines = []
    if silent:
        lines.append(f"  {_name(silent)}: no sign of life (stopped, dead, or on a host without this directory)")
    for key, members in sorted(places.items(), key=lambda item: len(item[1])):
        lines.append(f"  {_name(members)}: at {key}")
    for key, members in sorted(places.items(), key=lambda item: len(item[1])):
        lines.append(f"  stack of rank {members[0]}, innermost call first:")
        lines += ["    " + line for line in stacks[key].strip().split("\n")]
    return "\n".join(lines)


def _name(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
