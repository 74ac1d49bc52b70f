"""triad: a = b + s c over arrays larger than most caches, the compute of a memory-bound layer.

Shows contention: the collective's copies and reductions need the same memory bandwidth, so the
compute slows down while it runs. What would fool you: a last-level cache that holds the arrays
(mpibench says so); then nothing contends for memory.
"""

from typing import Any

_ARRAY_NBYTES = 20 << 20  # of each of the three: 60 MiB a rank
_HOST_CHUNK = 16 << 10  # elements of a host step: about 20 us, several fit between two polls


class Triad:
    """a = b + 3 c, a chunk a step on the host, the whole array a step on a GPU.

    Args:
        array_module: numpy or cupy.
        dtype: element type, numpy's name.
        order: has no meaning here.
    """

    device_driven = False
    emulated = False
    takes_order = False
    step_s = None
    working_set_nbytes = 3 * _ARRAY_NBYTES

    def __init__(self, array_module: Any, dtype: str, order: int | None) -> None:
        self._xp = array_module
        count = _ARRAY_NBYTES // array_module.dtype(dtype).itemsize
        # In place, and exact up to 2^24: no temporary array beyond the three.
        self._b = array_module.arange(count, dtype=dtype)
        self._b %= 101
        self._c = array_module.arange(count, dtype=dtype)
        self._c %= 37
        self._a = array_module.zeros(count, dtype=dtype)
        self._three = self._a.dtype.type(3)
        self._fused = None
        self._chunk = _HOST_CHUNK
        if hasattr(array_module, "ElementwiseKernel"):
            self._chunk = count
            self._fused = array_module.ElementwiseKernel("T b, T c, T s", "T a", "a = b + s * c", "triad")
        self._starts = range(0, count, self._chunk)
        self._next = 0
        self._last = slice(0, 0)

    def step(self) -> None:
        """The next chunk."""
        start = self._starts[self._next]
        here = self._last = slice(start, start + self._chunk)
        self._next = (self._next + 1) % len(self._starts)
        if self._fused is not None:
            self._fused(self._b, self._c, self._three, self._a)
            return
        self._xp.multiply(self._c[here], self._three, out=self._a[here])
        self._xp.add(self._a[here], self._b[here], out=self._a[here])

    def verify(self) -> bool:
        """Whether the last chunk is right, exact on integers. Then poisons it."""
        here = self._last
        wanted = self._b[here].astype("int64") + 3 * self._c[here].astype("int64")
        right = bool((self._a[here].astype("int64") == wanted).all())
        self._a[here] = -1
        return right
