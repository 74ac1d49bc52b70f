"""Registries of plugins: a name on the command line to a "module:attribute" that has it.

Nothing is imported until it is used, so that listing the names costs nothing. What goes wrong
is a ValueError that says what would be right.
"""

import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any


def near_match(word: str, known: Iterable[str]) -> str:
    """The words that would be right, the nearest first: 'did you mean gemm? (gemm, triad)'."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    listed = ", ".join(names)
    return f"did you mean {near[0]}? (one of {listed})" if near else f"one of {listed}"


class Registry(Mapping[str, str]):
    """The plugins of one kind.

    Args:
        kind: the word for messages, such as "kernel".
        entries: name to "module:attribute".
        members: what every plugin's class has.
    """

    def __init__(self, kind: str, entries: Mapping[str, str], members: tuple[str, ...] = ()) -> None:
        self.kind, self._members = kind, members
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Any:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, name: str) -> str:
        """The name itself if it is known or has the form module:attribute, else ValueError."""
        if name in self._entries or _is_own(name):
            return name
        raise ValueError(f"unknown {self.kind}: {near_match(name, self)}, or module:attribute")

    def load(self, name: str) -> Any:
        """The plugin's class. Raises ValueError if a module:attribute of the user's is not there or is none."""
        module_name, _, attribute = self._entries.get(name, name).partition(":")
        try:
            plugin = getattr(importlib.import_module(module_name), attribute)
        except Exception as error:  # a user's module may raise anything
            if name in self._entries:
                raise
            raise ValueError(f"cannot import {self.kind} {name}: {error}") from error
        missing = [name for name in self._members if not hasattr(plugin, name)]
        if missing or not isinstance(plugin, type):
            lacks = f"it lacks {', '.join(missing)}" if missing else "it is no class"
            raise ValueError(f"{name} is no {self.kind}: {lacks}")
        return plugin


def _is_own(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    parts = [*module.split("."), attribute]
    return bool(colon) and all(part.isidentifier() for part in parts)
