"""What MPI is handed, filled with values that betray an error, and checked element by element.

The value of element i on a rank in round r is 1 + (i + r) mod M + (rank mod 1021). All values
and all partial sums are whole numbers that the element type holds exactly, so the sum is exact
in whatever order the library adds. It differs between elements, ranks and rounds; receive
buffers are poisoned before every operation.
"""

import functools
import operator
from typing import Any

from mpibench.errors import UsageError

_LARGEST_EXACT = {"float32": 1 << 24, "float64": 1 << 53, "int32": (1 << 31) - 1, "int64": 1 << 62}
DTYPES = tuple(_LARGEST_EXACT)
_MPI_NAMES = {"float32": "FLOAT", "float64": "DOUBLE", "int32": "INT32_T", "int64": "INT64_T"}
_PERIOD = 251  # prime, so that no power-of-two block repeats the pattern
_RANK_PERIOD = 1021
_CHUNK = 1 << 16  # elements filled or compared at once: bounds the memory that checking takes
_POISON = -1


def mpi_datatype(mpi: Any, dtype: str) -> Any:
    """mpi4py's datatype of an element type."""
    return getattr(mpi, _MPI_NAMES[dtype])


class Pattern:
    """The values that a rank sends and those that all must receive.

    Args:
        array_module: numpy or cupy, where the buffers live.
        dtype: element type.
        rank, ranks: this rank and the communicator's size.

    Raises:
        UsageError: if the element type cannot hold the sum over so many ranks exactly.
    """

    def __init__(self, array_module: Any, dtype: str, rank: int, ranks: int) -> None:
        self._xp = array_module
        rank_sum = sum(r % _RANK_PERIOD for r in range(ranks))
        self._period = min(_PERIOD, (_LARGEST_EXACT[dtype] - rank_sum) // ranks)
        if self._period < 2:
            raise UsageError(f"--dtype {dtype}: the sum over {ranks} ranks is not exact in it; use float64")
        self._chunk = _CHUNK // self._period * self._period
        base = 1 + array_module.arange(self._chunk + self._period, dtype="int64") % self._period
        self._sent = (base + rank % _RANK_PERIOD).astype(dtype)
        self._wanted = (base * ranks + rank_sum).astype(dtype)
        self._differs = array_module.empty(self._chunk, dtype="bool")

    def fill(self, array: Any, round_: int) -> None:
        """Write the values of this rank in round `round_`."""
        shift = round_ % self._period
        for start in range(0, len(array), self._chunk):
            part = array[start : start + self._chunk]
            part[:] = self._sent[shift : shift + len(part)]

    def count_wrong(self, array: Any, round_: int) -> int:
        """Number of elements that differ from the sum over all ranks in round `round_`."""
        shift = round_ % self._period
        wrong = 0
        for start in range(0, len(array), self._chunk):
            part = array[start : start + self._chunk]
            differs = self._differs[: len(part)]
            self._xp.not_equal(part, self._wanted[shift : shift + len(part)], out=differs)
            wrong += int(self._xp.count_nonzero(differs))
        return wrong


class Buffers:
    """One send and one receive buffer for the largest message; smaller messages use their beginning.

    `send` and `receive` are what MPI is handed for the selected message.

    Args:
        device: allocates them; a `host` buffer on `cuda` belongs to `HostDevice`.
        mpi: the module mpi4py.MPI.
        count: elements of the largest message.
        dtype, rank, ranks: as for `Pattern`.
        in_place: MPI_IN_PLACE as the send buffer.
    """

    def __init__(self, device: Any, mpi: Any, count: int, dtype: str, rank: int, ranks: int, in_place: bool) -> None:
        self.in_place = in_place
        self._pattern = Pattern(device.array_module, dtype, rank, ranks)
        self._mpi, self._datatype = mpi, mpi_datatype(mpi, dtype)
        self._device = device
        self._whole_receive = device.allocate(count, dtype)
        self._whole_send = None if in_place else device.allocate(count, dtype)
        self.select(count)

    @property
    def alignment_nbytes(self) -> int | None:
        """The largest power of two that divides the addresses of the buffers; None on a device."""
        if not hasattr(self.receive_array, "ctypes"):
            return None
        whole = (self._whole_receive, self._whole_send)
        together = functools.reduce(operator.or_, (array.ctypes.data for array in whole if array is not None))
        return int(together & -together)

    def select(self, count: int) -> None:
        """Let `send` and `receive` be messages of `count` elements."""
        self.receive_array = self._whole_receive[:count]
        self.send_array = self.receive_array if self._whole_send is None else self._whole_send[:count]
        self._specify(self.send_array, self.receive_array, count)

    def _specify(self, send: Any, receive: Any, count: int) -> None:
        self.receive = self._message(receive, count)
        self.send = self._mpi.IN_PLACE if self.in_place else self._message(send, count)

    def _message(self, array: Any, count: int) -> list[Any]:
        """mpi4py's form of a message that is parsed fastest: a buffer, its elements, their datatype."""
        return [self._mpi.buffer.frombuffer(array), count, self._datatype]

    def fill(self, round_: int) -> None:
        """This rank's values into what is sent, poison into what is received; complete on return."""
        if not self.in_place:
            self.receive_array.fill(_POISON)
        self._pattern.fill(self.send_array, round_)
        self._device.synchronise()

    def count_wrong(self, round_: int) -> int:
        """Number of elements of the receive buffer that are not the sum of round `round_`."""
        return self._pattern.count_wrong(self.receive_array, round_)
