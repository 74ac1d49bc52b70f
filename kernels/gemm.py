"""gemm: square matrix products, the compute of a dense layer.

Shows overlap under compute that leaves the memory system alone: few bytes, many operations.
What would fool you: a BLAS with several threads per rank takes the cores that the MPI library
needs to progress, and an order so large that one product outlasts the poll interval leaves
no chance to poll (a step is one product and cannot be interrupted).
"""

from typing import Any

_HOST_ORDER = 64  # about 10 us on one core: several steps fit between two polls
_GPU_ORDER = 1024  # below it the launch costs more than the product


class Gemm:
    """C = A B of square matrices. Matrices hold small integers, so that the product is exact.

    Args:
        array_module: numpy or cupy.
        dtype: element type, numpy's name.
        order: rows and columns; None takes a small default, so that a step is short.
    """

    device_driven = False
    emulated = False
    takes_order = True
    step_s = None

    def __init__(self, array_module: Any, dtype: str, order: int | None) -> None:
        self._xp = array_module
        n = order or (_HOST_ORDER if array_module.__name__ == "numpy" else _GPU_ORDER)
        index = array_module.arange(n * n, dtype="int64").reshape(n, n)
        self._a = (index % 3).astype(dtype)
        self._b = (index % 5 - 2).astype(dtype)
        self._c = array_module.zeros((n, n), dtype=dtype)

    def step(self) -> None:
        """One product."""
        self._xp.matmul(self._a, self._b, out=self._c)

    def verify(self) -> bool:
        """Freivalds' check, exact on integers: C v = A (B v). Then poisons C.

        Source: R. Freivalds, Probabilistic machines can use less running time, IFIP 1977.
        """
        vector = self._xp.arange(1, len(self._c) + 1, dtype="float64") % 7 + 1
        wanted = self._a.astype("float64") @ (self._b.astype("float64") @ vector)
        right = bool((self._c.astype("float64") @ vector == wanted).all())
        self._c.fill(-1)
        return right
