"""mpibench.registry, and every entry of every registry of the package."""

import importlib
import pkgutil

import pytest

import mpibench
from mpibench.registry import Registry, near_match


def registries() -> list[tuple[str, Registry]]:
    """Every registry and the plugin folder that it stands in, found as a new one will be."""
    folders = [f"mpibench.{found.name}" for found in pkgutil.iter_modules(mpibench.__path__) if found.ispkg]
    return [
        (folder, thing)
        for folder in folders
        for thing in vars(importlib.import_module(folder)).values()
        if isinstance(thing, Registry)
    ]


ENTRIES = [(folder, registry, name) for folder, registry in registries() for name in registry]


@pytest.fixture
def kernels() -> Registry:
    return Registry("kernel", {"gemm": "json:loads", "triad": "nowhere.at_all:Triad", "delay": "json:Absent"})


def test_the_plugin_folders_have_their_registries() -> None:
    assert {folder for folder, _ in registries()} >= {"mpibench.collectives", "mpibench.kernels", "mpibench.progress"}


@pytest.mark.parametrize(("folder", "registry", "name"), ENTRIES, ids=[f"{r.kind}-{n}" for _, r, n in ENTRIES])
def test_every_entry_loads_from_the_file_of_its_name(folder: str, registry: Registry, name: str) -> None:
    assert registry.check(name) == name
    plugin = registry.load(name)
    assert isinstance(plugin, type)
    assert plugin.__doc__
    module, _, attribute = registry[name].partition(":")
    assert module == f"{folder}.{name.replace('-', '_')}"
    assert attribute == plugin.__name__
    assert name in importlib.import_module(module).__doc__


@pytest.mark.parametrize(("folder", "registry"), registries(), ids=[r.kind for _, r in registries()])
def test_no_two_names_mean_the_same(folder: str, registry: Registry) -> None:
    assert len(set(registry.values())) == len(registry)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("gem", "did you mean gemm? (one of gemm, triad, delay)"),
        ("trida", "did you mean triad? (one of gemm, triad, delay)"),
        ("DELAY", "one of gemm, triad, delay"),
        ("convolution", "one of gemm, triad, delay"),
        ("", "one of gemm, triad, delay"),
    ],
)
def test_near_match_names_what_would_be_right(word: str, message: str, kernels: Registry) -> None:
    assert near_match(word, kernels) == message


@pytest.mark.parametrize("name", ["gemm", "my_module:MyKernel", "my.deep.module:Attr", "module:_private"])
def test_known_names_and_module_attribute_pass(name: str, kernels: Registry) -> None:
    assert kernels.check(name) == name


@pytest.mark.parametrize(
    "name", ["gem", "", ":", "module:", ":Attr", "a b:C", "module:Attr:more", "a..b:C", "../evil:C", "mod-ule:C", "a.b"]
)
def test_other_words_are_refused_with_what_would_be_right(name: str, kernels: Registry) -> None:
    with pytest.raises(ValueError, match=r"^unknown kernel: .*gemm, triad, delay\)?, or module:attribute$"):
        kernels.check(name)


def test_a_users_own_plugin_is_loaded(kernels: Registry) -> None:
    assert kernels.load("collections:OrderedDict").__name__ == "OrderedDict"


@pytest.mark.parametrize("name", ["nowhere.at_all:Kernel", "json:Absent"])
def test_a_users_plugin_that_is_not_there_is_a_value_error_that_names_it(name: str, kernels: Registry) -> None:
    with pytest.raises(ValueError, match=f"^cannot import kernel {name}: .*(No module named|has no attribute)"):
        kernels.load(name)


@pytest.mark.parametrize(("name", "error"), [("triad", ModuleNotFoundError), ("delay", AttributeError)])
def test_a_broken_entry_of_ours_is_not_blamed_on_the_user(name: str, error: type, kernels: Registry) -> None:
    with pytest.raises(error):
        kernels.load(name)


def test_a_registry_is_a_mapping_in_its_order(kernels: Registry) -> None:
    assert list(kernels) == ["gemm", "triad", "delay"]
    assert len(kernels) == 3
    assert "gemm" in kernels
    assert kernels["gemm"] == "json:loads"
