"""What the contract test cannot see of a strategy: the helper thread."""

import threading
from typing import Any

import pytest

from mpibench.engine.device import HostWork
from mpibench.progress.thread import HelperThread
from mpibench.protocols import Marks


class Gate:
    """A transfer that completes when it is opened."""

    def __init__(self) -> None:
        self.opened, self.waiters = threading.Event(), []

    def Test(self) -> bool:
        raise AssertionError("the helper waits, it does not test")

    def Wait(self) -> None:
        self.waiters.append(threading.get_ident())
        if not self.opened.wait(30):
            raise AssertionError("never opened")


def test_the_helper_is_inside_wait_while_the_work_is_done() -> None:
    strategy = HelperThread()
    for _ in range(3):  # one thread for all
        gate = Gate()
        # The last step opens the gate: nobody but the helper can have waited by then.
        steps = iter([lambda: None, lambda: None, gate.opened.set])
        rest = strategy.drive(HostWork(lambda steps=steps: next(steps)(), 3).launch(), gate, Marks(1))
        rest.Wait()
        assert len(gate.waiters) == 1
        assert gate.waiters[0] != threading.get_ident()


def test_the_rest_ends_only_when_the_transfer_does() -> None:
    gate = Gate()
    rest = HelperThread().drive(HostWork(lambda: None, 1).launch(), gate, Marks(1))
    joined = threading.Thread(target=rest.Wait)
    joined.start()
    joined.join(0.05)
    assert joined.is_alive()
    gate.opened.set()
    joined.join(30)
    assert not joined.is_alive()


def test_what_the_helper_raises_is_raised_where_the_program_waits() -> None:
    class Broken(Gate):
        def Wait(self) -> Any:
            raise OSError("broken")

    rest = HelperThread().drive(HostWork(lambda: None, 1).launch(), Broken(), Marks(1))
    with pytest.raises(OSError, match="broken"):
        rest.Wait()
