"""A test run that is ended leaves no job behind: SIGTERM (a CI's time limit) unwinds as Ctrl-C does."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _end_in_order() -> Iterator[None]:
    def leave(number: int, frame: object) -> None:
        pytest.exit("ended by SIGTERM", returncode=128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    yield
    signal.signal(signal.SIGTERM, before)
