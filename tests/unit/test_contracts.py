"""The contract that every entry of every registry keeps; a new plugin is covered as soon as it has its line."""

import importlib
import inspect
import pkgutil
from typing import Any

import numpy as np
import pytest

import mpibench
from mpibench.kernels import KERNELS
from mpibench.progress import PROGRESS
from mpibench.protocols import Collective, Kernel, Marks, Progress
from mpibench.registry import Registry

PROTOCOLS: dict[str, Any] = {"kernel": Kernel, "collective": Collective, "progress strategy": Progress}
STEPS = 7


def entries() -> list[Any]:
    """Every entry of every registry in the package, found as a new one will be."""
    folders = [f"mpibench.{found.name}" for found in pkgutil.iter_modules(mpibench.__path__) if found.ispkg]
    return [
        pytest.param(folder, registry, name, id=f"{registry.kind}-{name}")
        for folder in folders
        for registry in vars(importlib.import_module(folder)).values()
        if isinstance(registry, Registry)
        for name in registry
    ]


every_entry = pytest.mark.parametrize(("folder", "registry", "name"), entries())
every_kernel = pytest.mark.parametrize("name", KERNELS)


def test_every_kind_of_plugin_has_its_protocol() -> None:
    assert {parameter.values[1].kind for parameter in entries()} == set(PROTOCOLS)


@every_entry
def test_the_class_has_the_members_of_its_protocol(folder: str, registry: Registry, name: str) -> None:
    protocol, plugin = PROTOCOLS[registry.kind], registry.load(name)
    # What is bound in `prepare` is declared by an annotation.
    declared = {member for class_ in plugin.__mro__ for member in [*vars(class_), *inspect.get_annotations(class_)]}
    wanted = {member for member in [*vars(protocol), *protocol.__annotations__] if not member.startswith("_")}
    assert wanted
    assert wanted <= declared
    for member in wanted:
        method = getattr(protocol, member, None)
        if callable(method) and hasattr(plugin, member):
            assert list(inspect.signature(getattr(plugin, member)).parameters) == list(
                inspect.signature(method).parameters
            )
    assert inspect.getdoc(plugin)


@every_entry
def test_the_module_is_named_and_says_what_it_shows_and_what_would_fool_you(
    folder: str, registry: Registry, name: str
) -> None:
    module = importlib.import_module(registry[name].partition(":")[0])
    assert module.__name__ == f"{folder}.{name.replace('-', '_')}"
    doc = module.__doc__ or ""
    assert doc.partition("\n")[0].startswith(f"{name}: ")
    words = " ".join(doc.split())
    assert "Shows " in words
    assert "would fool you: " in words


def made(name: str, dtype: str = "float32") -> Any:
    plugin = KERNELS.load(name)
    return plugin(np, dtype, 8 if plugin.takes_order else None)


@every_kernel
def test_a_kernel_says_what_kind_it_is(name: str) -> None:
    kernel = made(name)
    assert {type(getattr(kernel, member)) for member in ("device_driven", "emulated", "takes_order")} == {bool}
    assert kernel.step_s is None or kernel.step_s > 0
    assert kernel.step_s or not kernel.emulated, "nothing could be calibrated"
    assert list(inspect.signature(type(kernel)).parameters) == ["array_module", "dtype", "order"]


def results(kernel: Any) -> list[tuple[Any, Any]]:
    """What a step writes: arrays, and the places in them that it changed after `verify` had poisoned them."""
    kernel.verify()
    arrays = [array for array in vars(kernel).values() if isinstance(array, np.ndarray)]
    before = [array.copy() for array in arrays]
    kernel.step()
    changed = [np.flatnonzero(array != old) for array, old in zip(arrays, before, strict=True)]
    return [(array, places) for array, places in zip(arrays, changed, strict=True) if len(places)]


@every_kernel
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_kernels_steps_are_right_and_a_wrong_result_is_found(name: str, dtype: str) -> None:
    kernel = made(name, dtype)
    for steps in (1, STEPS):
        for _ in range(steps):
            kernel.step()
        assert kernel.verify()
    assert results(kernel) or kernel.emulated, "a kernel that computes has a result"
    for share in (0.0, 0.5, 1.0):
        for array, places in results(kernel):
            array.flat[places[round(share * (len(places) - 1))]] += 1
            assert not kernel.verify()
            assert not kernel.verify(), "nothing was computed since"


class CountingWork:
    """Steps that are counted."""

    def __init__(self) -> None:
        self.left, self.elapsed_ns, self.finished = STEPS, 0, False

    def advance(self, quantum: int) -> bool:
        assert 0 < quantum <= 2, "no more than the marks' quantum"
        assert self.left, "advanced past the end"
        self.left = max(0, self.left - quantum)
        return not self.left

    def finish(self) -> None:
        assert not self.left
        self.finished = True


class CountingTransfer:
    """Complete at the second test. Only what the strategy leaves to be waited for may wait for it, once."""

    def __init__(self) -> None:
        self.tests = self.waits = 0

    def Test(self) -> bool:
        assert self.tests < 2, "tested after it was complete"
        self.tests += 1
        return self.tests == 2

    def Wait(self) -> None:
        self.waits += 1


@pytest.mark.parametrize("name", PROGRESS)
def test_a_strategy_runs_all_the_work_and_counts_its_tests(name: str) -> None:
    work, transfer = CountingWork(), CountingTransfer()
    now = iter(range(1000, 2000, 10))
    marks = Marks(2, now.__next__)
    rest = PROGRESS.load(name)().drive(work, transfer, marks)
    assert work.finished
    if rest is transfer:
        assert transfer.waits == 0, "the phase waits, not the strategy"
    rest.Wait()
    assert transfer.waits == 1
    assert marks.tests == transfer.tests
    assert marks.test_ns == 10 * transfer.tests, "the time between the clock's readings around each test"
