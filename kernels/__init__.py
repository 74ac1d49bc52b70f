"""Compute kernels: what a layer does while its gradients travel. Import as `mpibench.kernels`.

One file each, one line here. A kernel is written against `protocols.Kernel`: it defines one
`step()`; the device turns steps into work.
"""

from mpibench.registry import Registry

KERNELS = Registry(
    "kernel",
    {
        "gemm": "mpibench.kernels.gemm:Gemm",
        "triad": "mpibench.kernels.triad:Triad",
        "delay": "mpibench.kernels.delay:Delay",
    },
    members=("device_driven", "emulated", "takes_order", "step_s", "step", "verify"),
)
