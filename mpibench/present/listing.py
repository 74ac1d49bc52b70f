"""What can be chosen: a line for each plugin, from the first line of its module's docstring."""

import importlib
from collections.abc import Iterator

from mpibench.registry import Registry


def plugins(*registries: Registry) -> str:
    """The plugins of every registry, one a line, under the registry's kind."""
    return "\n".join(line for registry in registries for line in _lines(registry))


def _lines(registry: Registry) -> Iterator[str]:
    yield f"{registry.kind}:"
    for name, place in registry.items():
        module = importlib.import_module(place.partition(":")[0])
        summary = (module.__doc__ or "").partition("\n")[0].removeprefix(f"{name}: ")
        yield f"  {name:<12} {summary}"
