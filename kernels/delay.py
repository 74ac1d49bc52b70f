"""delay: an emulated accelerator. It is launched, runs for its time without the host, and can be asked.

Shows the best that non-blocking communication can do, on a machine without an accelerator: the
host is free to progress MPI, and nothing contends. What would fool you: a real GPU shares its
memory, its link and its power with the transfer; an emulated one does not. Every figure measured
under it says "emulated".
"""

from typing import Any


class Delay:
    """Steps of one microsecond of device time each. The device layer keeps the time.

    Args:
        array_module: has no meaning here.
        dtype: has no meaning here.
        order: has no meaning here.
    """

    device_driven = True
    emulated = True
    takes_order = False
    step_s = 1e-6

    def __init__(self, array_module: Any, dtype: str, order: int | None) -> None:
        """Holds nothing."""

    def step(self) -> None:
        """Nothing to run: the emulated device counts the steps."""

    def verify(self) -> bool:
        """There is no result to check; that the time was kept is checked by the device."""
        return True
